r"""The paper's blockwise inverse autoregressive flow, eq. (8).

$$\phi_i = z_i \odot \sigma(\alpha_i) + \mu_i, \qquad
  [\alpha_i, \mu_i] = d_i\big(\{e_j(z_j)\}_{j<i}\big).$$

It is a bijection, and cheap both ways. It is *not* a mirror map in general: its Jacobian is block
lower triangular, so that it is neither symmetric nor, for all z, positive definite; see
docs/theory.md for the counterexample, and `gradient_net` for maps that are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from metamirror.kronecker import FEW, KroneckerLinear, Shape, ShapeGroups, averaging
from metamirror.mirror_maps.base import Bounds, MirrorMap, check_point
from metamirror.mirror_maps.partition import Blocks, Partition
from metamirror.types import Params

Scale = Literal["bounded", "logistic", "exponential"]
Heads = Literal["one zero factor", "all zero factors", "random"]


def scale(kind: Scale, alpha: Tensor) -> Tensor:
    """sigma(alpha): 1 at alpha = 0 and below 2, or the paper's logistic, or the released exp."""
    if kind == "bounded":
        return 2 * torch.sigmoid(alpha)
    return torch.sigmoid(alpha) if kind == "logistic" else torch.exp(alpha)


def halved(shape: Shape) -> list[Shape]:
    """The shape at the four depths of an encoder: whole, a half, a quarter, an eighth."""
    return [tuple(max(1, n >> depth) for n in shape) for depth in range(4)]


class Encoders(nn.Module):
    """The encoders e_j of all pieces of one shape: three Kronecker-factored layers."""

    def __init__(self, count: int, shape: Shape, final_relu: bool):
        super().__init__()
        full, half, quarter, eighth = halved(shape)
        self.layers = nn.ModuleList(
            [
                KroneckerLinear(count, full, half, before_relu=True),
                KroneckerLinear(count, half, quarter, before_relu=True),
                KroneckerLinear(count, quarter, eighth, before_relu=final_relu),
            ]
        )
        self.final_relu = final_relu

    def forward(self, z: Tensor) -> Tensor:
        first, second, third = self.layers
        out: Tensor = third(second(first(z).relu()).relu())
        return (out.relu() if self.final_relu else out).flatten(1)


