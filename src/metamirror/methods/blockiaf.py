"""The paper's method: mirror descent whose inverse mirror map is a blockIAF."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from metamirror.core.settings import Settings
from metamirror.methods.named_parameters import learned
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.block_iaf import BlockIAF, Heads, Scale
from metamirror.mirror_maps.mirror_descent import MirrorDescent
from metamirror.mirror_maps.partition import Blocks


@dataclass(frozen=True)
class Options:
    """Options of `blockiaf`.

    Attributes:
        variant: where the other options start. "live" starts as the identity and trains; "paper"
            follows the paper's text (logistic scale, random start, ReLU between layers only);
            "released" behaves as the published code, whose output heads never train.
        blocks: "layer", "tensor" or "index"; in Python also lists of names or of flat indices.
        scale: "bounded", "logistic" or "exponential".
        heads: how the decoders' output layers start.
        extra_relu: a ReLU on embeddings and decoder inputs too.
        anchored: beyond the paper, shift the map so that the start is its own image: then a map
            that is still being learned does not move the start.
    """

    variant: Literal["live", "paper", "released"] = "live"
    blocks: Blocks = "layer"
    scale: Scale | None = None
    heads: Heads | None = None
    extra_relu: bool | None = None
    anchored: bool = False


VARIANTS: dict[str, tuple[Scale, Heads, bool]] = {
    "live": ("bounded", "one zero factor", True),
    "paper": ("logistic", "random", False),
    "released": ("exponential", "all zero factors", True),
}


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn a map over every parameter of the model."""
    scale, heads, extra_relu = VARIANTS[options.variant]
    g = BlockIAF(
        {name: tuple(p.shape) for name, p in learned(model).items()},
        blocks=options.blocks,
        scale=options.scale or scale,
        heads=options.heads or heads,
        extra_relu=extra_relu if options.extra_relu is None else options.extra_relu,
    )
    return Parts(model, MirrorDescent(g, anchored=options.anchored))


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
)
