"""Starts that a page may choose from, and adapted models, kept in memory while there is room."""

import copy
import math
import secrets
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from starlette.exceptions import HTTPException
from torch import Tensor, nn
from torch.nn import functional as F

from metamirror.core.learner import Learner
from metamirror.estimators.backbones.backbone import Backbone
from metamirror.estimators.backbones.opening import open_backbone
from metamirror.estimators.export import exported
from metamirror.estimators.familiarity import UnfamiliarExamplesWarning, unfamiliar
from metamirror.estimators.few_shot import FewShotClassifier
from metamirror.estimators.fitting import FittedModel
from metamirror.estimators.inputs.images import Images, image_shape
from metamirror.estimators.model_file import pack
from metamirror.estimators.starts import (
    Start,
    backbone_of,
    open_start,
    ridge_start,
    shipped_names,
)
from metamirror.methods import METHODS, make_learner
from metamirror.playground import limits
from metamirror.playground.images import Pixels, Strokes, prepare
from metamirror.playground.requests import Adapt
from metamirror.report.styles import style_of
from metamirror.training.config import load_config

PLAIN = "glyphs-maml"  # gradient descent, beside which every start for letters is shown
PLAIN_STEPS = 5  # of gradient descent, beside a start that takes none
FIRST = "glyphs-blockiaf"  # what the page begins with
OWN = "run"  # what requests call the user's own run or network: a word, and not its path
INK = ("glyphs", "omniglot")  # light on dark: starts from these get the ink of an image alone


@dataclass(frozen=True)
class Choice:
    """A start on offer: its name in requests and for people, and its method in the registry."""

    key: str
    title: str
    method: str
    start: Start
    reader: Images  # its `ink`: whether the start knows light ink on a dark ground
    ways: int
    steps: int
    lr: float
    backbone: Backbone | None = None  # the frozen network to whose features the start adapts
    run: Path | None = None  # the user's own, which knows what it was trained on

    def described(self) -> dict[str, Any]:
        """Return what the page is told."""
        method = METHODS[self.method]
        return {
            "key": self.key,
            "title": self.title,
            "optimizer": method.optimizer,
            "geometry": method.geometry,
            "style": style_of(self.method).index,
            "most_classes": min(self.ways, limits.MOST_CLASSES),
            "channels": self.reader.channels,
            "size": math.ceil(self.reader.size / self.reader.crop),
            "ink": self.reader.ink,
            "steps": min(self.steps, limits.MOST_STEPS),
            "lr": self.lr,
        }


def on_offer(run: Path | None, backbone: str | None = None) -> dict[str, Choice]:
    """Return the shipped starts for images, and the user's own run or network if there is one."""
    found = {}
    for name in shipped_names():
        learner = open_start(name)
        if image_shape(learner.model) or backbone_of(name):
            found[name] = _choice(name, "", name, learner, name.partition("-")[0])
    if backbone is not None:
        found[OWN] = _frozen(backbone, run)
    elif run is not None:
        learner = open_start(run)
        # A folder of `metamirror.save` does not say what it was trained on.
        trained = (run / "config.json").is_file()
        data = load_config(run).data.partition(":")[0] if trained else None
        # The learner and not its path: what is downloaded later need not tell where it lay.
        own = _choice(OWN, run.resolve().name, learner, learner, data)
        found[OWN] = replace(own, run=run.resolve())
    return found


def _choice(key: str, name: str, start: Start, learner: Learner, data: str | None) -> Choice:
    method = str((learner.config or {})["method"]).partition(":")[0]
    title = f"{name} ({METHODS[method].title})" if name else METHODS[method].title
    if backbone_of(start):
        body = open_backbone(start)
        assert isinstance(body, Backbone)
        reader, ways, body = body.images, limits.MOST_CLASSES, for_prepared(body)
        return Choice(key, title, method, start, reader, ways, learner.steps, learner.lr, body)
    shape = image_shape(learner.model)
    if shape is None:
        raise ValueError(f"{title} takes no images: give the playground a run that does")
    channels, size = shape
    ways = learner.outputs(torch.zeros(1, channels, size, size))
    if learner.fits_any_outputs():
        ways = limits.MOST_CLASSES
    if ways < limits.FEWEST_CLASSES:
        raise ValueError(
            f"{title} tells {ways} classes apart: the playground needs {limits.FEWEST_CLASSES}"
        )
    reader = Images(channels, size, ink=channels == 1 and data in INK)
    return Choice(key, title, method, start, reader, ways, learner.steps, learner.lr)


def _frozen(name: str, run: Path | None) -> Choice:
    """Return a frozen network, for ridge regression or for a run on its features."""
    body = open_backbone(name)
    if not isinstance(body, Backbone):
        raise ValueError(f"{name} may take other things than images: use metamirror adapt")
    # What is downloaded later need not tell where it lay. Options may hold slashes, too.
    path, colon, options = body.name.partition(":")
    body = replace(body, name=f"{Path(path).name}{colon}{options}")
    blank = body.features(torch.zeros(1, body.channels, body.size, body.size)).double()
    start = open_start(ridge_start(blank, directions=True) if run is None else run)
    if image_shape(start.model):
        raise ValueError(f"{run} takes images, and the network gives numbers: leave one out")
    ways = limits.MOST_CLASSES if start.fits_any_outputs() else start.outputs(blank.float())
    key = "r2d2" if run is None else str((start.config or {})["method"]).partition(":")[0]
    title = f"{body.name} ({METHODS[key].title})"
    rest = for_prepared(body)
    return Choice(OWN, title, key, start, body.images, ways, start.steps, start.lr, rest)


