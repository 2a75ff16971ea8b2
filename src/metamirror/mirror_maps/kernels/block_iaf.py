"""How blockIAF is computed: all encoders at once, one matrix for all connections, all decoders.

Pieces stand in clusters, of which each goes through one stack of layers: pieces of equal modes, and
vectors of different lengths, the shorter filled up with zeros.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from metamirror.linalg.kronecker import KroneckerLinear, ShapeGroups, halved
from metamirror.linalg.kronecker_layers import (
    DENSE,
    Layer,
    Trace,
    over_points,
    run,
    run_backward,
    stacked_layer,
)
from metamirror.linalg.tensor_stacks import Packing
from metamirror.mirror_maps.partition import Partition

Prepared = Mapping[str, Any]
Coders = Sequence[Sequence[Sequence[KroneckerLinear]]]
"""The layers of each group of pieces, in order; several where they read the same input."""
Connected = tuple[Tensor, Tensor]
"""A connection's weight and bias."""


@dataclass(frozen=True)
class Cluster:
    """Pieces that go through one stack of layers, in the order of their blocks.

    Attributes:
        names: the pieces; those of the first block come first, those of the last one last.
        sizes: how many numbers each holds.
        first: how many belong to the first block: they have no decoder.
        encoded: how many belong to any block but the last: the others have no encoder.
        code: how many numbers an encoder gives and a decoder reads, for the largest piece.
    """

    names: list[str]
    sizes: list[int]
    first: int
    encoded: int
    code: int

    @property
    def width(self) -> int:
        """The size to which every piece is filled up."""
        return max(self.sizes)


def clusters_of(partition: Partition) -> list[Cluster]:
    """Return the clusters of a partition's pieces."""
    pieces, first, last = partition.pieces, partition.blocks[0], partition.blocks[-1]
    groups = ShapeGroups(pieces, pieces).members
    vectors = [shape for shape in groups if sum(n > 1 for n in shape) <= 1]
    together = [list(names) for shape, names in groups.items() if shape not in vectors]
    width = 0
    for shape in sorted(vectors, key=math.prod, reverse=True):
        size = math.prod(shape)
        wasted = len(groups[shape]) * (width * width - size * size) // 2
        if width and wasted <= DENSE:
            together[-1].extend(groups[shape])
        else:
            together.append(list(groups[shape]))
            width = size
    return [
        Cluster(
            names,
            [math.prod(pieces[name]) for name in names],
            sum(name in first for name in names),
            sum(name not in last for name in names),
            max(math.prod(halved(pieces[name])[3]) for name in names),
        )
        for names in ([name for name in pieces if name in held] for held in together)
    ]


class FlowTrace(NamedTuple):
    """What the backward pass reads."""

    x: list[Tensor]
    scales: list[Tensor]
    slopes: list[Tensor | None]
    embedding: Tensor | None
    inputs: Tensor | None
    encoders: list[list[Trace]]
    decoders: list[list[Trace]]


