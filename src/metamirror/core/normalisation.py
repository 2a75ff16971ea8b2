"""Batch normalisation from primitives, and the two protocols for whose statistics it uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

MeanAndVariance = tuple[Tensor, Tensor]
Statistics = dict["BatchNorm", list[MeanAndVariance]]
"""What each layer normalises with, use by use: a layer may stand in several places."""

# Context variables, not attributes: two threads may use one model under different protocols.
_recorded: ContextVar[Statistics | None] = ContextVar("recorded", default=None)
_fixed: ContextVar[dict["BatchNorm", Iterator[MeanAndVariance]] | None] = ContextVar(
    "fixed", default=None
)
_fused: ContextVar[bool] = ContextVar("fused", default=False)


class BatchNorm(nn.Module):
    """Normalises each channel (axis 1) over all other axes, then scales and shifts it.

    By default with the batch's own statistics, in training and evaluation alike: no running
    averages exist. Inside `fixed_statistics` with those given.

    >>> BatchNorm(3)(torch.randn(8, 3, 5, 5)).mean().abs() < 1e-6
    tensor(True)
    """

    def __init__(self, channels: int, eps: float = 1e-5):
        super().__init__()
        self.channels = channels
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"BatchNorm({self.channels}) takes (examples, {self.channels}, ...), "
                f"not {tuple(x.shape)}"
            )
        if _fused.get():
            return F.batch_norm(x, None, None, self.weight, self.bias, True, eps=self.eps)
        axes = [0, *range(2, x.dim())]
        mean, var = self.given() or (x.mean(axes, keepdim=True), None)
        centred = x - mean
        if var is None:
            var = centred.square().mean(axes, keepdim=True)
        self.note(mean, var)
        shape = [1, self.channels, *[1] * (x.dim() - 2)]
        scale = torch.rsqrt(var + self.eps) * self.weight.view(shape)
        return centred * scale + self.bias.view(shape)

    def given(self) -> MeanAndVariance | None:
        """Return the fixed statistics for this use of the layer, if there are any."""
        fixed = _fixed.get()
        return None if fixed is None else next(fixed[self])

    def note(self, mean: Tensor, var: Tensor) -> None:
        """Record the statistics that were used, inside `recorded_statistics`."""
        recorded = _recorded.get()
        if recorded is not None:
            recorded.setdefault(self, []).append((mean, var))

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}"


class WeightNorm(parametrizations._WeightNorm):
    """Torch's weight normalisation by plain operations: torch's own second derivatives are wrong.

    >>> layer = parametrizations.weight_norm(nn.Linear(4, 3))
    >>> before = layer.weight
    >>> use_plain_weight_norm(layer)
    >>> torch.allclose(layer.weight, before)
    True
    """

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / torch.norm_except_dim(weight_v, 2, self.dim))


def use_plain_weight_norm(model: nn.Module) -> None:
    """Let every weight normalisation of a model be computed such that it is differentiated."""
    for module in model.modules():
        if type(module) is parametrizations._WeightNorm:
            # They differ in nothing but what they compute with.
            module.__class__ = WeightNorm


@contextmanager
def fused_normalisation() -> Iterator[None]:
    """Normalise by the batch with torch's own kernel, for what is differentiated once."""
    token = _fused.set(True)
    try:
        yield
    finally:
        _fused.reset(token)


@contextmanager
def recorded_statistics() -> Iterator[Statistics]:
    """Collect the statistics that a forward pass inside the block uses."""
    statistics: Statistics = {}
    token = _recorded.set(statistics)
    try:
        yield statistics
    finally:
        _recorded.reset(token)


@contextmanager
def fixed_statistics(statistics: Statistics) -> Iterator[None]:
    """Normalise with the given statistics in forward passes inside the block."""
    token = _fixed.set({norm: iter(uses) for norm, uses in statistics.items()})
    try:
        yield
    finally:
        _fixed.reset(token)


def torch_norms(model: nn.Module) -> list[str]:
    """Return the names of torch.nn's batch normalisations in a model."""
    kind = nn.modules.batchnorm._BatchNorm
    return [name for name, module in model.named_modules() if isinstance(module, kind)]


def averaging_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return torch.nn's batch normalisations of a model that have averages of a training.

    In evaluation mode they normalise an example by these alone, which is inductive.
    """
    found = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return [m for m in found if m.running_mean is not None and bool(m.running_mean.any())]


def convert_batch_norm(model: nn.Module) -> nn.Module:
    """Replace every affine `torch.nn.BatchNorm*d` by `BatchNorm`, in place, and return the model.

    Running averages are dropped: the layers then use batch statistics, or the support set's.
    A layer that stands in several places still does.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    >>> convert_batch_norm(net)[1]
    BatchNorm(4, eps=1e-05)
    """
    ours: dict[nn.Module | None, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if not module.affine:
                name = name or "the model"
                raise ValueError(f"{name} has no scale and shift: build it with affine=True")
            norm = ours[module] = BatchNorm(module.num_features, module.eps)
            norm.weight, norm.bias = module.weight, module.bias
    for module in list(model.modules()):
        # Not named_children, which passes over a child that is there twice.
        for name, child in module._modules.items():
            module._modules[name] = ours.get(child, child)
    return ours.get(model, model)