def for_prepared(body: Backbone) -> Backbone:
    """Return a network for images that its own reader has prepared, for many threads at once."""
    if isinstance(body.network, nn.Module):
        # For good: threads that switch it back and forth would meet in the middle.
        for module in body.network.modules():
            module.training = False
    # Every stage of a drawing is another image, and a page must not fill the disk.
    return replace(body, crop=1.0, kept=False)


@dataclass(frozen=True)
class Model:
    """A fitted classifier, the start it came from, and its classes in the page's order."""

    choice: Choice
    names: list[str]
    classifier: FewShotClassifier
    note: str | None = None  # how its examples differ from what the start has seen

    def predict(self, image: Pixels | Strokes) -> tuple[list[float], Pixels]:
        """Return the probability of each class, and the image as the network saw it."""
        seen = prepare(image, self.choice.reader)
        found = self.classifier.predict_proba(seen[None])[0]
        by_name = dict(zip(self.classifier.classes_.tolist(), found.tolist(), strict=True))
        inverted = self.choice.reader.invert
        return [by_name[name] for name in self.names], 255 - seen if inverted else seen

    def change_without(self, example: int, image: Pixels | Strokes) -> float:
        """Return by how much an image's loss rises if the start is adapted without one example.

        Its likeliest class is taken for right: above zero the example speaks for it, below against.
        """
        fitted, (x, y) = self.classifier.fitted_, self.classifier.support_
        kept = torch.arange(len(y)) != example
        if bool(kept.all()) or not bool((y[kept] == y[example]).any()):
            raise ValueError(
                f"example is {example}; it must be one of {len(y)}, of a class with another one"
            )
        labels = self.classifier.classes_[y[kept].numpy()]
        settings = {**self.classifier.get_params(), "calibrate": False}
        if self.choice.backbone is not None:
            # The examples are features already.
            settings |= {"start": fitted.learner, "backbone": None}
        others = FewShotClassifier(**settings).fit(x[kept], labels).fitted_
        asked = fitted.reader.read(prepare(image, self.choice.reader)[None])
        before, after = (self._logits(model, asked) for model in (fitted, others))
        right = before.argmax(1)
        return float(F.cross_entropy(after, right) - F.cross_entropy(before, right))

    def _logits(self, fitted: FittedModel, x: Tensor) -> Tensor:
        """Return the outputs of the classes, as certain as this model is."""
        return fitted.outputs(x)[:, : len(self.names)].double() / self.classifier.temperature_

    def file(self) -> bytes:
        """Return the content of a file for `FewShotClassifier.load`."""
        return pack(self._for_any_image(), self.classifier.get_params())

    def onnx(self) -> bytes:
        """Return the content of a file for other programs."""
        return exported(self._for_any_image(), "onnx")

    def _for_any_image(self) -> FittedModel:
        # Here images come prepared; whoever has the file gives it any, which it then prepares.
        fitted, images = self.classifier.fitted_, self.choice.reader
        if self.choice.backbone:
            return replace(fitted, reader=replace(self.choice.backbone, crop=images.crop))
        return replace(fitted, reader=images)

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
    if (work := request.examples * request.steps) > limits.MOST_WORK:
        raise ValueError(
            f"{request.examples} examples times {request.steps} steps are {work:,}; the playground "
            f"takes {limits.MOST_WORK:,}: take fewer steps or examples"
        )
    for name, examples in request.classes.items():
        for i, image in enumerate(examples, 1):
            images.append(prepare(image, choice.reader, f"example {i} of class {name!r}"))
            labels.append(name)
    # The answer has it (`Model.note`), and nobody reads the server's output.
    warnings.simplefilter("ignore", UnfamiliarExamplesWarning)
    # Heads that are computed are too certain; with steps, calibrating would take as many again.
    classifier = FewShotClassifier(
        choice.start,
        choice.backbone,
        steps=request.steps,
        lr=request.lr,
        device="cpu",
        calibrate=request.steps == 0,
    )
    prepared, run = np.stack(images), choice.run
    seen = torch.from_numpy(prepared).movedim(3, 1) / 255
    note = unfamiliar(run or choice.start, seen, run.name if run else None)
    return Model(choice, list(request.classes), classifier.fit(prepared, labels), note)


def beside(
    choice: Choice, choices: Mapping[str, Choice], request: Adapt
) -> tuple[Choice, Adapt] | None:
    """Return the gradient descent that is shown beside a start, and what is asked of it.

    For letters it is a start of its own. For photographs it begins at the chosen network, with a
    head of zeros where that is computed from the examples. Beside many examples there is none.
    """
    if request.examples > limits.PLAIN_WORK:
        return None
    if choice.reader.ink:
        plain = choices.get(PLAIN)
        return None if plain is None or plain is choice else (plain, request)
    learner = open_start(choice.start)
    computed = learner.start.computed
    if METHODS[choice.method].optimizer == "GD" and not computed:
        return None
    model = copy.deepcopy(learner.model).requires_grad_(True)
    for name in computed:
        head = model.get_parameter(name)
        head.data = head.new_zeros(len(request.classes), *head.shape[1:])
    start = make_learner("maml", model, steps=PLAIN_STEPS, lr=choice.lr)
    steps = min(request.steps or PLAIN_STEPS, max(1, limits.PLAIN_WORK // request.examples))
    plain = replace(choice, key=PLAIN, title="the same network", method="maml", start=start)
    return plain, replace(request, steps=steps)


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
