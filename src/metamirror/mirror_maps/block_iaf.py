r"""The paper's blockwise inverse autoregressive flow, eq. (8).

$$\phi_i = z_i \odot \sigma(\alpha_i) + \mu_i, \qquad
  [\alpha_i, \mu_i] = d_i\big(\{e_j(z_j)\}_{j<i}\big).$$

It is a bijection, and cheap both ways. It is *not* a mirror map in general: its Jacobian is block
lower triangular, so that it is neither symmetric nor, for all z, positive definite; see
docs/theory.md for the counterexample, and `gradient_net` for maps that are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import FEW, KroneckerLinear, Shape, ShapeGroups, averaging
from metamirror.linalg.kronecker_layers import Layer, layer_of, side_by_side
from metamirror.mirror_maps.base import Bounds, MirrorMap, check_point
from metamirror.mirror_maps.kernels.block_iaf import FlowPass, clusters_of, halved
from metamirror.mirror_maps.kernels.one_operation import one_pass
from metamirror.mirror_maps.partition import Blocks, Partition

Scale = Literal["bounded", "logistic", "exponential"]
Heads = Literal["one zero factor", "all zero factors", "random"]

# c with sigma' = sigma (1 - c sigma).
CURVATURE: dict[Scale, float] = {"bounded": 0.5, "logistic": 1.0, "exponential": 0.0}


def scale(kind: Scale, alpha: Tensor) -> Tensor:
    """sigma(alpha): 1 at alpha = 0 and below 2, or the paper's logistic, or the released exp."""
    if kind == "bounded":
        return 2 * torch.sigmoid(alpha)
    return torch.sigmoid(alpha) if kind == "logistic" else torch.exp(alpha)


# Within the class the name is an argument's.
scale_of = scale


class Coders(nn.Module):
    """Encoders or decoders of all pieces of one shape."""

    def stack(self) -> list[list[KroneckerLinear]]:
        """The layers, in order; several where they read the same input."""
        raise NotImplementedError


class Encoders(Coders):
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

    def stack(self) -> list[list[KroneckerLinear]]:
        return [[layer] for layer in cast(Iterable[KroneckerLinear], self.layers)]


