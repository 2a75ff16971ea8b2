r"""MetaKFO: the gradient passed through a network of Kronecker-factored layers.

Each tensor's gradient is a stack of matrices G (input channels by kernel positions for a
convolution, shared by its output channels; the matrix itself for a linear layer; a column for a
vector). The linear form is $L^\top L\, G\, R^\top R$, positive semidefinite, with L and R starting
at the identity. The non-linear form adds a ReLU stack without biases, so that it scales with the
gradient whatever its size; its last layer starts at zero in one of its two factors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metamirror.core.geometry import Geometry, moved
from metamirror.core.mirror_map import MirrorMap
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import (
    Shape,
    ShapeGroups,
    fold,
    kronecker_product,
    module_list,
    transposed,
)
from metamirror.methods.named_parameters import learned, modes_of
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.quadratic import KroneckerMetric, Linear


@dataclass(frozen=True)
class Options:
    """Options of `metakfo`.

    Attributes:
        psd: use L'L and R'R in the linear form, so that it never turns a gradient around.
        hidden: hidden layers of the non-linear stack; 0 is the linear form, 2 is typical.
        adapt_transform: from the second step on, the transform first takes a step of its own on
            the support loss, as the authors' scripts do.
    """

    psd: bool = True
    hidden: int = 0
    adapt_transform: bool = False


def matrix_modes(shape: Shape) -> Shape:
    """Return (batch, n, m), the stack of matrices as which a gradient of this shape is treated.

    >>> matrix_modes((64, 3, 3, 3)), matrix_modes((5, 1600)), matrix_modes((64,))
    ((64, 3, 9), (1, 5, 1600), (1, 64, 1))
    """
    return fold(shape) if len(shape) >= 3 else (1, *shape, *[1] * (2 - len(shape)))


USES = 20
"""How often a factor is applied in an outer step, at the least: four tasks of five steps."""


class KroneckerTransform(nn.Module):
    """Gradients to directions: one network per tensor, several tensors of a shape at once."""

    def __init__(self, shapes: Params, modes: Mapping[str, Shape], psd: bool, hidden: int):
        super().__init__()
        stored = {name: tuple(t.shape) for name, t in shapes.items()}
        self.modes = {name: matrix_modes(modes.get(name, s)) for name, s in stored.items()}
        self.groups = ShapeGroups(stored, self.modes)
        self.psd = psd
        stacks = [(len(names), n, m) for (_, n, m), names in self.groups.members.items()]
        self.linear = module_list(
            nn.ParameterList(torch.eye(size).repeat(count, 1, 1) for size in sizes)
            for count, *sizes in stacks
        )
        self.stacks = module_list(_hidden_layers(*stack, hidden) for stack in stacks)

    def chains(self) -> list[list[list[Tensor]]]:
        """Return the linear form of each group: factors to apply one after the other."""
        if not self.psd:
            return [[list(linear)] for linear in self.linear]
        found = []
        for shape, linear in zip(self.groups.members, self.linear, strict=True):
            # L'L is worth its product where L has fewer rows to be applied to, all in all.
            rows = USES * math.prod(shape)
            whole = all(f.shape[-1] ** 2 <= rows for f in linear)
            factors = list(linear)
            found.append([[f.mT @ f for f in factors]] if whole else [factors, transposed(factors)])
        return found

    def forward(self, grad: Params, chains: list[list[list[Tensor]]] | None = None) -> Params:
        """Return the direction; `chains` are those of `chains()`, where they are at hand."""
        outputs = []
        for g, chain, stack in zip(
            self.groups.stack(grad), chains or self.chains(), self.stacks, strict=True
        ):
            output = hidden = g
            for factors in chain:
                output = kronecker_product(output, factors, first_mode=2)
            for depth, layer in enumerate(stack):
                hidden = hidden if depth == 0 else hidden.relu()
                hidden = kronecker_product(hidden, list(layer), first_mode=2)
            outputs.append(output + hidden if len(stack) else output)
        return self.groups.unstack(outputs)

    def metric(self) -> KroneckerMetric:
        """Return the linear form as a map: S = I kron L kron R, so that P = S'S."""
        factors = {
            name: [torch.eye(shape[0]).to(pair[0]), *(factor[i] for factor in pair)]
            for (shape, names), pair in zip(self.groups.members.items(), self.linear, strict=True)
            for i, name in enumerate(names)
        }
        return KroneckerMetric(self.groups.shapes, factors, self.modes)


