"""The paper's method: mirror descent whose inverse mirror map is a blockIAF."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from metamirror.core.mirror_map import MirrorMap
from metamirror.core.settings import Point, Settings
from metamirror.methods.named_parameters import layers_of, learned, modes_of
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.base import spread
from metamirror.mirror_maps.block_iaf import BlockIAF, Heads, Parametrisation, Scale
from metamirror.mirror_maps.composition import Composition
from metamirror.mirror_maps.mirror_descent import MirrorDescent
from metamirror.mirror_maps.mixing import KroneckerMixing
from metamirror.mirror_maps.partition import Blocks


@dataclass(frozen=True)
class Options:
    """Options of `blockiaf`.

    Attributes:
        variant: where the other options start. "live" starts as the identity and trains; "paper"
            follows the paper's text (logistic scale, random start, ReLU between layers only);
            "released" behaves as the published code, whose output heads never train. The last two
            have the standard parametrisation and a dual start.
        blocks: "layer", "tensor" or "index"; in Python also lists of names or of flat indices.
        scale: "wide", "bounded", "logistic" or "exponential".
        heads: how the decoders' output layers start.
        extra_relu: a ReLU on embeddings and decoder inputs too.
        parametrisation: "fan_in", with which one learning rate of Adam serves start and map at
            every width, or "standard".
        mixing: beyond the paper, "kronecker" puts an invertible Kronecker-factored linear map of
            each tensor in front of the flow; "none" is the paper's.
        flows: how many flows follow each other; every second one takes the blocks in reverse.
    """

    variant: Literal["live", "paper", "released"] = "live"
    blocks: Blocks = "layer"
    scale: Scale | None = None
    heads: Heads | None = None
    extra_relu: bool | None = None
    parametrisation: Parametrisation | None = None
    mixing: Literal["none", "kronecker"] = "none"
    flows: int = 1


MOST_FLOWS = 16

VARIANTS: dict[str, dict[str, Any]] = {
    "live": {
        "scale": "wide",
        "heads": "one zero factor",
        "extra_relu": True,
        "parametrisation": "fan_in",
    },
    "paper": {
        "scale": "logistic",
        "heads": "random",
        "extra_relu": False,
        "parametrisation": "standard",
    },
    "released": {
        "scale": "exponential",
        "heads": "all zero factors",
        "extra_relu": True,
        "parametrisation": "standard",
    },
}


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn a map over every parameter of the model."""
    if not 1 <= options.flows <= MOST_FLOWS:
        raise ValueError(
            f"blockiaf:flows is {options.flows}; it must lie between 1 and {MOST_FLOWS}"
        )
    variant = VARIANTS[options.variant]
    given = {name: getattr(options, name) for name in variant}
    chosen = variant | {name: value for name, value in given.items() if value is not None}
    start = learned(model)
    shapes = {name: tuple(p.shape) for name, p in start.items()}
    chosen["units"] = {name: spread(p) for name, p in start.items()}
    modes = modes_of(model) if isinstance(options.blocks, str) else {}
    blocks = (layers_of(model) if options.blocks == "layer" else None) or options.blocks
    maps: list[MirrorMap] = []
    for i in range(options.flows):
        if options.mixing == "kronecker":
            maps.append(KroneckerMixing(shapes, {**getattr(model, "modes", {}), **modes}))
        maps.append(BlockIAF(shapes, blocks=blocks, modes=modes, reverse=bool(i % 2), **chosen))
    g = maps[0] if len(maps) == 1 else Composition(maps)
    own: Point = "primal" if options.variant == "live" else "dual"
    return Parts(model, MirrorDescent(g, start=settings.point(own)))


METHOD = Method(
    key="blockiaf",
    title="blockIAF mirror descent",
    optimizer="MD",
    geometry="blockIAF-based mirror map",
    paper="Zhang, Li, Giannakis 2024",
    build=build,
    options=Options,
    published={1: "56.10 ± 1.43", 5: "69.59 ± 0.71"},
    recipe={
        "optimizer": "sgd",
        "outer_lr": 1e-3,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "schedule": "step",
        "decay_every": 20_000,
        "decay_factor": 0.1,
    },
    group="paper",
    shaped=True,
)
