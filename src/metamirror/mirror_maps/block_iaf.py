r"""The paper's blockwise inverse autoregressive flow, eq. (8).

$$\phi_i = z_i \odot \sigma(\alpha_i) + \mu_i, \qquad
  [\alpha_i, \mu_i] = d_i\big(\{e_j(z_j)\}_{j<i}\big).$$

It is a bijection, and cheap both ways. It is *not* a mirror map in general: its Jacobian is block
lower triangular, so that it is neither symmetric nor, for all z, positive definite; see
docs/theory.md for the counterexample, and `gradient_net` for maps that are.

`BlockIAF.autoregression` is the equation, block by block. `kernels.block_iaf` computes the same
with a hand-written backward pass.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from metamirror.core.mirror_map import Bounds, MirrorMap, check_point
from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import (
    FEW,
    KroneckerLinear,
    Shape,
    ShapeGroups,
    averaging,
    halved,
    module_list,
)
from metamirror.linalg.one_operation import one_operation
from metamirror.linalg.parametrisation import LOG_RANGE, SPEED
from metamirror.mirror_maps.kernels.block_iaf import FlowPass
from metamirror.mirror_maps.partition import Blocks, Partition

Scale = Literal["wide", "bounded", "logistic", "exponential"]
Heads = Literal["one zero factor", "all zero factors", "random"]
Parametrisation = Literal["fan_in", "standard"]


def wide(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Return `bounded_scale` and its slope."""
    bent = torch.tanh(SPEED / LOG_RANGE * alpha)
    sigma = torch.exp(LOG_RANGE * bent)
    return sigma, torch.addcmul(sigma, sigma, bent.square(), value=-1) * SPEED


