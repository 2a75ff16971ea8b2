"""Dropout is for training: what is evaluated has none."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Put all layers into evaluation mode, save those that normalise by their batch.

    Those would fall back on running averages, which are of no task.
    """
    modes = {module: module.training for module in model.modules()}
    try:
        for module, training in modes.items():
            module.training = training and isinstance(module, _NormBase)
        yield
    finally:
        for module, training in modes.items():
            module.training = training
