"""Images in any common form, made into what a convolution takes."""

import torch
from torch import Tensor

LUMINANCE = (0.299, 0.587, 0.114)


def as_images(x: Tensor, channels: int, size: int, dtype: torch.dtype) -> Tensor:
    """Return floats (examples, channels, size, size), from bytes or floats in either layout.

    >>> as_images(torch.zeros(2, 28, 28, dtype=torch.uint8), 1, 28, torch.float32).shape
    torch.Size([2, 1, 28, 28])
    """
    shape = tuple(x.shape)
    if x.dim() == 3:
        x = x.unsqueeze(1)
    if x.dim() == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.movedim(3, 1)
    if x.dim() != 4 or x.shape[1] not in (1, 3, channels) or x.shape[2:] != (size, size):
        raise ValueError(
            f"images have shape {shape}; this model takes (examples, {channels}, {size}, "
            f"{size}), channels first or last: resize them, or build the model with another "
            f"image_size"
        )
    if x.dtype == torch.uint8:
        x = x.to(dtype) / 255
    elif not x.is_floating_point():
        raise ValueError(f"images are {x.dtype}; give uint8 in 0..255 or floats in 0..1")
    x = x.to(dtype)
    if x.shape[1] == channels:
        return x
    if x.shape[1] == 1:
        return x.expand(-1, channels, -1, -1)
    if channels == 1:
        return (x * x.new_tensor(LUMINANCE).view(1, 3, 1, 1)).sum(1, keepdim=True)
    raise ValueError(f"images have {x.shape[1]} channels and the model takes {channels}")
