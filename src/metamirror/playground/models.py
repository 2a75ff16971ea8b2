"""Adapted models: made from what a page sent, and kept in memory for as long as there is room."""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException

from metamirror.estimators.few_shot import FewShotClassifier
from metamirror.estimators.model_file import pack
from metamirror.playground import limits
from metamirror.playground.choices import Choice
from metamirror.playground.images import Pixels, Strokes, prepare
from metamirror.playground.requests import Adapt


@dataclass(frozen=True)
class Model:
    """A fitted classifier, the start it came from, and its classes in the page's order."""

    choice: Choice
    names: list[str]
    classifier: FewShotClassifier

    def predict(self, image: Pixels | Strokes) -> tuple[list[float], Pixels]:
        """Return the probability of each class, and the image as the network saw it."""
        seen = prepare(image, self.choice.reader)
        found = self.classifier.predict_proba(seen[None])[0]
        by_name = dict(zip(self.classifier.classes_.tolist(), found.tolist(), strict=True))
        return [by_name[name] for name in self.names], seen

    def file(self) -> bytes:
        """Return the content of the file that `FewShotClassifier.load` takes.

        Here images come prepared; whoever has the file gives it any, which it then prepares.
        """
        fitted = replace(self.classifier.fitted_, reader=self.choice.reader)
        return pack(fitted, self.classifier.get_params())

    def nbytes(self) -> int:
        """Return about how much memory it takes."""
        fitted = self.classifier.fitted_
        tensors = [*fitted.learner.state_dict().values(), *fitted.adapted.params.values()]
        return sum(t.nbytes for t in [*tensors, *fitted.support])

    def described(self) -> dict[str, Any]:
        """Return what the page is told: the losses, and how long it took."""
        fitted = self.classifier
        return {
            **self.choice.described(),
            "steps": fitted.n_steps_,
            "lr": self.choice.lr if fitted.lr is None else fitted.lr,
            "losses": fitted.losses_,
            "milliseconds": 1000 * fitted.adaptation_seconds_,
        }


def adapt(choice: Choice, request: Adapt) -> Model:
    """Adapt; blank images and steps that diverge are a ValueError."""
    if len(request.classes) > choice.ways:
        raise ValueError(
            f"there are {len(request.classes)} classes; {choice.title} tells {choice.ways} apart"
        )
    images, labels = [], []
    for name, examples in request.classes.items():
        for i, image in enumerate(examples, 1):
            images.append(prepare(image, choice.reader, f"example {i} of class {name!r}"))
            labels.append(name)
    classifier = FewShotClassifier(choice.start, steps=request.steps, lr=request.lr, device="cpu")
    return Model(choice, list(request.classes), classifier.fit(np.stack(images), labels))


class ModelStore:
    """Keeps the models that were used last, one in any case. Nobody can guess another's name."""

    def __init__(self, most: int = limits.MOST_MODELS, most_bytes: int = limits.MODEL_BYTES):
        self._most, self._most_bytes = most, most_bytes
        self._models: OrderedDict[str, tuple[Model, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._models)

    def put(self, model: Model) -> str:
        """Keep a model, and return its name."""
        name = secrets.token_urlsafe(16)
        with self._lock:
            self._models[name] = model, model.nbytes()
            while len(self._models) > 1 and (
                len(self._models) > self._most
                or sum(taken for _, taken in self._models.values()) > self._most_bytes
            ):
                self._models.popitem(last=False)
        return name

    def get(self, name: str) -> Model:
        """Return the model of that name."""
        with self._lock:
            if name not in self._models:
                raise HTTPException(
                    404,
                    f"there is no such model, or not any more: the server keeps the last "
                    f"{self._most}. Adapt again",
                )
            self._models.move_to_end(name)
            return self._models[name][0]
