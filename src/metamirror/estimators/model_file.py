"""An adapted model on disk: one safetensors file, JSON in its header, no pickle.

The file may come from anyone: its size is bounded, what it claims is compared with what it holds
before memory is taken for it, and whatever does not fit ends in a `DamagedFileError`.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from metamirror._version import __version__
from metamirror.core.adapted import Adapted
from metamirror.core.inner_loop import Path as AdaptationPath
from metamirror.core.learner import Learner
from metamirror.core.option_spec import convert
from metamirror.core.tasks import Batch
from metamirror.estimators.backbones.opening import Frozen, is_harmless, open_backbone
from metamirror.estimators.fitting import (
    FittedModel,
    lock_of,
    named_statistics,
    placed,
    statistics_of,
)
from metamirror.estimators.inputs.images import Reader, reader_for
from metamirror.estimators.labels import FirstOutputs, classes_from_json, classes_to_json, own_loss
from metamirror.storage import learner_file, tensor_file
from metamirror.storage.tensor_file import DamagedFileError
from metamirror.training.device import choose_device

FORMAT = 1
MOST_BYTES = 2**30  # a ResNet-12 with its geometry and a hundred photographs takes far less
EXPORTED = {".onnx": "onnxruntime", ".pt2": "torch.export.load"}
"""Files of `export`, by their ends, and what runs them."""
MOST_WORDS = 2**20  # letters of the JSON in its header
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
"""The estimator's parameters; a classifier also has `calibrate`."""
FACTS: dict[str, Any] = {
    "losses": list,
    "seconds": float,
    "temperature": float | None,
    "held_out_accuracy": float | None,
    "flat": bool | None,
    "n_features_in": int | None,
}
"""What the header says of a fitted model, beside its classes and the learner's description."""


def pack(fitted: FittedModel, params: dict[str, Any]) -> bytes:
    """Return the content of the file."""
    learner, classes = fitted.learner, fitted.classes
    with lock_of(learner):
        described = {**learner_file.describe(learner), "loss": None}
        own = own_loss(learner) is not None
        if own or described["prior"] == "custom":
            raise ValueError(
                f"the start has a {'loss' if own else 'prior'} of your own, which a file cannot "
                f"hold: save the learner with metamirror.save and fit again after loading it"
            )
        facts: dict[str, Any] = {
            "format": FORMAT,
            "metamirror": __version__,
            "kind": "regressor" if classes is None else "classifier",
            "params": _parameters(fitted, params),
            "learner": described,
            "backbone": _backbone_facts(fitted.reader),
            **{name: getattr(fitted, name) for name in FACTS},
        }
        if classes is not None:
            facts["classes"] = classes_to_json(classes)
        if len(json.dumps(facts)) > MOST_WORDS:
            raise ValueError(
                f"the labels take more than {MOST_WORDS:,} letters: fit with shorter class names"
            )
        parts = {
            "start": learner_file.tensors_of(learner),
            "adapted": fitted.adapted.params,
            "statistics": named_statistics(learner.model, fitted.adapted.statistics),
            "support": fitted.support._asdict(),
        }
        tensors = {f"{part}.{name}": t for part, own in parts.items() for name, t in own.items()}
        return tensor_file.pack(tensors, facts)


def read(
    path: Path, model: nn.Module | None = None, device: str = "auto", backbone: Any = None
) -> tuple[FittedModel, dict[str, Any]]:
    """Return a fitted model and its estimator's parameters; arguments as in `load`."""
    place = choose_device(device)
    if path.suffix.lower() in EXPORTED and path.is_file():
        raise ValueError(
            f"{path} is an exported model, for other programs: run it with "
            f"{EXPORTED[path.suffix.lower()]} (docs/deploy.md), or give the file that metamirror "
            f"adapt or save wrote"
        )
    tensors, facts = tensor_file.unpack(_bytes_of(path), path, ours=True, most_words=MOST_WORDS)
    if facts.get("format") != FORMAT:
        raise ValueError(f"{path} is not an adapted model of format {FORMAT}")
    learner = facts.get("learner")
    if model is None and isinstance(learner, dict) and learner.get("model", "") is None:
        raise ValueError(f"{path} was made with a model of the user's own: pass model=...")
    try:
        with torch.random.fork_rng(devices=[]):
            start = learner_file.restore(
                learner, _under(tensors, "start."), "its description", "its start", model=model
            )
        fitted, params = _restore(start.eval().to(place), tensors, facts)
        if not bool(torch.isfinite(fitted.adapted(fitted.support.x)).all()):
            raise ValueError("what it predicts is not finite")
    except learner_file.EarlierVersionError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    except Exception as error:  # there is no end to what a file can claim
        words = str(error) or type(error).__name__
        what = "is damaged" if model is None else "is damaged, or made with another model"
        raise DamagedFileError(f"{path} {what}: {words}") from error
    if facts.get("backbone") is not None or backbone is not None:
        # Not part of what can be damaged: it is elsewhere.
        reader = _find_backbone(facts.get("backbone"), backbone, path)
        fitted = replace(fitted, reader=reader)
    return fitted, {**params, "device": device, "backbone": backbone or _named(fitted.reader)}


