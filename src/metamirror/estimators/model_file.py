"""An adapted model on disk: one safetensors file, JSON in its header, no pickle.

It may come from anyone: its size is bounded, what it claims is compared with what it holds before
memory is taken for it, and whatever does not fit ends in a `DamagedFileError`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from metamirror._version import __version__
from metamirror.core.inner_loop import Path as AdaptationPath
from metamirror.core.learner import Adapted, Learner
from metamirror.core.normalisation import BatchNorm, Statistics
from metamirror.core.option_spec import convert
from metamirror.core.tasks import Batch, Params
from metamirror.estimators.in_turn import in_turn
from metamirror.estimators.labels import FirstOutputs, classes_from_json, classes_to_json
from metamirror.estimators.sklearn_api import not_fitted
from metamirror.storage import learner_file, tensor_file
from metamirror.storage.atomic import write_atomically
from metamirror.storage.tensor_file import DamagedFileError
from metamirror.training.device import choose_device

if TYPE_CHECKING:
    from metamirror.estimators.base import FewShotEstimator

FORMAT = 1
MOST_BYTES = 2**30
"""Of a file: a ResNet-12 with its geometry and a hundred photographs is far below it."""
MOST_WORDS = 2**20
"""Letters of the JSON in its header."""

START, ADAPTED, STATISTICS, SUPPORT = "start.", "adapted.", "statistics.", "support."

PARAMETERS: dict[str, Any] = {
    "start": str | None,
    "steps": int | None,
    "lr": float | None,
    "early_stopping": bool,
    "tol": float,
    "invert": bool,
    "ink": bool,
    "random_state": int | None,
}
CALIBRATE = {"calibrate": bool}


FACTS: dict[str, Any] = {
    "kind": Literal["classifier", "regressor"],
    "losses": list,
    "seconds": float,
    "temperature": float | None,
    "flat": bool | None,
    "n_features_in": int | None,
}
"""What the header says beside parameters, classes and the learner's description."""


def write(estimator: FewShotEstimator, path: Path) -> None:
    """Writes a fitted estimator."""
    write_atomically(path, pack(estimator))


def pack(estimator: FewShotEstimator) -> bytes:
    """The content of the file of a fitted estimator."""
    if not hasattr(estimator, "adapted_"):
        raise not_fitted(estimator)
    with in_turn(estimator.learner_):
        return _pack(estimator)


def _pack(estimator: FewShotEstimator) -> bytes:
    learner, adapted, support = estimator.learner_, estimator.adapted_, estimator.support_
    facts: dict[str, Any] = {
        "format": FORMAT,
        "metamirror": __version__,
        "kind": estimator._estimator_type,
        "params": _parameters(estimator),
        "learner": _description(learner),
        "losses": estimator.losses_,
        "seconds": estimator.adaptation_seconds_,
        "temperature": getattr(estimator, "temperature_", None),
        "flat": getattr(estimator, "flat_", None),
        "n_features_in": getattr(estimator, "n_features_in_", None),
    }
    if hasattr(estimator, "classes_"):
        facts["classes"] = classes_to_json(estimator.classes_)
    tensors = {
        **{START + name: t for name, t in learner_file.tensors_of(learner).items()},
        **{ADAPTED + name: t for name, t in adapted.params.items()},
        **_named_statistics(learner, adapted.statistics),
        SUPPORT + "x": support.x,
        SUPPORT + "y": support.y,
    }
    if len(json.dumps(facts)) > MOST_WORDS:
        raise ValueError(
            f"the labels take more than {MOST_WORDS:,} letters: fit with shorter names of classes"
        )
    return tensor_file.pack(tensors, facts)


def read(path: Path, model: nn.Module | None = None, device: str = "auto") -> FewShotEstimator:
    """A fitted estimator, classifier or regressor; arguments as in `FewShotEstimator.load`."""
    place = choose_device(device)
    tensors, facts = tensor_file.unpack(_bytes_of(path), path, ours=True, most_words=MOST_WORDS)
    if facts.get("format") != FORMAT:
        raise ValueError(f"{path} is not an adapted model of format {FORMAT}")
    learner = facts.get("learner")
    if model is None and isinstance(learner, dict) and learner.get("model", "") is None:
        raise ValueError(f"{path} was made with a model of the user's own: pass model=...")
    try:
        with torch.random.fork_rng(devices=[]):
            start = learner_file.restore(
                learner, _under(tensors, START), "its description", "its start", model=model
            )
        found = _restore(start.eval().to(place), tensors, facts)
        found.set_params(device=device)
        outputs = found.adapted_(found.support_.x)
    except Exception as error:  # there is no end to what a file can claim
        words = str(error) or type(error).__name__
        what = "is damaged" if model is None else "is damaged, or made with another model"
        raise DamagedFileError(f"{path} {what}: {words}") from error
    if not bool(torch.isfinite(outputs).all()):
        raise DamagedFileError(f"{path} is damaged: what it predicts is not finite")
    return found


