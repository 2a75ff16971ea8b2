"""How blockIAF is computed: all encoders at once, one matrix for all connections, all decoders.

Pieces stand in clusters, of which each goes through one stack of layers: pieces of equal modes, and
vectors of different lengths, the shorter filled up with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metamirror.linalg.kronecker import Shape
from metamirror.linalg.kronecker_layers import DENSE, Trace, run, run_backward
from metamirror.linalg.tensor_stacks import Packing

Prepared = Mapping[str, Any]


def halved(shape: Shape) -> list[Shape]:
    """The shape at the four depths of an encoder: whole, a half, a quarter, an eighth."""
    return [tuple(max(1, n >> depth) for n in shape) for depth in range(4)]


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

    @property
    def filled(self) -> bool:
        """Whether there is anything to fill up. Its pieces are vectors then."""
        return min(self.sizes) < self.width


def clusters_of(
    pieces: Mapping[str, Shape], first: Sequence[str], last: Sequence[str]
) -> list[Cluster]:
    """The clusters of ordered pieces."""
    groups: dict[Shape, list[str]] = {}
    for name, shape in pieces.items():
        groups.setdefault(shape, []).append(name)
    vectors = [shape for shape in groups if sum(n > 1 for n in shape) <= 1]
    together: list[list[str]] = [names for shape, names in groups.items() if shape not in vectors]
    width = 0
    for shape in sorted(vectors, key=math.prod, reverse=True):
        size = math.prod(shape)
        wasted = len(groups[shape]) * (width * width - size * size) // 2
        if width and wasted <= DENSE:
            together[-1].extend(groups[shape])
        else:
            together.append(list(groups[shape]))
            width = size
    order = {name: i for i, name in enumerate(pieces)}
    found = []
    for names in together:
        names = sorted(names, key=order.__getitem__)
        found.append(
            Cluster(
                names,
                [math.prod(pieces[name]) for name in names],
                sum(name in first for name in names),
                sum(name not in last for name in names),
                max(math.prod(halved(pieces[name])[3]) for name in names),
            )
        )
    return found


class FlowTrace(NamedTuple):
    """What the backward pass reads."""

    x: list[Tensor]
    scales: list[Tensor]
    embedding: Tensor | None
    inputs: Tensor | None
    encoders: list[list[Trace]]
    decoders: list[list[Trace]]


class FlowPass:
    """phi = z * sigma(alpha) + mu over clusters, and its derivative.

    Args:
        pieces: the order in which z is given.
        clusters: what the pieces stand in.
        scale: sigma.
        curvature: c with sigma' = sigma (1 - c sigma).
        extra_relu: whether embeddings and decoder inputs go through a ReLU.
    """

    def __init__(
        self,
        pieces: Iterable[str],
        clusters: Sequence[Cluster],
        scale: Callable[[Tensor], Tensor],
        curvature: float,
        extra_relu: bool,
    ):
        self.clusters = clusters
        self.packing = Packing(pieces, [c.names for c in clusters], [c.sizes for c in clusters])
        self.scale, self.curvature = scale, curvature
        self.input_relu = extra_relu
        self.encoder_relus = (True, True, extra_relu)
        self.decoder_relus = (True, True, False)

    def forward_pass(self, z: list[Tensor], p: Prepared) -> tuple[list[Tensor], FlowTrace]:
        """Phi, and what the backward pass reads."""
        x = self.packing.pack(z)
        scales, shifts, trace = self.scales_and_shifts(x, p)
        phi = [
            torch.addcmul(shift, tensor.mT, scale)
            for tensor, scale, shift in zip(x, scales, shifts, strict=True)
        ]
        return self.packing.unpack(phi), trace

    def scales_and_shifts(
        self, x: list[Tensor], p: Prepared
    ) -> tuple[list[Tensor], list[Tensor], FlowTrace]:
        """sigma(alpha) and mu of each cluster, (pieces, width, points)."""
        points = x[0].shape[1]
        embedding, encoders = self._embed(x, p)
        decoders: list[list[Trace]] = []
        scales, shifts = [], []
        inputs = None
        if embedding is not None:
            weight, bias = p["connect"]
            inputs = torch.addmm(bias.unsqueeze(1), weight, embedding)
            if self.input_relu:
                inputs = inputs.relu()
            given = inputs.split([(len(c.names) - c.first) * c.code for c in self.clusters])
        for i, c in enumerate(self.clusters):
            first, layers = p["first"][i], p["decoders"][i]
            parts = []
            if first is not None:
                parts.append([t.unsqueeze(-1).expand(-1, -1, points) for t in first])
            traces: list[Trace] = []
            if layers is not None:
                read = given[i].view(len(c.names) - c.first, -1, points).mT
                heads = run(read, layers, self.decoder_relus, traces)
                alpha, mu = heads.chunk(2)
                parts.append([self.scale(alpha), mu])
            decoders.append(traces)
            scale, shift = (torch.cat(t) if len(t) > 1 else t[0] for t in zip(*parts, strict=True))
            scales.append(scale)
            shifts.append(shift)
        return scales, shifts, FlowTrace(x, scales, embedding, inputs, encoders, decoders)

    def _embed(self, x: list[Tensor], p: Prepared) -> tuple[Tensor | None, list[list[Trace]]]:
        """The embeddings of all blocks but the last, (numbers, points)."""
        parts: list[Tensor] = []
        encoders: list[list[Trace]] = []
        for c, tensor, layers in zip(self.clusters, x, p["encoders"], strict=True):
            traces: list[Trace] = []
            if layers is not None:
                out = run(tensor[: c.encoded], layers, self.encoder_relus, traces)
                parts.append(out.flatten(0, 1))
            encoders.append(traces)
        return (torch.cat(parts) if parts else None), encoders

    def backward_pass(
        self, grads: list[Tensor], p: Prepared, trace: FlowTrace
    ) -> tuple[list[Tensor], dict[str, Any]]:
        """The gradients in z and in what was prepared."""
        to_first: list[Any] = []
        to_decoders: list[Any] = []
        to_inputs: list[Tensor] = []
        to_z: list[Tensor] = []
        given = [tensor.mT for tensor in self.packing.pack(grads)]
        for i, (c, grad, x, scale) in enumerate(
            zip(self.clusters, given, trace.x, trace.scales, strict=True)
        ):
            to_z.append(grad * scale)
            to_scale = grad * x.mT
            to_first.append(
                None if p["first"][i] is None else [t[: c.first].sum(-1) for t in (to_scale, grad)]
            )
            if p["decoders"][i] is None:
                to_decoders.append(None)
                continue
            later = scale[c.first :]
            slope = torch.addcmul(later, later, later, value=-self.curvature)
            heads = torch.cat([to_scale[c.first :] * slope, grad[c.first :]])
            read, to_layers = run_backward(
                heads, p["decoders"][i], self.decoder_relus, trace.decoders[i]
            )
            to_decoders.append(to_layers)
            points = grad.shape[-1]
            to_inputs.append(read.view(len(later), points, -1).mT.reshape(-1, points))
        to_connect, to_encoders = self._embed_backward(to_inputs, to_z, p, trace)
        prepared = {
            "first": to_first,
            "encoders": to_encoders,
            "connect": to_connect,
            "decoders": to_decoders,
        }
        return self.packing.unpack(to_z), prepared

    def _embed_backward(
        self, to_inputs: list[Tensor], to_z: list[Tensor], p: Prepared, trace: FlowTrace
    ) -> tuple[Any, list[Any]]:
        """The gradients in connections and encoders; adds to those in z what came through them."""
        if trace.embedding is None or trace.inputs is None:
            return None, [None] * len(to_z)
        grad = torch.cat(to_inputs)
        if self.input_relu:
            grad = torch.ops.aten.threshold_backward(grad, trace.inputs, 0)
        weight = p["connect"][0]
        to_connect = [grad @ trace.embedding.mT, grad.sum(1)]
        to_embedding = weight.mT @ grad
        points = grad.shape[1]
        to_encoders: list[Any] = []
        used = 0
        for i, (c, layers) in enumerate(zip(self.clusters, p["encoders"], strict=True)):
            if layers is None:
                to_encoders.append(None)
                continue
            output = trace.encoders[i][-1].output
            size = output.shape[0] * output.shape[1]
            back, to_layers = run_backward(
                to_embedding[used : used + size].view(output.shape),
                layers,
                self.encoder_relus,
                trace.encoders[i],
            )
            used += size
            to_encoders.append(to_layers)
            to_z[i][: c.encoded] += back.view(c.encoded, points, -1).mT
        return to_connect, to_encoders