def _hidden_layers(count: int, n: int, m: int, hidden: int) -> Any:
    layers = nn.ModuleList()
    for depth in range(hidden + 1 if hidden else 0):
        left = torch.randn(count, n, n) * math.sqrt(2 / n)
        right = torch.randn(count, m, m) / math.sqrt(m)
        # Zero in exactly one factor: two zeros would have no gradient, ever.
        layers.append(nn.ParameterList([left * (depth < hidden), right]))
    return layers


class TransformState(NamedTuple):
    """The parameters, and either what was prepared or, where it adapts, the transform's own.

    `xi` are its parameters and `previous` the gradient of the step before.
    """

    z: Params
    prepared: Any
    xi: Params
    previous: Params | None


class TransformGeometry(Geometry[TransformState]):
    """A learned network in place of the preconditioner."""

    def __init__(self, transform: KroneckerTransform, adapt_transform: bool):
        super().__init__()
        self.transform = transform
        self.adapt_transform = adapt_transform

    def prepare(self, theta: Params | None) -> Any:
        return None if self.adapt_transform else self.transform.chains()

    def begin(self, theta: Params, prepared: Any, noise: Params) -> TransformState:
        xi: Params = {}
        if self.adapt_transform:
            xi |= self.transform.named_parameters()
        return TransformState(theta, prepared, xi, None)

    def primal(self, state: TransformState) -> Params:
        return state.z

    def step(
        self, state: TransformState, grad: Params, *, lr: float, loss: Tensor, k: int
    ) -> TransformState:
        if not self.adapt_transform:
            return state._replace(z=moved(state.z, self.transform(grad, state.prepared), lr))
        xi = self._adapt(state, grad, lr)
        return TransformState(moved(state.z, self._transform(xi, grad), lr), None, xi, grad)

    def _adapt(self, state: TransformState, grad: Params, lr: float) -> Params:
        r"""Take one descent step of the transform's own parameters $\xi$ on the support loss.

        They entered $\phi^{(k)} = \phi^{(k-1)} - \alpha P_\xi(G^{(k-1)})$, so their gradient is
        that of $-\alpha \langle P_\xi(G^{(k-1)}), G^{(k)} \rangle$. There is none before a step.
        """
        previous = state.previous
        if previous is None:
            return state.xi

        def loss_change(xi: Params) -> Tensor:
            change = self._transform(xi, previous)
            return -lr * torch.stack([(change[n] * g).sum() for n, g in grad.items()]).sum()

        slope = torch.func.grad(loss_change)(state.xi)
        return moved(state.xi, slope, lr)

    def _transform(self, xi: Params, grad: Params) -> Params:
        direction: Params = functional_call(self.transform, xi, (grad,))
        return direction

    def candidate_mirror_map(self, theta: Params) -> MirrorMap | None:
        """Return a map only for a constant linear transform, whose h is quadratic."""
        if self.adapt_transform or any(self.transform.stacks):
            return None
        return self.transform.metric() if self.transform.psd else Linear(self.transform)


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn a transform for every parameter of the model."""
    if options.hidden < 0:
        raise ValueError(f"metakfo:hidden is {options.hidden}; it must be at least 0")
    transform = KroneckerTransform(learned(model), modes_of(model), options.psd, options.hidden)
    return Parts(model, TransformGeometry(transform, options.adapt_transform))


METHOD = Method(
    key="metakfo",
    title="MetaKFO",
    optimizer="NN-transformed GD",
    geometry="NN-based gradient transformation",
    paper="Arnold, Iqbal, Sha 2021",
    build=build,
    options=Options,
    published={5: "64.9"},
    group="paper",
    shaped=True,
)