def logistic(alpha: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Return `largest` times the logistic function, and its slope."""
    sigma = torch.sigmoid(alpha) * largest
    return sigma, torch.addcmul(sigma, sigma, sigma, value=-1 / largest)


def exponential(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exponential, which is its own slope."""
    sigma = torch.exp(alpha)
    return sigma, sigma


SCALES: dict[Scale, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "wide": wide,
    "bounded": partial(logistic, largest=2),
    "logistic": partial(logistic, largest=1),
    "exponential": exponential,
}
"""Each sigma with its slope."""


class Encoders(nn.Module):
    """The encoders e_j of all pieces of one shape: three Kronecker-factored layers with ReLU."""

    def __init__(self, shape: Shape, final_relu: bool, units: Tensor, by_fan_in: bool):
        super().__init__()
        self.final_relu = final_relu
        relus, scales = (True, True, final_relu), (1 / units if by_fan_in else None, None, None)
        self.layers = module_list(
            KroneckerLinear(len(units), a, b, before_relu=relu, by_fan_in=by_fan_in, units=scale)
            for (a, b), relu, scale in zip(pairwise(halved(shape)), relus, scales, strict=True)
        )

    def forward(self, x: Tensor, i: int) -> Tensor:
        """Return the embedding of x by the i-th of them, as a vector."""
        first, second, third = self.layers
        x = third(second(first(x, i).relu(), i).relu(), i)
        return (x.relu() if self.final_relu else x).flatten()


class Decoders(nn.Module):
    """The decoders d_i of all pieces of one shape: a trunk, and two heads for alpha and mu.

    The heads are the two halves of the one output layer that the paper's d_i ends in. A bias of
    mu's head adds a constant to the map and nothing else: by fan-in there is none.
    """

    def __init__(self, shape: Shape, heads: Heads, units: Tensor, by_fan_in: bool):
        super().__init__()
        count = len(units)
        full, half, quarter, self.code = halved(shape)
        self.trunk = module_list(
            KroneckerLinear(count, a, b, before_relu=True, by_fan_in=by_fan_in)
            for a, b in ((self.code, quarter), (quarter, half))
        )
        self.alpha = KroneckerLinear(count, half, full, by_fan_in=by_fan_in)
        own = units if by_fan_in else None
        self.mu = KroneckerLinear(
            count, half, full, by_fan_in=by_fan_in, bias=not by_fan_in, units=own
        )
        with torch.no_grad():
            for head in (self.alpha, self.mu):
                # A product of two zero factors has no gradient in either, ever: zero exactly one.
                zeroed = {"one zero factor": 1, "all zero factors": None, "random": 0}[heads]
                for factor in list(head.factors)[:zeroed]:
                    factor.zero_()
                if heads == "random":
                    head.factors[0].mul_(0.1)

    def forward(self, code: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Return alpha and mu of the i-th of them."""
        x = code.reshape(self.code)
        for layer in self.trunk:
            x = layer(x, i).relu()
        return self.alpha(x, i), self.mu(x, i)


class BlockIAF(MirrorMap):
    """blockIAF over any partition of the parameters into ordered blocks.

    Args:
        shapes: stored shapes of the parameters, in order.
        blocks: the partition; see `Partition`.
        scale: "wide" (exactly 1 at the start, from exp(-3) to exp(3), and as fast to learn as
            the rates of MetaSGD), "bounded" (2 * logistic: below 2), "logistic" as in the paper,
            "exponential" as in its released code.
        heads: how the decoders' output layers start: with "one zero factor" the map starts as
            the identity (given a scale of 1) and trains; with "all zero factors", as released,
            it never trains beyond a diagonal affine map; "random" starts near a scaled identity.
        extra_relu: a ReLU on embeddings and on decoder inputs, as in the released code.
        parametrisation: "fan_in" stores each matrix times its number of inputs, so that one
            learning rate of Adam serves start and map at every width, and has no parameters that
            only add a constant; "standard" stores the matrices themselves, and has them.
        units: by fan-in, the unit in which each parameter is read by its encoder and shifted:
            the spread of its entries at the start. By default 1, and in blocks of indices always.
        modes: modes of single parameters where they differ from the stored shape.
        reverse: take the blocks in the opposite order.
        fast: use the hand-written passes of `kernels.block_iaf`; without, plain autograd through
            the equations. Same results.

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
        scale: Scale = "wide",
        heads: Heads = "one zero factor",
        extra_relu: bool = True,
        parametrisation: Parametrisation = "fan_in",
        units: Mapping[str, float] | None = None,
        modes: Mapping[str, Shape] | None = None,
        reverse: bool = False,
        fast: bool = True,
    ):
        super().__init__()
        for name, given, known in (
            ("scale", scale, Scale),
            ("heads", heads, Heads),
            ("parametrisation", parametrisation, Parametrisation),
        ):
            if given not in get_args(known):
                raise ValueError(f"{name} is {given!r}; choose from {get_args(known)}")
        self.partition = Partition(shapes, blocks, modes, reverse)
        self.extra_relu, self.fast = extra_relu, fast
        self.scale = SCALES[scale]
        by_fan_in = parametrisation == "fan_in"
        pieces = self.partition.pieces
        first, *later = self.partition.blocks
        # The first block's decoder reads the empty set: its scale and shift are free.
        self.first_alpha = nn.ParameterList(torch.zeros(pieces[name]) for name in first)
        self.first_mu = nn.ParameterList(
            torch.zeros(pieces[name]) for name in first if not by_fan_in
        )

        def unit_of(names: list[str]) -> Tensor:
            return torch.tensor([(units or {}).get(name, 1.0) for name in names])

        encoded = {name: pieces[name] for block in self.partition.blocks[:-1] for name in block}
        self.encoded = ShapeGroups(encoded, encoded)
        self.encoders = module_list(
            Encoders(shape, extra_relu, unit_of(names), by_fan_in)
            for shape, names in self.encoded.members.items()
        )
        decoded = {name: pieces[name] for block in later for name in block}
        self.decoded = ShapeGroups(decoded, decoded)
        self.decoders = module_list(
            Decoders(shape, heads, unit_of(names), by_fan_in)
            for shape, names in self.decoded.members.items()
        )
        self.code_size = {name: math.prod(halved(shape)[3]) for name, shape in pieces.items()}
        sizes = [[self.code_size[name] for name in block] for block in self.partition.blocks]
        self.connections = module_list(
            Connection(sum(map(sum, sizes[:i])), sizes[i], by_fan_in) for i in range(1, len(sizes))
        )
        self.kernel = FlowPass(self.partition, self.encoded, self.decoded, self.scale, extra_relu)

    def sigma(self, alpha: Tensor) -> Tensor:
        """Return the scale."""
        return self.scale(alpha)[0]

    def autoregression(self, z: Mapping[str, Tensor]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
        """Block by block, sigma(alpha_i) and mu_i of its pieces, from the blocks before it.

        A block of z is read after its scales and shifts were given out: the inverse fills it in.
        """
        embeddings: list[Tensor] = []
        for i, block in enumerate(self.partition.blocks):
            if i == 0:
                outputs = self.first_outputs()
            else:
                code = self.connections[i - 1](torch.cat(embeddings))
                code = code.relu() if self.extra_relu else code
                codes = code.split([self.code_size[name] for name in block])
                outputs = [
                    self.decoded.of(name, self.decoders)(code)
                    for name, code in zip(block, codes, strict=True)
                ]
            yield {
                n: (self.sigma(alpha), mu) for n, (alpha, mu) in zip(block, outputs, strict=True)
            }
            if i + 1 < len(self.partition.blocks):
                embeddings += [self.encoded.of(name, self.encoders)(z[name]) for name in block]

    def first_outputs(self) -> list[tuple[Tensor, Tensor]]:
        """Return alpha and mu of the first block's pieces."""
        mus = list(self.first_mu) or [torch.zeros_like(alpha) for alpha in self.first_alpha]
        return list(zip(self.first_alpha, mus, strict=True))

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        if self.fast:
            whole = self.partition.indices is None
            held: Mapping[str, Tensor] = z if whole else self.partition.split(z)
            names = self.partition.pieces
            given = [held[name] for name in names]
            found = one_operation(self.kernel, given, prepared or self.prepare())
            phi = dict(zip(names, found, strict=True))
            return {name: phi[name] for name in z} if whole else self.partition.join(phi)
        pieces = self.partition.split(z)
        phi = {
            name: pieces[name] * sigma + mu
            for block in self.autoregression(pieces)
            for name, (sigma, mu) in block.items()
        }
        return self.partition.join(phi)

    def inverse(self, phi: Params) -> Params:
        """Substitute block by block: z_i = (phi_i - mu_i) / sigma(alpha_i), first block first."""
        check_point(phi, self.partition.shapes)
        z = self.partition.split(phi)
        for block in self.autoregression(z):
            for name, (sigma, mu) in block.items():
                if sigma.device.type != "meta" and not bool((sigma > 0).all()):
                    raise ValueError(
                        f"a scale of {name} has underflowed to zero: the map has no inverse there "
                        f"in this precision"
                    )
                z[name] = (z[name] - mu) / sigma
        return self.partition.join(z)

    def prepare(self) -> dict[str, Any]:
        if not self.fast:
            return {}
        return self.kernel.prepare(
            self.first_outputs(),
            [[[layer] for layer in e.layers] for e in self.encoders],
            [(connection.matrix(), connection.bias) for connection in self.connections],
            [[*([layer] for layer in d.trunk), [d.alpha, d.mu]] for d in self.decoders],
        )

    def with_constant(
        self, prepared: Mapping[str, Any], constant: Params
    ) -> Mapping[str, Any] | None:
        if not self.fast:
            return None
        pieces = self.partition.split(constant)
        packed = self.kernel.packing.pack_one([pieces[name] for name in self.partition.pieces])
        return {**prepared, "constant": packed}

    def constants(self) -> list[nn.Parameter]:
        biases = [decoders.mu.bias for decoders in self.decoders]
        return [*self.first_mu, *(bias for bias in biases if bias is not None)]

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds | None:
        """Return None: the shift's slope in earlier blocks is unbounded, unless there are none."""
        if len(self.connections) or not current:
            return None
        self.check_parameters()
        scales = [self.sigma(alpha) for alpha in self.first_alpha]
        return (min(float(s.min()) for s in scales), max(float(s.max()) for s in scales))


class Connection(nn.Module):
    """The dense layer from the embeddings before a block to its decoders' inputs."""

    def __init__(self, inputs: int, sizes: list[int], by_fan_in: bool):
        super().__init__()
        linear = nn.Linear(inputs, sum(sizes))
        # As in KroneckerLinear: a decoder of few inputs must not start dead.
        few = torch.cat([torch.full((size,), size <= FEW) for size in sizes])
        self.fan_in = inputs if by_fan_in else 1
        with torch.no_grad():
            linear.bias.masked_fill_(few, 1.0)
            # Not by an index: the meta device knows no values to take one from.
            averaged = 0.1 * averaging(linear.weight)
            weight = torch.where(few[:, None], averaged, linear.weight)
            self.weight = nn.Parameter(weight * self.fan_in)
        self.bias = linear.bias

    def matrix(self) -> Tensor:
        """Return the weight, as `KroneckerLinear.matrices` does."""
        return self.weight if self.fan_in == 1 else self.weight / self.fan_in

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.matrix(), self.bias)
