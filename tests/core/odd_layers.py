"""Odd models: rows of the table that `test_odd_tasks` walks."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.core.odd_models import (
    WAYS,
    Case,
    Cubed,
    Made,
    convolved,
    headed,
    images,
    mlp,
    numbers,
    sequence,
    series,
    volumes,
    words,
)

BATCH, OFF = "convert_batch_norm", "or leave vectorize off"


def used(norm: Any) -> nn.Module:
    """A normalisation whose running statistics are no longer those of its start."""
    norm.running_mean += 0.3
    norm.running_var *= 1.7
    return norm


def steps(cell: nn.Module, x: Tensor) -> Tensor:
    state, found = None, []
    for now in x.unbind(1):
        state = cell(now, state)
        found.append(state)
    return torch.stack(found, 1)


def attend(qkv: nn.Module, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*qkv(x).chunk(3, -1))


SEQUENCES = {
    "attention": Case(
        lambda: sequence(nn.MultiheadAttention(4, 2, batch_first=True), lambda m, x: m(x, x, x)),
        series,
    ),
    "attention as a function": Case(lambda: sequence(nn.Linear(4, 12), attend), series),
    "a transformer layer, with dropout": Case(
        lambda: sequence(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
        series,
    ),
    "a transformer layer in evaluation": Case(
        lambda: sequence(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)).eval(),
        series,
    ),
    "an lstm": Case(lambda: sequence(nn.LSTM(4, 4, batch_first=True)), series, under_vmap=OFF),
    "a gru": Case(lambda: sequence(nn.GRU(4, 4, batch_first=True)), series, under_vmap=OFF),
    "a recurrent cell": Case(lambda: sequence(nn.GRUCell(4, 4), steps), series),
    "an embedding bag": Case(
        lambda: nn.Sequential(nn.EmbeddingBag(11, 4), nn.Tanh(), nn.Linear(4, WAYS)),
        words,
        refused=r"0 \(EmbeddingBag\) twice: use an nn.Embedding and a mean or sum instead, or",
    ),
    "an embedding with sparse gradients": Case(
        lambda: sequence(nn.Embedding(11, 4, sparse=True)),
        words,
        refused="body has sparse gradients.*sparse=False",
    ),
}

LAYERS = {
    "batch norm 1d": Case(lambda: mlp(nn.BatchNorm1d(6), nn.Tanh()), under_vmap=BATCH),
    "batch norm 2d": Case(
        lambda: convolved(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), features=32),
        images,
        under_vmap=BATCH,
    ),
    "batch norm 3d": Case(
        lambda: convolved(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), features=16),
        volumes,
        under_vmap=BATCH,
    ),
    "batch norm 1d in evaluation": Case(lambda: mlp(used(nn.BatchNorm1d(6)), nn.Tanh()).eval()),
    "batch norm 2d in evaluation": Case(
        lambda: convolved(nn.Conv2d(1, 2, 3), used(nn.BatchNorm2d(2)), features=32).eval(),
        images,
    ),
    "batch norm 3d in evaluation": Case(
        lambda: convolved(nn.Conv3d(1, 2, 2), used(nn.BatchNorm3d(2)), features=16).eval(),
        volumes,
    ),
    "instance norm": Case(
        lambda: convolved(
            nn.Conv2d(1, 2, 3),
            nn.InstanceNorm2d(2, affine=True, track_running_stats=True),
            features=32,
        ),
        images,
        under_vmap="track_running_stats=False",
    ),
    "instance norm without averages": Case(
        lambda: convolved(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, affine=True), features=32),
        images,
    ),
    "batch norm without averages": Case(
        lambda: convolved(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), features=32
        ),
        images,
    ),
    "group norm": Case(
        lambda: convolved(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), features=64), images
    ),
    "layer norm": Case(lambda: mlp(nn.LayerNorm(6), nn.Tanh())),
    "rms norm": Case(lambda: mlp(nn.RMSNorm(6), nn.Tanh())),
    "dropout": Case(lambda: mlp(nn.Tanh(), nn.Dropout(0.5))),
    "a random activation": Case(lambda: mlp(nn.RReLU()), under_vmap=r"1 \(RReLU\).*vectorize off"),
    "an activation in place": Case(lambda: mlp(nn.ReLU(inplace=True))),
    "convolution 1d": Case(
        lambda: convolved(nn.Conv1d(1, 2, 3), features=8), lambda d: d.real(1, 6)
    ),
    "convolution 3d": Case(lambda: convolved(nn.Conv3d(1, 2, 2), features=16), volumes),
    "transposed convolution": Case(
        lambda: convolved(nn.ConvTranspose2d(1, 2, 3, stride=2), features=98),
        lambda d: d.real(1, 3, 3),
    ),
    "pooling with indices": Case(
        lambda: Made(unpooled, first=nn.Conv2d(1, 2, 3, padding=1), head=nn.Linear(72, WAYS)),
        images,
    ),
    "a fourier transform": Case(
        lambda: headed(
            filtered, size=nn.Parameter(torch.ones(4)), angle=nn.Parameter(torch.ones(4))
        )
    ),
    "distances between points": Case(
        lambda: headed(lambda m, x: torch.cdist(x, m.head.weight) @ m.head.weight),
        refused="cannot differentiate Made twice: replace it, or choose adjoint='first'.*cdist",
    ),
    "a function with one derivative": Case(
        lambda: mlp(Made(lambda m, x: Cubed.apply(x).tanh())),
        refused=r"1 \(Made\) twice: replace it, or choose adjoint='first'.*once_differentiable",
    ),
}


def unpooled(m: Any, x: Tensor) -> Tensor:
    small, where = F.max_pool2d(m.first(x), 2, return_indices=True)
    return m.head(F.max_unpool2d(small.tanh(), where, 2).flatten(1))


def filtered(m: Any, x: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x) * torch.polar(m.size, m.angle), n=6)


def tied() -> nn.Module:
    model = Made(lambda m, x: m.net(m.last(m.first(x).tanh())), net=mlp())
    model.first, model.last = nn.Linear(4, 4), nn.Linear(4, 4)
    model.last.weight = model.first.weight
    return model


def frozen() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)
    return model


def normed(norm: Any, *args: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is old
        return nn.Sequential(norm(nn.Linear(4, 6), *args), nn.Tanh(), nn.Linear(6, WAYS))


def beside(**parts: Any) -> nn.Module:
    """A network, and something else."""
    return Made(lambda m, x: m.net(x) * getattr(m, "scale", 1), net=mlp(), **parts)


def of_lists(m: Any, x: Tensor) -> Tensor:
    return (x @ m.weights[0]).tanh() @ m.weights[1] + m.others["bias"]


def changed_in_place(m: Any, x: Tensor) -> Tensor:
    m.mean.mul_(0.9).add_(0.1 * x.mean(0))
    return m.net(x - m.mean)


def changed(m: Any, x: Tensor) -> Tensor:
    m.mean = 0.9 * m.mean + 0.1 * x.mean(0)
    return m.net(x - m.mean)


PARAMETERS = {
    "tied weights": Case(tied),
    "frozen parameters": Case(frozen),
    "a temperature without axes": Case(lambda: beside(scale=nn.Parameter(torch.tensor(1.5)))),
    "parameters that are not used": Case(lambda: beside(other=nn.Linear(3, 2))),
    "a parameter without numbers": Case(
        lambda: beside(other=nn.Parameter(torch.empty(0, 3))),
        refused=r"other has shape \(0, 3\), and no numbers to adapt: remove or freeze it",
    ),
    "no parameters": Case(nn.Flatten, refused="no parameter adapts: the model has none"),
    "lists and dicts of parameters": Case(
        lambda: Made(
            of_lists,
            weights=nn.ParameterList([torch.randn(4, 6), torch.randn(6, WAYS)]),
            others=nn.ParameterDict({"bias": torch.zeros(WAYS)}),
        )
    ),
    "complex parameters": Case(
        lambda: headed(
            lambda m, x: (x * m.w).abs(), w=nn.Parameter(torch.ones(6, dtype=torch.cdouble))
        ),
        refused="w is torch.complex128, and what adapts is real.*view_as_complex",
    ),
    "parameters that come later": Case(
        lambda: nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.Linear(6, WAYS)),
        refused=r"0.weight has no shape yet: run the model on one example before",
    ),
    "weight norm": Case(lambda: normed(parametrizations.weight_norm)),
    "weight norm, as it was": Case(
        lambda: normed(nn.utils.weight_norm), refused="0 has torch.nn.utils.weight_norm.*use torch"
    ),
    # In training torch takes its vectors for constants, and no value has the gradient it gives.
    "spectral norm": Case(lambda: normed(parametrizations.spectral_norm).eval()),
    "orthogonal weights": Case(lambda: normed(parametrizations.orthogonal)),
    "a buffer that changes in place": Case(
        lambda: Made(changed_in_place, net=mlp(), mean=nn.Buffer(torch.ones(4))), under_vmap=OFF
    ),
    "a buffer that is replaced": Case(
        lambda: Made(changed, net=mlp(), mean=nn.Buffer(torch.ones(4)))
    ),
    "an input that is changed": Case(
        lambda: Made(lambda m, x: m.net(x.mul_(2)), net=mlp()), refused="changes its input in place"
    ),
}


def again(m: Any, x: Tensor, reentrant: bool) -> Tensor:
    return m.head(checkpoint(m.first, x, use_reentrant=reentrant))


WRAPPED = {
    "a checkpoint": Case(
        lambda: Made(lambda m, x: again(m, x, False), first=mlp(), head=nn.Linear(3, WAYS)),
        refused="first is under torch.utils.checkpoint.*adjoint='rematerialised'",
    ),
    "a checkpoint of the old kind": Case(
        lambda: Made(lambda m, x: again(m, x, True), first=mlp(), head=nn.Linear(3, WAYS)),
        refused="Made is under torch.utils.checkpoint.*adjoint='rematerialised'",
    ),
    "a scripted model": Case(lambda: torch.jit.script(mlp()), refused="the model is scripted"),
    "a scripted part": Case(
        lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, WAYS))
    ),
    "a compiled model": Case(
        lambda: torch.compile(mlp()), refused="the model is compiled.*give it uncompiled"
    ),
    "a parallel model": Case(
        lambda: nn.DataParallel(mlp()), refused="in DataParallel.*what is inside, model.module"
    ),
    "a model that cannot be copied": Case(
        lambda: beside(lock=threading.Lock()), numbers, refused="cannot be copied.*copy=False"
    ),
}

MODELS = {**SEQUENCES, **LAYERS, **PARAMETERS, **WRAPPED}