class Decoders(Coders):
    """The decoders d_i of all pieces of one shape: a trunk, and two heads for alpha and mu.

    The heads are the two halves of the one output layer that the paper's d_i ends in.
    """

    def __init__(self, count: int, shape: Shape, heads: Heads):
        super().__init__()
        full, half, quarter, eighth = halved(shape)
        self.trunk = nn.ModuleList(
            KroneckerLinear(count, a, b, before_relu=True)
            for a, b in ((eighth, quarter), (quarter, half))
        )
        self.alpha = KroneckerLinear(count, half, full)
        self.mu = KroneckerLinear(count, half, full)
        with torch.no_grad():
            for head in (self.alpha, self.mu):
                # A product of two zero factors has no gradient in either, ever: zero exactly one.
                zeroed = {"one zero factor": 1, "all zero factors": None, "random": 0}[heads]
                for factor in list(head.factors)[:zeroed]:
                    factor.zero_()
                if heads == "random":
                    head.factors[0].mul_(0.1)

    def stack(self) -> list[list[KroneckerLinear]]:
        trunk = [[layer] for layer in cast(Iterable[KroneckerLinear], self.trunk)]
        return [*trunk, [self.alpha, self.mu]]


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

    connection_outputs: Tensor
    connection_inputs: Tensor

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
            Decoders(len(names), shape, heads) for shape, names in self.decoded.members.items()
        )
        width = {name: halved(shape)[3] for name, shape in pieces.items()}
        size = {name: math.prod(shape) for name, shape in width.items()}
        self.connections = nn.ModuleList()
        seen = 0
        for before, block in zip(self.partition.blocks, later, strict=False):
            seen += sum(size[name] for name in before)
            connect = nn.Linear(seen, sum(size[name] for name in block))
            # As in KroneckerLinear: a decoder of few inputs must not start dead.
            few = torch.cat([torch.full((size[name],), size[name] <= FEW) for name in block])
            with torch.no_grad():
                connect.bias.masked_fill_(few, 1.0)
                # Not by an index: the meta device knows no values to take one from.
                averaged = 0.1 * averaging(connect.weight)
                connect.weight.copy_(torch.where(few[:, None], averaged, connect.weight))
            self.connections.append(connect)
        clusters = clusters_of(pieces, first, self.partition.blocks[-1])
        self.flow = FlowPass(
            pieces, clusters, partial(scale_of, scale), CURVATURE[scale], extra_relu
        )
        self._stack_clusters(size)

    def _stack_clusters(self, size: Mapping[str, int]) -> None:
        """Where the pieces of each cluster, and their connections, stand among the parameters."""
        clusters = self.flow.clusters
        self.places = {
            "encoder": [
                self._place(f"encoder_rows_{i}", self.encoded, c.names[: c.encoded])
                for i, c in enumerate(clusters)
            ],
            "decoder": [
                self._place(f"decoder_rows_{i}", self.decoded, c.names[c.first :])
                for i, c in enumerate(clusters)
            ],
        }
        for what, groups, names in (
            ("outputs", self.decoded, [c.names[c.first :] for c in clusters]),
            ("inputs", self.encoded, [c.names[: c.encoded] for c in clusters]),
        ):
            *starts, absent = accumulate((size[name] for name in groups.shapes), initial=0)
            start = dict(zip(groups.shapes, starts, strict=True))
            index = [
                start[name] + i if i < size[name] else absent
                for c, together in zip(clusters, names, strict=True)
                for name in together
                for i in range(c.code)
            ]
            self.register_buffer(f"connection_{what}", torch.tensor(index), persistent=False)

    def _place(self, rows: str, groups: ShapeGroups, names: Sequence[str]) -> list[int]:
        """The modules that hold the named pieces; the order of their rows becomes a buffer."""
        modules = [i for i, held in enumerate(groups.members.values()) if held[0] in names]
        held = [name for i in modules for name in list(groups.members.values())[i]]
        order = torch.tensor([held.index(name) for name in names]) if held != names else None
        self.register_buffer(rows, order, persistent=False)
        return modules

    def prepare(self) -> dict[str, Any]:
        return {
            "first": self._first(),
            "encoders": [self._layers("encoder", i) for i in range(len(self.flow.clusters))],
            "connect": self._connect() if len(self.connections) else None,
            "decoders": [self._layers("decoder", i) for i in range(len(self.flow.clusters))],
        }

    def _first(self) -> list[list[Tensor] | None]:
        """Scale and shift of the first block's pieces, cluster by cluster."""
        found: list[list[Tensor] | None] = []
        place = {name: i for i, name in enumerate(self.first)}
        for c in self.flow.clusters:
            rows = [place[name] for name in c.names[: c.first]]
            flat = [
                [nn.functional.pad(ps[i].flatten(), (0, c.width - ps[i].numel())) for i in rows]
                for ps in (self.first_alpha, self.first_mu)
            ]
            alpha, mu = (torch.stack(ps) if ps else None for ps in flat)
            found.append(None if alpha is None or mu is None else [scale(self.scale, alpha), mu])
        return found

    def _layers(self, kind: Literal["encoder", "decoder"], cluster: int) -> list[Layer] | None:
        """One stack of layers for all the encoders or decoders of a cluster."""
        modules = self.encoders if kind == "encoder" else self.decoders
        stacks = [cast(Coders, modules[i]).stack() for i in self.places[kind][cluster]]
        rows: Tensor | None = getattr(self, f"{kind}_rows_{cluster}")
        c = self.flow.clusters[cluster]
        depths = [n for (n,) in halved((c.width,))]
        sizes = pairwise(depths if kind == "encoder" else depths[::-1])
        return [
            side_by_side(
                [
                    layer_of(linears, size if c.filled else None, rows)
                    for linears in zip(*layers, strict=True)
                ]
            )
            for size, *layers in zip(sizes, *stacks, strict=True)
            if layers
        ] or None

    def _connect(self) -> list[Tensor]:
        """All connections as one matrix in the clusters' order, zero where a block must not see."""
        linears = list(cast(Iterable[nn.Linear], self.connections))
        seen = linears[-1].in_features
        pad = nn.functional.pad
        weight = torch.cat([pad(c.weight, (0, seen + 1 - c.in_features)) for c in linears])
        bias = torch.cat([c.bias for c in linears])
        outputs, inputs = self.connection_outputs, self.connection_inputs
        weight = pad(weight, (0, 0, 0, 1)).index_select(0, outputs).index_select(1, inputs)
        return [weight, pad(bias, (0, 1)).index_select(0, outputs)]

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        prepared = prepared or self.prepare()
        if self.partition.indices is None:
            pieces: Mapping[str, Tensor] = z
        else:
            pieces = self.partition.split(z)
        names = self.partition.pieces
        phi = dict(
            zip(names, one_pass(self.flow, [pieces[n] for n in names], prepared), strict=True)
        )
        if self.partition.indices is None:
            return {name: phi[name] for name in z}
        return self.partition.join(phi)

    def constants(self) -> list[nn.Parameter]:
        decoders = cast(Iterable[Decoders], self.decoders)
        return [*self.first_mu, *(decoder.mu.bias for decoder in decoders)]

    def inverse(self, phi: Params) -> Params:
        """Blockwise substitution: a block reads earlier ones only, which are exact by its turn.

        Later blocks stay at phi until then, which is finite: their connections are zeros in one
        matrix, and zero times infinity would not be zero.
        """
        check_point(phi, self.partition.shapes)
        prepared = self.prepare()
        z = self.partition.split(phi)
        for block in self.partition.blocks:
            scales, shifts = self._scales_and_shifts(z, prepared)
            for name in block:
                if z[name].device.type != "meta" and not bool((scales[name] > 0).all()):
                    raise ValueError(
                        f"a scale of {name} has underflowed to zero: the map has no inverse there "
                        f"in this precision"
                    )
                z[name] = (z[name] - shifts[name]) / scales[name]
        return self.partition.join(z)

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds | None:
        """None: the shift's slope in earlier blocks is unbounded, except where there are none."""
        if len(self.connections) or not current:
            return None
        self.check_parameters()
        scales = [scale(self.scale, alpha) for alpha in self.first_alpha]
        return (min(float(s.min()) for s in scales), max(float(s.max()) for s in scales))

    def _scales_and_shifts(
        self, z: Mapping[str, Tensor], prepared: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        names = self.partition.pieces
        x = self.flow.packing.pack([z[name].reshape(1, -1) for name in names])
        scales, shifts, _ = self.flow.scales_and_shifts(x, prepared)
        found = [
            dict(
                zip(
                    names,
                    (t.reshape(names[n]) for n, t in zip(names, ts, strict=True)),
                    strict=True,
                )
            )
            for ts in (self.flow.packing.unpack(scales), self.flow.packing.unpack(shifts))
        ]
        return found[0], found[1]