def _backbone_facts(reader: Reader) -> dict[str, Any] | None:
    if not isinstance(reader, Frozen):
        return None
    return {"name": reader.name, "facts": reader.facts}


def _named(reader: Reader) -> str | None:
    return reader.name if isinstance(reader, Frozen) else None


def _find_backbone(facts: Any, given: Any, path: Path) -> Reader:
    """Return the backbone of a saved model: the one given, or what its file names.

    What a file names is opened only where that runs no code and downloads nothing.
    """
    known = isinstance(facts, dict) and isinstance(facts.get("name"), str)
    if not known:
        raise ValueError(f"{path} was made without a backbone: leave it out")
    name, checksum = facts["name"], facts.get("facts")
    if given is None and not is_harmless(name):
        raise ValueError(f"{path} was made with the backbone {name}: pass backbone=..., --backbone")
    try:
        reader = open_backbone(name if given is None else given)
    except ValueError as error:
        raise ValueError(
            f"{path} was made with the backbone {name}, which cannot be opened ({error}): say "
            f"where it is with backbone=..., --backbone"
        ) from error
    if checksum not in (None, getattr(reader, "facts", None)):
        raise ValueError(
            f"{path} was made with the backbone {name}, and this is another one, or it has changed "
            f"since: give the same, or fit again"
        )
    return reader


def _restore(
    learner: Learner, tensors: dict[str, Tensor], facts: dict[str, Any]
) -> tuple[FittedModel, dict[str, Any]]:
    classifier = convert("kind", facts["kind"], Literal["classifier", "regressor"]) == "classifier"
    kinds = {**PARAMETERS, "calibrate": bool} if classifier else PARAMETERS
    params = {name: convert(name, facts["params"][name], kind) for name, kind in kinds.items()}
    said = {name: convert(name, facts.get(name), kind) for name, kind in FACTS.items()}
    said["losses"] = [convert("losses", value, float) for value in said["losses"]]
    first = next(learner.parameters())
    own = {name: t.to(first.device) for name, t in tensors.items()}
    x, y = support = Batch(placed(own["support.x"], learner), own["support.y"])
    outputs, computed = learner.outputs(x), learner.fits_any_outputs(params["steps"])
    if classifier:
        said["classes"] = classes_from_json(facts["classes"])
        count = len(said["classes"])
        outputs = count if computed else outputs
        if y.dtype != torch.int64 or y.shape != (len(x),) or count > outputs:
            raise ValueError(f"its labels are {y.dtype} of shape {tuple(y.shape)}")
        if sorted(set(y.tolist())) != list(range(count)):
            raise ValueError(f"its labels are not those of {count} classes")
        if not 0 < said["temperature"] < float("inf"):
            raise ValueError(f"its temperature is {said['temperature']}")
        if not 0 <= (said["held_out_accuracy"] or 0) <= 1:
            raise ValueError(f"its held-out accuracy is {said['held_out_accuracy']}")
        learner.configure(loss=FirstOutputs(count, None))
    elif y.shape != (len(x), y.shape[-1] if computed else outputs):
        raise ValueError(f"its values have shape {tuple(y.shape)}")
    else:
        outputs = y.shape[-1]
    reader = reader_for(learner.model, params["invert"], params["ink"])
    phi = _under(own, "adapted.")
    if lost := set(learner.adapts) - set(phi):
        raise ValueError(f"it lacks adapted {sorted(lost)[0]}")
    shapes = {name: tuple(p.shape) for name, p in learner.model.named_parameters()}
    shapes |= {name: (outputs, *shapes[name][1:]) for name in learner.start.computed}
    # What a start takes from the support set has the support set's size.
    begun = learner.geometry.primal(learner.begin(support, seed=0, detached=True))
    shapes |= {name: tuple(p.shape) for name, p in begun.items()}
    for name, value in phi.items():
        if tuple(value.shape) != shapes.get(name):
            raise ValueError(f"adapted {name} has shape {tuple(value.shape)}")
    path = AdaptationPath(x.new_zeros(0), x.new_zeros(0), (), (phi,))
    statistics = statistics_of(learner.model, _under(own, "statistics."))
    adapted = Adapted(learner, path, statistics, labels=classifier)
    fitted = FittedModel(learner, reader, support, adapted, **said)
    return fitted, {**params, "start": learner if params["start"] is None else params["start"]}


def _parameters(fitted: FittedModel, params: dict[str, Any]) -> dict[str, Any]:
    # As numpy's searches hand them in. The device is left out: whoever loads it has another one.
    params = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in params.items()
        if name != "device"
    }
    # Of the fit that is saved; what was set since counts from the next one.
    params.pop("backbone", None)
    for name in ("invert", "ink"):
        params[name] = bool(getattr(fitted.reader, name, False))
    # A learner is in the file itself.
    start = params["start"]
    params["start"] = None if isinstance(start, Learner | None) else os.fspath(start)
    if not isinstance(params["random_state"], int | None):
        raise ValueError(
            f"random_state is {params['random_state']!r}, which a file cannot hold: "
            f"set_params(random_state=0) before saving"
        )
    return params


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
