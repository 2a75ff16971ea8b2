"""Mode products: Kronecker-factored linear maps on tensors, several tensors of a shape at once."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]
M = TypeVar("M", bound=nn.Module)

FEW = 8


def fold(shape: Sequence[int]) -> Shape:
    """Return the modes of a parameter's factors: scalars as vectors, kernels as (out, in, rest).

    >>> fold((64, 3, 3, 3)), fold(()), fold((5, 1600))
    ((64, 3, 9), (1,), (5, 1600))
    """
    if len(shape) <= 3:
        return tuple(shape) or (1,)
    return (shape[0], shape[1], math.prod(shape[2:]))


def halved(shape: Shape) -> list[Shape]:
    """Return the shape at the four depths of blockIAF's encoders: whole, half, quarter, eighth.

    >>> halved((64, 3))
    [(64, 3), (32, 1), (16, 1), (8, 1)]
    """
    return [tuple(max(1, n >> depth) for n in shape) for depth in range(4)]


def module_list(modules: Iterable[M]) -> Sequence[M]:
    """Return an `nn.ModuleList` whose type says what it holds."""
    return cast(Sequence[M], nn.ModuleList(modules))


def mode_product(x: Tensor, matrix: Tensor, mode: int) -> Tensor:
    """Multiply one mode of each stacked tensor: x (g, d_1..d_O), matrix (g, out, d_mode).

    >>> mode_product(torch.ones(1, 2, 3), torch.ones(1, 4, 3), 2).shape
    torch.Size([1, 2, 4])
    """
    if len(matrix) == 1 and (mode == x.dim() - 1 or matrix.numel() > x.numel()):
        # As rows times one matrix: under vmap it is shared by all tasks, and never copied.
        rows = x.movedim(mode, -1) @ matrix[0].mT
        return rows.movedim(-1, mode)
    moved = x.movedim(mode, 1)
    product = matrix @ moved.flatten(2) if moved.dim() > 2 else matrix @ moved.unsqueeze(2)
    return product.reshape(product.shape[:2] + moved.shape[2:]).movedim(1, mode)


def kronecker_product(x: Tensor, factors: Sequence[Tensor], first_mode: int = 1) -> Tensor:
    """Return (F_1 kron .. kron F_O) vec(x) for each stacked tensor, without the matrix.

    The factors belong to the modes from `first_mode` on; modes before it are left alone.
    """
    for mode, factor in enumerate(factors, start=first_mode):
        x = mode_product(x, factor, mode)
    return x


def transposed(factors: Sequence[Tensor]) -> list[Tensor]:
    """Return the factors of the transposed map."""
    return [factor.mT for factor in factors]


def squared_spectrum(factors: Sequence[Tensor]) -> tuple[float, float]:
    """Return the extreme squared singular values of a stack of Kronecker products."""
    values = [torch.linalg.svdvals(f).square() for f in factors]
    low = torch.stack([v.amin(-1) for v in values]).prod(0).min()
    high = torch.stack([v.amax(-1) for v in values]).prod(0).max()
    return float(low), float(high)


def averaging(matrix: Tensor) -> Tensor:
    """Return positive weights with rows that sum to one, from a random matrix."""
    return matrix.abs() / matrix.abs().sum(-1, keepdim=True)


class KroneckerLinear(nn.Module):
    """`count` affine maps from tensors of one shape to tensors of another, Kronecker-factored.

    The bias has the full output shape. Weights start so that a ReLU network keeps its variance.

    Args:
        count: how many tensors of this shape are stacked.
        inputs: shape of one input tensor.
        outputs: shape of one output tensor, of the same order.
        before_relu: whether a ReLU follows. A handful of units may then all start dead, and stay
            so: a layer with at most `FEW` starts as weighted averages plus 1.
        by_fan_in: store each factor times its number of inputs, so that an optimiser that moves
            every entry alike moves the output alike at every width; see `matrices`.
        bias: whether there is one.
        units: what the product is multiplied by, one number for each of the `count` maps.
    """

    units: Tensor | None

    def __init__(
        self,
        count: int,
        inputs: Shape,
        outputs: Shape,
        *,
        before_relu: bool = False,
        by_fan_in: bool = False,
        bias: bool = True,
        units: Tensor | None = None,
    ):
        super().__init__()
        self.fan_in = [n if by_fan_in else 1 for n in inputs]
        factors = [
            torch.randn(count, m, n) / math.sqrt(n) for n, m in zip(inputs, outputs, strict=True)
        ]
        factors[0].mul_(math.sqrt(2))
        alive = before_relu and math.prod(outputs) <= FEW
        if alive:
            factors = [averaging(factor) for factor in factors]
        self.factors = nn.ParameterList(f * n for f, n in zip(factors, self.fan_in, strict=True))
        self.bias = nn.Parameter(torch.full((count, *outputs), float(alive))) if bias else None
        self.outputs = (count, *outputs)
        self.register_buffer("units", None if units is None else units.view(-1, 1, 1))

    def matrices(self) -> list[Tensor]:
        r"""Return the factors F = V / n of the stored V, with n inputs each.

        Adam moves every entry of V by about the learning rate. The gradient aligns the signs of
        the n changes that add up to an output, so that without the division an output would move
        n times as far (Yang and Hu 2021).
        """
        found = [f if n == 1 else f / n for f, n in zip(self.factors, self.fan_in, strict=True)]
        if self.units is not None:
            found[0] = found[0] * self.units
        return found

    def constant(self) -> Tensor:
        """Return the bias, or zeros."""
        return self.factors[0].new_zeros(self.outputs) if self.bias is None else self.bias

    def forward(self, x: Tensor, i: int) -> Tensor:
        """Return (F_1 kron .. kron F_O) x + b, the i-th map of one tensor."""
        factors = [factor[i : i + 1] for factor in self.matrices()]
        product = kronecker_product(x.unsqueeze(0), factors).squeeze(0)
        return product if self.bias is None else product + self.bias[i]


class ShapeGroups:
    """Named tensors grouped by their modes, so that equal ones go through one batched product.

    Args:
        shapes: the tensors' stored shapes by name.
        modes: modes of single tensors where they are not `fold` of the stored shape.

    >>> groups = ShapeGroups({"a": (4, 3), "b": (4,), "c": (4, 3)})
    >>> groups.members
    {(4, 3): ['a', 'c'], (4,): ['b']}
    """

    def __init__(self, shapes: Mapping[str, Shape], modes: Mapping[str, Shape] | None = None):
        self.shapes = dict(shapes)
        self.members: dict[Shape, list[str]] = {}
        for name, shape in shapes.items():
            folded = tuple((modes or {}).get(name, fold(shape)))
            if math.prod(folded) != math.prod(shape):
                raise ValueError(f"the modes {folded} of {name} do not hold its shape {shape}")
            self.members.setdefault(folded, []).append(name)
        self.places = {
            name: (group, row)
            for group, names in enumerate(self.members.values())
            for row, name in enumerate(names)
        }
        """Where each tensor stands: its group, and its row in the group's stack."""

    def of(self, name: str, modules: Sequence[nn.Module]) -> Callable[[Tensor], Any]:
        """Apply a group's module, which takes a tensor and its row, to this tensor."""
        group, row = self.places[name]
        return lambda x: modules[group](x, row)

    def stack(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Return one tensor (members, *modes) per group."""
        return [
            torch.stack([tensors[name].reshape(modes) for name in names])
            for modes, names in self.members.items()
        ]

    def unstack(self, stacked: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the inverse of `stack`, in the order of the names given at first."""
        found = {
            name: tensor
            for names, tensors in zip(self.members.values(), stacked, strict=True)
            for name, tensor in zip(names, tensors.unbind(0), strict=True)
        }
        return {name: found[name].reshape(shape) for name, shape in self.shapes.items()}
