"""Networks to meta-learn. Any other `nn.Module` works as well."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, get_type_hints

from torch import nn

from metamirror.core import import_path
from metamirror.core.import_path import NOTHING
from metamirror.core.normalisation import BatchNorm, convert_batch_norm
from metamirror.core.option_spec import convert, literal, parse_spec, refused
from metamirror.models.conv4 import Conv4
from metamirror.models.linear import Linear
from metamirror.models.mlp import MLP
from metamirror.models.resnet12 import ResNet12
from metamirror.models.text import TextTransformer
from metamirror.models.vit import ViT

MODELS: dict[str, type[nn.Module]] = {
    "conv4": Conv4,
    "resnet12": ResNet12,
    "vit": ViT,
    "text": TextTransformer,
    "linear": Linear,
    "mlp": MLP,
}
"""Models by the names that `metamirror train --model` takes."""

__all__ = [
    "MLP",
    "MODELS",
    "BatchNorm",
    "Conv4",
    "Linear",
    "ResNet12",
    "TextTransformer",
    "ViT",
    "build",
    "config_of",
    "convert_batch_norm",
    "head_of",
    "parse",
]


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a specification such as `vit:depth=6:width=96`.

    >>> parse("vit:depth=6:width=96")
    ('vit', {'depth': 6, 'width': 96})
    """
    path = import_path.split_path(spec)
    if path is not None and path[0] not in MODELS:
        module, attribute, options = path
        words = parse_spec(f"{attribute}:{options}".rstrip(":"))[1]
        return f"{module}:{attribute}", {word: literal(value) for word, value in words.items()}
    name, words = parse_spec(spec)
    if name not in MODELS:
        raise _unknown(name)
    kinds = get_type_hints(MODELS[name].__init__)
    if unknown := [word for word in words if word not in kinds]:
        raise refused(f"model {name}", unknown[0], list(kinds))
    return name, {word: convert(f"{name}:{word}", v, kinds[word]) for word, v in words.items()}


def build(name: str, **options: Any) -> nn.Module:
    """Return a model by name, as a run's configuration gives it.

    A name `package.module:attribute` is of the user's own: a module, which is copied, or a class or
    function, called with those of the options that it takes.

    >>> build("mlp", inputs=2, outputs=3).head
    Linear(in_features=40, out_features=3, bias=True)
    """
    if name not in MODELS:
        if import_path.split_path(name) is None:
            raise _unknown(name)
        return build_own(name, options)
    try:
        return MODELS[name](**options)
    except TypeError as error:
        raise ValueError(f"{name} does not take {options}: {error}") from error


def _unknown(name: str) -> ValueError:
    known = ", ".join(MODELS)
    return ValueError(
        f"no model is called {name!r}; choose from {known}, or name your own, package.module:build"
    )


def build_own(name: str, offered: dict[str, Any], asked: Mapping[str, Any] = NOTHING) -> nn.Module:
    """Return a model of the user's own by its import path; arguments as in `import_path.called`."""
    found = import_path.find(name, "model")
    model = deepcopy(found) if isinstance(found, nn.Module) else found
    if not isinstance(model, nn.Module) and callable(found):
        model = import_path.called(found, name, offered, asked)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is {name!r}, which gave a {type(model).__name__}, no nn.Module")
    vars(model)["built_as"] = {"name": name, **offered, **asked}
    return model


def config_of(model: nn.Module) -> dict[str, Any] | None:
    """Return how `build` makes a model again; None if only the user can.

    A class of the user's own may derive from one of ours, or have a config of its own.
    """
    found: dict[str, Any] | None = vars(model).get("built_as")
    return model.config if type(model) in MODELS.values() else found  # type: ignore[return-value]


def head_of(model: nn.Module) -> str:
    """Return the name of the last linear layer: `head` on our models, found by order on others."""
    linear: list[str] = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if "head" in linear:
        return "head"
    if not linear:
        raise ValueError(
            f"{type(model).__name__} has no nn.Linear: name the layer that adapts with head=..."
        )
    return linear[-1]
