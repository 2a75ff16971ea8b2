"""The reader of a start: images where its network takes them, numbers where it does not."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from metamirror.core.learner import Learner
from metamirror.estimators.inputs.images import Images
from metamirror.estimators.inputs.numbers import Numbers

Reader = Images | Numbers
"""What makes examples of X."""


def reader_for(model: nn.Module, invert: bool, ink: bool) -> Reader:
    """Return the reader of a model's examples."""
    shape = image_shape(model)
    if shape is not None:
        return Images(*shape, invert, ink)
    for name, given in (("invert", invert), ("ink", ink)):
        if given:
            raise ValueError(f"{name} is for images, and this start takes none: leave it out")
    return Numbers()


def read(reader: Reader, learner: Learner, x: Any) -> Tensor:
    """Return examples in the type and on the device of the learner."""
    first = next(learner.parameters())
    return reader.read(x).to(first.device, first.dtype)


def image_shape(model: nn.Module) -> tuple[int, int] | None:
    """Return channels and size of the images that a model takes, if it states them."""
    channels, size = (getattr(model, name, None) for name in ("channels", "image_size"))
    return (channels, size) if isinstance(channels, int) and isinstance(size, int) else None
