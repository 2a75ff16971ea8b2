r"""Meta-LSTM: an LSTM whose cell state is the parameters, and whose gates decide each update.

$$\phi \leftarrow f \odot \phi - i \odot \nabla L, \qquad
  f, i = \sigma(W\,[h, \phi, f', i'] + b)$$

with $f', i'$ the gates of the step before (each gate sees its own), and h the output of an LSTM
that reads gradient and support loss of this step, both as log-magnitude and sign. All weights are
shared by the coordinates of $\phi$, each of which has a memory of its own. With f = 1 and
$i = \alpha$ this is gradient descent.

The equation is the paper's; the released code gives the gates their former logits in place of their
former values, and draws the biases at random: f from logits between 4 and 5, i from -5 to -4. Here
f has `forget_bias` and i starts at the inner step size.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from metamirror.core.geometry import Geometry
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params
from metamirror.methods.registry import Method, Parts

INPUTS = 4
"""Two numbers for the gradient, two for the loss."""
SMALL = 0.01
"""Up to where weights are drawn, either way."""


@dataclass(frozen=True)
class Options:
    """Options of `metalstm`.

    Attributes:
        hidden: size of the memory that the first LSTM has for each parameter.
        forget_bias: logit at which the forget gate starts. At 5 a step keeps 0.993 of a parameter.
    """

    hidden: int = 20
    forget_bias: float = 5.0


class MemoryState(NamedTuple):
    """The parameters; for each of their coordinates, the first LSTM's memory and the last gates."""

    z: Params
    output: Tensor
    cell: Tensor
    gates: Tensor


class LSTMGeometry(Geometry[MemoryState]):
    """A learned optimiser with memory, the same for every coordinate.

    Args:
        lr: where the input gate starts.
        options: sizes and the other gate's start.
    """

    any_outputs = True

    def __init__(self, lr: float, options: Options):
        super().__init__()
        size = options.hidden
        self.lr = lr
        # Of the first LSTM: input, forget and output gate, and candidate, one under the other.
        self.weight = nn.Parameter(torch.empty(4 * size, INPUTS + size).uniform_(-SMALL, SMALL))
        self.bias = nn.Parameter(torch.empty(4 * size).uniform_(-SMALL, SMALL))
        # Of f and i: for the first LSTM's output, for phi, and for the gate's own last value.
        self.gate_weight = nn.Parameter(torch.empty(2, size + 2).uniform_(-SMALL, SMALL))
        start = [options.forget_bias, math.log(lr / (1 - lr))]
        self.gate_bias = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def begin(self, theta: Params, prepared: None, noise: Params) -> MemoryState:
        like, count = next(iter(theta.values())), sum(p.numel() for p in theta.values())
        blank = like.new_zeros(count, len(self.bias) // 4)
        return MemoryState(theta, blank, blank, like.new_zeros(count, 2))

    def primal(self, state: MemoryState) -> Params:
        return state.z

    def step(
        self, state: MemoryState, grad: Params, *, lr: float, loss: Tensor, k: int
    ) -> MemoryState:
        # All coordinates of all tensors at once.
        phi, slope = (torch.cat([p[name].flatten() for name in state.z]) for p in (state.z, grad))
        seen = torch.cat([preprocessed(slope), preprocessed(loss).expand(len(slope), 2)], 1)
        i, f, o, new = linear(torch.cat([seen, state.output], 1), self.weight, self.bias).chunk(
            4, 1
        )
        cell = f.sigmoid() * state.cell + i.sigmoid() * new.tanh()
        output = o.sigmoid() * cell.tanh()
        known, former = self.gate_weight[:, :-1], self.gate_weight[:, -1]
        logits = linear(torch.cat([output, phi[:, None]], 1), known, self.gate_bias)
        gates = (logits + former * state.gates).sigmoid()
        moved = gates[:, 0] * phi - (lr / self.lr) * gates[:, 1] * slope
        parts = moved.split([p.numel() for p in state.z.values()])
        z = {
            name: part.view(p.shape) for (name, p), part in zip(state.z.items(), parts, strict=True)
        }
        return MemoryState(z, output, cell, gates)


def preprocessed(x: Tensor, p: float = 10.0) -> Tensor:
    r"""Return log-magnitude and sign of x, along a new last axis.

    $(\log|x| / p, \mathrm{sign}\,x)$ where $|x| \ge e^{-p}$, and $(-1, e^p x)$ below: the two meet.

    >>> preprocessed(torch.tensor([1.0, -1.0, 0.0]))
    tensor([[ 0.,  1.],
            [ 0., -1.],
            [-1.,  0.]])
    """
    magnitude = x.abs().clamp_min(math.exp(-p)).log() / p
    return torch.stack([magnitude, (math.exp(p) * x).clamp(-1, 1)], -1)


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn the optimiser of all parameters."""
    if not 0 < settings.lr < 1:
        raise ValueError(
            f"lr is {settings.lr}; metalstm's input gate starts there: above 0 and below 1"
        )
    if options.hidden < 1:
        raise ValueError(f"metalstm:hidden is {options.hidden}; it must be at least 1")
    if not math.isfinite(options.forget_bias):
        raise ValueError(f"metalstm:forget_bias is {options.forget_bias}; it must be finite")
    return Parts(model, LSTMGeometry(settings.lr, options))


METHOD = Method(
    key="metalstm",
    title="Meta-LSTM",
    optimizer="LSTM",
    geometry="NN-based gates, with memory",
    paper="Ravi, Larochelle 2017",
    reported="43.44 ± 0.77 / 60.60 ± 0.71, conv4",
    build=build,
    options=Options,
    recipe={"clip_norm": 0.25},
    # The authors take gradient and loss of the learner as constants.
    defaults={"adjoint": "first"},
    group="relative",
)