class FlowPass(nn.Module):
    """phi = z * sigma(alpha) + mu over clusters, and its derivative.

    It has no parameters: `prepare` arranges those of the map, once per outer step.

    Args:
        partition: the pieces, in the order in which z is given.
        encoded: the groups in which the pieces with an encoder hold their parameters.
        decoded: those of the pieces with a decoder.
        scale: alpha -> sigma(alpha) and sigma'(alpha).
        extra_relu: whether embeddings and decoder inputs go through a ReLU.
    """

    connection_outputs: Tensor
    connection_inputs: Tensor

    def __init__(
        self,
        partition: Partition,
        encoded: ShapeGroups,
        decoded: ShapeGroups,
        scale: Callable[[Tensor], tuple[Tensor, Tensor]],
        extra_relu: bool,
    ):
        super().__init__()
        self.first = list(partition.blocks[0])
        self.clusters = clusters_of(partition)
        sizes = {name: math.prod(shape) for name, shape in partition.pieces.items()}
        self.packing = Packing(sizes, [c.names for c in self.clusters])
        self.scale, self.input_relu = scale, extra_relu
        self.encoder_relus = (True, True, extra_relu)
        self.decoder_relus = (True, True, False)
        self.groups: dict[str, list[list[int]]] = {}
        self._locate(partition, "encoder", encoded, [c.names[: c.encoded] for c in self.clusters])
        self._locate(partition, "decoder", decoded, [c.names[c.first :] for c in self.clusters])

    def _locate(
        self, partition: Partition, kind: str, held: ShapeGroups, wanted: list[list[str]]
    ) -> None:
        """Locate the parameters of each cluster's pieces: groups, rows in them, connections."""
        members = list(held.members.values())
        self.groups[kind] = []
        for cluster, names in enumerate(wanted):
            groups = [i for i, group in enumerate(members) if group[0] in names]
            stacked = [name for i in groups for name in members[i]]
            rows = torch.tensor([stacked.index(n) for n in names]) if stacked != names else None
            self.register_buffer(f"{kind}_rows_{cluster}", rows, persistent=False)
            self.groups[kind].append(groups)
        size = {name: math.prod(halved(partition.pieces[name])[3]) for name in held.shapes}
        *starts, absent = accumulate(size.values(), initial=0)
        start = dict(zip(size, starts, strict=True))
        index = [
            start[name] + i if i < size[name] else absent
            for c, names in zip(self.clusters, wanted, strict=True)
            for name in names
            for i in range(c.code)
        ]
        what = {"encoder": "connection_inputs", "decoder": "connection_outputs"}[kind]
        self.register_buffer(what, torch.tensor(index), persistent=False)

    def prepare(
        self,
        first: Sequence[tuple[Tensor, Tensor]],
        encoders: Coders,
        connections: Sequence[Connected],
        decoders: Coders,
    ) -> dict[str, Any]:
        """Return the map's parameters, cluster by cluster."""
        return {
            "first": [self._first(c, first) for c in self.clusters],
            "encoders": [self._layers("encoder", i, encoders) for i in range(len(self.clusters))],
            "connect": self._connect(connections) if len(connections) else None,
            "decoders": [self._layers("decoder", i, decoders) for i in range(len(self.clusters))],
            "constant": None,
        }

    def _first(self, c: Cluster, first: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor] | None:
        """Scale and shift of the first block's pieces in a cluster."""
        if not c.first:
            return None
        rows = [self.first.index(name) for name in c.names[: c.first]]
        alpha, mu = (
            torch.stack([pad(ps[i].flatten(), (0, c.width - ps[i].numel())) for i in rows])
            for ps in zip(*first, strict=True)
        )
        return [self.scale(alpha)[0], mu]

    def _layers(self, kind: str, cluster: int, coders: Coders) -> list[Layer] | None:
        """Return one stack of layers for all the encoders or decoders of a cluster."""
        stacks = [coders[i] for i in self.groups[kind][cluster]]
        rows: Tensor | None = getattr(self, f"{kind}_rows_{cluster}")
        c = self.clusters[cluster]
        filled = min(c.sizes) < c.width
        depths = [n for (n,) in halved((c.width,))]
        sizes = pairwise(depths if kind == "encoder" else depths[::-1])
        return [
            stacked_layer(layers, size if filled else None, rows)
            for size, *layers in zip(sizes, *stacks, strict=True)
            if layers
        ] or None

    def _connect(self, connections: Sequence[Connected]) -> list[Tensor]:
        """Return all connections as one matrix, zero where a block must not see another."""
        weights, biases = zip(*connections, strict=True)
        seen = weights[-1].shape[1]
        weight = torch.cat([pad(w, (0, seen + 1 - w.shape[1])) for w in weights])
        bias = torch.cat(biases)
        outputs, inputs = self.connection_outputs, self.connection_inputs
        weight = pad(weight, (0, 0, 0, 1)).index_select(0, outputs).index_select(1, inputs)
        return [weight, pad(bias, (0, 1)).index_select(0, outputs)]

    def forward_pass(self, z: list[Tensor], p: Prepared) -> tuple[list[Tensor], FlowTrace]:
        """Return phi, and what the backward pass reads."""
        x = self.packing.pack(z)
        points = x[0].shape[1]
        encoders = [
            run(tensor[: c.encoded], layers, self.encoder_relus) if layers else []
            for c, tensor, layers in zip(self.clusters, x, p["encoders"], strict=True)
        ]
        embedding = inputs = None
        given: Sequence[Any] = [None] * len(x)
        if p["connect"] is not None:
            weight, bias = p["connect"]
            embedding = torch.cat(
                [traces[-1].output.flatten(0, 1) for traces in encoders if traces]
            )
            inputs = torch.addmm(bias.unsqueeze(1), weight, embedding)
            inputs = inputs.relu() if self.input_relu else inputs
            given = inputs.split([(len(c.names) - c.first) * c.code for c in self.clusters])
        scales, phi = [], []
        slopes: list[Tensor | None] = []
        decoders: list[list[Trace]] = []
        for c, tensor, first, layers, code in zip(
            self.clusters, x, p["first"], p["decoders"], given, strict=True
        ):
            # sigma(alpha) and mu, (pieces, width, points).
            parts = (
                [] if first is None else [[t.unsqueeze(-1).expand(-1, -1, points) for t in first]]
            )
            decoders.append([])
            slopes.append(None)
            if layers:
                read = code.view(len(c.names) - c.first, -1, points).mT
                decoders[-1] = run(read, layers, self.decoder_relus)
                alpha, mu = decoders[-1][-1].output.chunk(2)
                sigma, slopes[-1] = self.scale(alpha)
                parts.append([sigma, mu])
            scale, shift = (torch.cat(t) if len(t) > 1 else t[0] for t in zip(*parts, strict=True))
            scales.append(scale)
            phi.append(torch.addcmul(shift, tensor.mT, scale))
        if p["constant"] is not None:
            phi = [a + b.unsqueeze(-1) for a, b in zip(phi, p["constant"], strict=True)]
        trace = FlowTrace(x, scales, slopes, embedding, inputs, encoders, decoders)
        return self.packing.unpack(phi), trace

    def backward_pass(
        self, grads: list[Tensor], p: Prepared, trace: FlowTrace
    ) -> tuple[list[Tensor], dict[str, Any]]:
        """Return the gradients in z and in what was prepared."""
        given = [tensor.mT for tensor in self.packing.pack(grads)]
        to_z = [grad * scale for grad, scale in zip(given, trace.scales, strict=True)]
        to_first: list[Any] = []
        to_decoders: list[Any] = []
        to_inputs: list[Tensor] = []
        for c, grad, x, slope, layers, traces in zip(
            self.clusters, given, trace.x, trace.slopes, p["decoders"], trace.decoders, strict=True
        ):
            points = grad.shape[-1]
            to_scale = grad * x.mT
            firsts = [over_points(t[: c.first]) for t in (to_scale, grad)] if c.first else None
            to_first.append(firsts)
            to_decoders.append(None)
            if layers:
                heads = torch.cat([to_scale[c.first :] * slope, grad[c.first :]])
                read, to_decoders[-1] = run_backward(heads, layers, self.decoder_relus, traces)
                count = len(c.names) - c.first
                to_inputs.append(read.view(count, points, -1).mT.reshape(-1, points))
        to_connect, to_encoders = self._embed_backward(to_inputs, to_z, p, trace)
        return self.packing.unpack(to_z), {
            "first": to_first,
            "encoders": to_encoders,
            "connect": to_connect,
            "decoders": to_decoders,
            "constant": None if p["constant"] is None else [over_points(grad) for grad in given],
        }

    def _embed_backward(
        self, to_inputs: list[Tensor], to_z: list[Tensor], p: Prepared, trace: FlowTrace
    ) -> tuple[Any, list[Any]]:
        """Return the gradients in connections and encoders, and add theirs to those in z."""
        to_encoders: list[Any] = [None] * len(to_z)
        if trace.embedding is None or trace.inputs is None:
            return None, to_encoders
        grad = torch.cat(to_inputs)
        if self.input_relu:
            grad = torch.ops.aten.threshold_backward(grad, trace.inputs, 0)
        to_connect = [grad @ trace.embedding.mT, grad.sum(1)]
        to_embeddings = (p["connect"][0].mT @ grad).split(
            [c.encoded * c.code for c in self.clusters]
        )
        for i, (c, layers, traces) in enumerate(
            zip(self.clusters, p["encoders"], trace.encoders, strict=True)
        ):
            if layers:
                read = to_embeddings[i].view(traces[-1].output.shape)
                back, to_encoders[i] = run_backward(read, layers, self.encoder_relus, traces)
                to_z[i][: c.encoded] += back.view(c.encoded, grad.shape[1], -1).mT
        return to_connect, to_encoders