def _restore(
    learner: Learner, tensors: dict[str, Tensor], facts: dict[str, Any]
) -> FewShotEstimator:
    from metamirror.estimators.estimator import FewShotClassifier, FewShotRegressor

    said = {name: convert(name, facts[name], kind) for name, kind in FACTS.items()}
    classifier = said["kind"] == "classifier"
    kinds = {**PARAMETERS, **(CALIBRATE if classifier else {})}
    params = {name: convert(name, facts["params"][name], kind) for name, kind in kinds.items()}
    first = next(learner.parameters())
    own = {name: t.to(first.device) for name, t in tensors.items()}
    support = Batch(own[SUPPORT + "x"].to(first), own[SUPPORT + "y"])
    params["start"] = learner if params["start"] is None else params["start"]
    estimator: FewShotEstimator
    if classifier:
        estimator = FewShotClassifier(**params)
        estimator.classes_ = classes_from_json(facts["classes"])
        estimator.temperature_ = said["temperature"]
        learner.loss = FirstOutputs(len(estimator.classes_), None)
        if not 0 < said["temperature"] < float("inf"):
            raise ValueError(f"its temperature is {said['temperature']}")
        _check_labels(support, len(estimator.classes_), learner.outputs(support.x))
    else:
        if support.y.shape != (len(support.x), learner.outputs(support.x)):
            raise ValueError(f"its values have shape {tuple(support.y.shape)}")
        estimator = FewShotRegressor(**params)
        estimator.flat_ = said["flat"]
    estimator.learner_, estimator.support_ = learner, support
    estimator.reader_ = estimator._reader(learner)
    estimator.adapted_ = _adapted(learner, _under(own, ADAPTED), _under(own, STATISTICS))
    estimator.losses_ = [convert("losses", value, float) for value in said["losses"]]
    estimator.adaptation_seconds_ = said["seconds"]
    estimator.n_steps_ = len(estimator.losses_) - 1
    if said["n_features_in"] is not None:
        estimator.n_features_in_ = said["n_features_in"]
    return estimator


def _parameters(estimator: FewShotEstimator) -> dict[str, Any]:
    params = estimator.get_params()
    # Whoever loads it has another machine.
    del params["device"]
    # Of the fit that is saved; what was set since counts from the next one.
    for name in ("invert", "ink"):
        params[name] = getattr(estimator.reader_, name, False)
    # As numpy's searches hand them in.
    params = {n: v.item() if isinstance(v, np.generic) else v for n, v in params.items()}
    if isinstance(params["start"], Learner):
        # It is in the file itself.
        params["start"] = None
    elif params["start"] is not None:
        params["start"] = os.fspath(params["start"])
    if not isinstance(params["random_state"], int | None):
        raise ValueError(
            f"random_state is {params['random_state']!r}, which a file cannot hold: "
            f"set_params(random_state=0) before saving"
        )
    return params


def _description(learner: Learner) -> dict[str, Any]:
    own = learner.loss.loss if isinstance(learner.loss, FirstOutputs) else learner.loss
    described = {**learner_file.describe(learner), "loss": None}
    if own is not None or described["prior"] == "custom":
        part = "loss" if own is not None else "prior"
        raise ValueError(
            f"the start has a {part} of your own, which a file cannot hold: save the learner with "
            f"metamirror.save and fit again after loading it"
        )
    return described


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise ValueError(f"there is no {path}") from error
    except IsADirectoryError as error:
        raise ValueError(
            f"{path} is a folder; an adapted model is one file, which metamirror adapt writes"
        ) from error
    if len(content) > MOST_BYTES:
        raise DamagedFileError(f"{path} has more than {MOST_BYTES:,} bytes: it is no adapted model")
    return content


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _named_statistics(learner: Learner, statistics: Statistics | None) -> dict[str, Tensor]:
    names = {module: name for name, module in learner.model.named_modules()}
    return {
        f"{STATISTICS}{use}.{part}.{names[norm]}": value
        for norm, uses in (statistics or {}).items()
        for use, pair in enumerate(uses)
        for part, value in zip(("mean", "var"), pair, strict=True)
    }


def _adapted(learner: Learner, params: Params, named: dict[str, Tensor]) -> Adapted:
    start = learner.start()
    for name, p in start.items():
        if params[name].shape != p.shape:
            raise ValueError(f"adapted {name} has shape {tuple(params[name].shape)}")
    phi = {name: params[name] for name in start}
    statistics: Statistics = {}
    for name, module in learner.model.named_modules():
        if isinstance(module, BatchNorm):
            uses = sum(key.partition(".")[2] == f"mean.{name}" for key in named)
            statistics[module] = [
                (named[f"{use}.mean.{name}"], named[f"{use}.var.{name}"]) for use in range(uses)
            ]
    empty = next(iter(phi.values())).new_zeros(0)
    return Adapted(learner, AdaptationPath(empty, empty, (), (phi,)), statistics)


def _check_labels(support: Batch, classes: int, ways: int) -> None:
    x, y = support
    if y.dtype != torch.int64 or y.shape != (len(x),) or classes > ways:
        raise ValueError(f"its labels are {y.dtype} of shape {tuple(y.shape)}")
    if sorted(set(y.tolist())) != list(range(classes)):
        raise ValueError(f"its labels are not those of {classes} classes")
