"""The precision in which small dense problems are solved, whatever the model computes in."""

import torch
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """Return the tensor in double precision, or single on Apple's GPUs, which have no double."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)
