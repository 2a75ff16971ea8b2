"""Networks to meta-learn. Any other `nn.Module` works as well."""

from typing import Any, get_type_hints

from torch import nn

from metamirror.core.normalisation import BatchNorm, convert_batch_norm, convert_layer_norm
from metamirror.core.option_spec import convert, parse_spec, refused
from metamirror.models.conv4 import Conv4
from metamirror.models.mlp import MLP
from metamirror.models.resnet12 import ResNet12
from metamirror.models.text import TextTransformer
from metamirror.models.vit import ViT

MODELS: dict[str, type[nn.Module]] = {
    "conv4": Conv4,
    "resnet12": ResNet12,
    "vit": ViT,
    "text": TextTransformer,
    "mlp": MLP,
}
"""Models by the names that `metamirror train --model` takes."""

__all__ = [
    "MLP",
    "MODELS",
    "BatchNorm",
    "Conv4",
    "ResNet12",
    "TextTransformer",
    "ViT",
    "build",
    "convert_batch_norm",
    "convert_layer_norm",
    "head_of",
    "parse",
]


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a specification such as `vit:depth=6:width=96`.

    >>> parse("vit:depth=6:width=96")
    ('vit', {'depth': 6, 'width': 96})
    """
    name, words = parse_spec(spec)
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}; choose from {', '.join(MODELS)}")
    kinds = get_type_hints(MODELS[name].__init__)
    if unknown := [word for word in words if word not in kinds]:
        raise refused(f"model {name}", unknown[0], list(kinds))
    return name, {word: convert(f"{name}:{word}", v, kinds[word]) for word, v in words.items()}


def build(name: str, **options: Any) -> nn.Module:
    """Return a model by name, as a run's configuration gives it.

    >>> build("mlp", inputs=2, outputs=3).head
    Linear(in_features=40, out_features=3, bias=True)
    """
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}; choose from {sorted(MODELS)}")
    try:
        return MODELS[name](**options)
    except TypeError as error:
        raise ValueError(f"{name} does not take {options}: {error}") from error


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
