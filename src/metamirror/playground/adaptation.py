"""Adapting a start to what a page sent, and asking the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metamirror.estimators.classifier import FewShotClassifier
from metamirror.estimators.inputs.images import Images
from metamirror.estimators.model_file import pack
from metamirror.playground.choices import Choice
from metamirror.playground.images import Picture, prepare
from metamirror.playground.requests import Adapt


@dataclass(frozen=True)
class Model:
    """An adapted model.

    Attributes:
        choice: the start it came from.
        names: of its classes, in the page's order.
        classifier: the fitted estimator.
    """

    choice: Choice
    names: tuple[str, ...]
    classifier: FewShotClassifier

    def ask(self, picture: Picture) -> tuple[list[float], NDArray[np.uint8]]:
        """The probability of each class, and the picture as the network saw it."""
        seen = _prepared(picture, self.choice)
        found = self.classifier.predict_proba(seen[None])[0]
        by_name = dict(zip(self.classifier.classes_.tolist(), found.tolist(), strict=True))
        return [by_name[name] for name in self.names], seen

    def file(self) -> bytes:
        """The content of the file that `FewShotClassifier.load` takes.

        Here pictures come prepared; whoever has the file gives it any, which it then prepares.
        """
        fitted = self.classifier.fitted_
        assert isinstance(fitted.reader, Images)
        reader = replace(fitted.reader, ink=self.choice.ink)
        return pack(replace(fitted, reader=reader), self.classifier.get_params())

    def bytes_taken(self) -> int:
        """About what it takes of memory."""
        fitted = self.classifier
        tensors = [*fitted.learner_.state_dict().values(), *fitted.adapted_.params.values()]
        return sum(t.nbytes for t in [*tensors, *fitted.support_])

    def described(self) -> dict[str, Any]:
        """What the page is told: the way down, and how long it took."""
        fitted = self.classifier
        return {
            **self.choice.described(),
            "steps": fitted.n_steps_,
            "lr": self.choice.lr if fitted.lr is None else fitted.lr,
            "losses": fitted.losses_,
            "milliseconds": 1000 * fitted.adaptation_seconds_,
        }


def adapt(choice: Choice, request: Adapt) -> Model:
    """Adapts; pictures that show nothing and steps that lead nowhere are a ValueError."""
    if len(request.names) > choice.ways:
        raise ValueError(
            f"there are {len(request.names)} classes, and {choice.title} tells {choice.ways} apart"
        )
    pictures, labels = [], []
    for name, examples in zip(request.names, request.examples, strict=True):
        pictures += _prepared_all(name, examples, choice)
        labels += [name] * len(examples)
    classifier = FewShotClassifier(choice.start, steps=request.steps, lr=request.lr, device="cpu")
    return Model(choice, request.names, classifier.fit(np.stack(pictures), labels))


def _prepared(picture: Picture, choice: Choice) -> NDArray[np.uint8]:
    return prepare(picture, choice.channels, choice.size, choice.ink)


def _prepared_all(
    name: str, examples: Sequence[Picture], choice: Choice
) -> list[NDArray[np.uint8]]:
    found = []
    for i, picture in enumerate(examples, 1):
        try:
            found.append(_prepared(picture, choice))
        except ValueError as error:
            raise ValueError(f"example {i} of class {name!r} {error}") from error
    return found
