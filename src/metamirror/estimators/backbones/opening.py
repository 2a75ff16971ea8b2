"""Backbones by name or as objects: whatever the user has becomes a reader of examples."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from metamirror.console import say
from metamirror.core.files import expanded
from metamirror.core.import_path import find, split_path
from metamirror.core.learner import Learner
from metamirror.core.option_spec import convert, parse_spec, refused
from metamirror.estimators.backbones import our_runs
from metamirror.estimators.backbones.backbone import Backbone
from metamirror.estimators.backbones.function import Function
from metamirror.estimators.backbones.model_files import exported, onnx
from metamirror.estimators.backbones.tokens import Tokens, takes_tokens
from metamirror.estimators.inputs.images import Reader, image_shape
from metamirror.estimators.starts import shipped_names

Frozen = Backbone | Function | Tokens
"""What a backbone can be once it is opened."""
FILES: dict[str, Callable[[Path], Backbone]] = {".onnx": onnx, ".pt2": exported}
OPTIONS: dict[str, type] = {"size": int, "crop": float, "mean": float, "std": float, "flip": bool}
KINDS = (
    "FILE.onnx, FILE.pt2, timm:NAME, a run folder, a shipped start, package.module:callable, a "
    "module, or a function"
)


def open_backbone(given: Any) -> Reader:
    """Return the reader that a backbone is: images, or whatever it takes, become rows of numbers.

    Args:
        given: what `FewShotClassifier` and `metamirror embed` take as a backbone. Options may
            follow the name of a file or of timm's: `body.onnx:size=160:mean=0.5:std=0.5`.
    """
    if isinstance(given, Frozen):
        return given
    if isinstance(given, Learner):
        return our_runs.of_learner(given)
    if isinstance(given, nn.Module):
        name = type(given).__name__
        return Tokens(given, name) if takes_tokens(given) else of_module(given, name)
    if isinstance(given, str | os.PathLike):
        return by_name(os.fspath(given))
    if callable(given):
        return Function(given)
    raise ValueError(f"backbone is {given!r}; give {KINDS}")


def by_name(name: str) -> Reader:
    """Return the backbone that a name stands for."""
    if name in shipped_names() or expanded(name).is_dir():
        return our_runs.of_folder(name)
    if name.startswith("timm:"):
        model, options = _options(name.removeprefix("timm:"))
        return replace(timm(model), name=name, **options)
    if split_path(name):
        return open_backbone(find(name, "backbone"))
    path, options = _options(name)
    if (suffix := Path(path).suffix.lower()) in FILES:
        if not expanded(path).is_file():
            raise ValueError(f"there is no file {path}: backbone should name one")
        return replace(FILES[suffix](expanded(path)), name=name, **options)
    raise ValueError(f"backbone is {name!r}; give {KINDS}")


def is_harmless(name: str) -> bool:
    """Return whether opening a backbone of this name runs no code and downloads nothing."""
    if name in shipped_names() or expanded(name).is_dir():
        return True
    return not split_path(name) and Path(_options(name)[0]).suffix.lower() == ".onnx"


def _options(name: str) -> tuple[str, dict[str, Any]]:
    """Split what follows a name, as in `body.onnx:size=160:mean=0.5`."""
    # A drive of Windows ends with a colon too.
    drive, rest = os.path.splitdrive(name)
    key, words = parse_spec(rest)
    found: dict[str, Any] = {}
    for option, word in words.items():
        if option not in OPTIONS:
            raise refused(f"the backbone {key}", option, list(OPTIONS))
        values = tuple(convert(option, value, OPTIONS[option]) for value in word.split("/"))
        found[option] = values if len(values) > 1 else values[0]
    return drive + key, found


def of_module(module: nn.Module, name: str) -> Backbone:
    """Return a module with the preprocessing that its configuration states, or ImageNet's usual."""
    if shape := image_shape(module):
        channels, size = shape
        return Backbone(module, size, crop=1, mean=0, std=1, channels=channels, name=name)
    config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
    if isinstance(config, dict) and "input_size" in config:
        channels, size, _ = config["input_size"]
        known = {"crop": "crop_pct", "mean": "mean", "std": "std"}
        stated = {ours: config[theirs] for ours, theirs in known.items() if theirs in config}
        return Backbone(module, int(size), channels=int(channels), name=name, **stated)
    found = Backbone(module, name=name)
    say(
        f"note: {name} does not state its preprocessing; ImageNet's usual is taken: 224 pixels, "
        f"the middle 0.875, ImageNet's mean and deviation. metamirror.Backbone sets another"
    )
    return found


def timm(name: str) -> Backbone:
    """Return one of timm's pretrained networks without its head; it may be downloaded."""
    try:
        from timm import create_model
    except Exception as error:  # an installation may lack torchvision, or fit another torch
        raise ValueError(
            f"timm cannot be used here ({error}): pip install timm torchvision, or give the "
            f"network as FILE.onnx"
        ) from error
    try:
        module = create_model(name, pretrained=True, num_classes=0)
    except Exception as error:
        raise ValueError(f"timm has no {name!r} to give: {error}") from error
    return of_module(module, f"timm:{name}")