class Decoders(nn.Module):
    """The decoders d_i of all pieces of one shape: a trunk, and two heads for alpha and mu.

    The heads are the two halves of the one output layer that the paper's d_i ends in.
    """

    def __init__(self, count: int, shape: Shape, heads: Heads, input_relu: bool):
        super().__init__()
        full, half, quarter, eighth = halved(shape)
        self.inputs = eighth
        self.trunk = nn.ModuleList(
            KroneckerLinear(count, a, b, before_relu=True)
            for a, b in ((eighth, quarter), (quarter, half))
        )
        self.alpha = KroneckerLinear(count, half, full)
        self.mu = KroneckerLinear(count, half, full)
        self.input_relu = input_relu
        with torch.no_grad():
            for head in (self.alpha, self.mu):
                # A product of two zero factors has no gradient in either, ever: zero exactly one.
                zeroed = {"one zero factor": 1, "all zero factors": None, "random": 0}[heads]
                for factor in list(head.factors)[:zeroed]:
                    factor.zero_()
                if heads == "random":
                    head.factors[0].mul_(0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.reshape(x.shape[0], *self.inputs)
        first, second = self.trunk
        hidden = second(first(x.relu() if self.input_relu else x).relu()).relu()
        return self.alpha(hidden), self.mu(hidden)


class BlockIAF(MirrorMap):
    """blockIAF over any partition of the parameters into ordered blocks.

    Args:
        shapes: stored shapes of the parameters, in order.
        blocks: the partition; see `Partition`.
        scale: "bounded" (2 * logistic: exactly 1 at the start, below 2), "logistic" as in the
            paper, "exponential" as in its released code.
        heads: how the decoders' output layers start: with "one zero factor" the map starts as
            the identity (given a scale of 1) and trains; with "all zero factors", as released,
            it never trains beyond a diagonal affine map; "random" starts near a scaled identity.
        extra_relu: a ReLU on embeddings and on decoder inputs, as in the released code.
        modes: modes of single parameters where they differ from the stored shape.

    >>> g = BlockIAF({"a.weight": (4, 3), "a.bias": (4,), "b.weight": (2, 4)})
    >>> z = {"a.weight": torch.randn(4, 3), "a.bias": torch.randn(4), "b.weight": torch.randn(2, 4)}
    >>> all(torch.equal(g(z)[name], z[name]) for name in z)
    True
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        *,
        blocks: Blocks = "layer",
        scale: Scale = "bounded",
        heads: Heads = "one zero factor",
        extra_relu: bool = True,
        modes: Mapping[str, Shape] | None = None,
    ):
        super().__init__()
        for name, given, known in (("scale", scale, Scale), ("heads", heads, Heads)):
            if given not in get_args(known):
                raise ValueError(f"{name} is {given!r}; choose from {get_args(known)}")
        self.partition = Partition(shapes, blocks, modes)
        self.scale: Scale = scale
        first, *later = self.partition.blocks
        pieces = self.partition.pieces
        # The first block's decoder reads the empty set: its scale and shift are free.
        self.first = {name: pieces[name] for name in first}
        self.first_alpha = nn.ParameterList(torch.zeros(s) for s in self.first.values())
        self.first_mu = nn.ParameterList(torch.zeros(s) for s in self.first.values())

        encoded = {name: pieces[name] for block in self.partition.blocks[:-1] for name in block}
        self.encoded = ShapeGroups(encoded, encoded)
        self.encoders = nn.ModuleList(
            Encoders(len(names), shape, extra_relu) for shape, names in self.encoded.members.items()
        )
        decoded = {name: pieces[name] for block in later for name in block}
        self.decoded = ShapeGroups(decoded, decoded)
        self.decoders = nn.ModuleList(
            Decoders(len(names), shape, heads, extra_relu)
            for shape, names in self.decoded.members.items()
        )
        width = {name: halved(shape)[3] for name, shape in pieces.items()}
        size = {name: math.prod(shape) for name, shape in width.items()}
        self.later = later
        self.input_sizes = [[size[name] for name in block] for block in later]
        self.context: list[int] = []
        self.connections = nn.ModuleList()
        for before, block in zip(self.partition.blocks, later, strict=False):
            seen = sum(size[name] for name in before) + (self.context[-1] if self.context else 0)
            self.context.append(seen)
            connect = nn.Linear(seen, sum(size[name] for name in block))
            # As in KroneckerLinear: a decoder of few inputs must not start dead.
            few = torch.cat([torch.full((size[name],), size[name] <= FEW) for name in block])
            with torch.no_grad():
                connect.bias.masked_fill_(few, 1.0)
                connect.weight[few] = 0.1 * averaging(connect.weight[few])
            self.connections.append(connect)

    def prepare(self) -> dict[str, Any]:
        return {
            "first_scale": [scale(self.scale, alpha) for alpha in self.first_alpha],
        }

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        pieces = self.partition.split(z)
        scales, shifts = self._scales_and_shifts(pieces, prepared or self.prepare())
        return self.partition.join(
            {name: value * scales[name] + shifts[name] for name, value in pieces.items()}
        )

    def inverse(self, phi: Params) -> Params:
        """Blockwise substitution. Sweep i makes block i exact, since it reads earlier ones only."""
        check_point(phi, self.partition.shapes)
        target = self.partition.split(phi)
        prepared = self.prepare()
        z = target
        for _ in self.partition.blocks:
            scales, shifts = self._scales_and_shifts(z, prepared)
            z = {name: (value - shifts[name]) / scales[name] for name, value in target.items()}
        # Those of the last sweep are exact; before it, later blocks read what is not yet so.
        for name, found in scales.items():
            if found.device.type != "meta" and not bool((found > 0).all()):
                raise ValueError(
                    f"a scale of {name} has underflowed to zero: the map has no inverse there in "
                    f"this precision"
                )
        return self.partition.join(z)

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds | None:
        """None: the shift's slope in earlier blocks is unbounded, except where there are none."""
        if self.later or not current:
            return None
        self.check_parameters()
        scales = [scale(self.scale, alpha) for alpha in self.first_alpha]
        return (min(float(s.min()) for s in scales), max(float(s.max()) for s in scales))

    def _scales_and_shifts(
        self, z: Mapping[str, Tensor], prepared: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        scales = dict(zip(self.first, prepared["first_scale"], strict=True))
        shifts: dict[str, Tensor] = dict(zip(self.first, self.first_mu, strict=True))
        if not self.later:
            return scales, shifts
        embedding = self._embed(z)
        inputs: dict[str, Tensor] = {}
        for block, sizes, seen, connect in zip(
            self.later, self.input_sizes, self.context, self.connections, strict=True
        ):
            inputs.update(zip(block, connect(embedding[:seen]).split(sizes), strict=True))
        for (_, names), decode in zip(self.decoded.members.items(), self.decoders, strict=True):
            alpha, mu = decode(torch.stack([inputs[name] for name in names]))
            scales.update(zip(names, scale(self.scale, alpha).unbind(0), strict=True))
            shifts.update(zip(names, mu.unbind(0), strict=True))
        return scales, shifts

    def _embed(self, z: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of all blocks but the last, in order: every encoder runs at once."""
        found: dict[str, Tensor] = {}
        for stacked, names, encode in zip(
            self.encoded.stack(z), self.encoded.members.values(), self.encoders, strict=True
        ):
            found.update(zip(names, encode(stacked).unbind(0), strict=True))
        return torch.cat([found[name] for name in self.encoded.shapes])
