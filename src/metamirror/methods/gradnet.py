"""Beyond the paper: mirror descent whose map is a mirror map by construction."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from metamirror.core.mirror_map import MirrorMap
from metamirror.core.settings import Settings
from metamirror.methods.named_parameters import learned, modes_of
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.bounded_metric import Metric
from metamirror.mirror_maps.elementwise import Elementwise
from metamirror.mirror_maps.gradient_net import GradientNet
from metamirror.mirror_maps.mirror_descent import MirrorDescent


@dataclass(frozen=True)
class Options:
    """Options of `gradnet`.

    Attributes:
        form: "coupled" (a Kronecker gradient network with symmetric coupling of all layers),
            "kronecker" (without it), "elementwise" (every number on its own).
        scaling: "diagonal" or "kronecker", the quadratic part of the map; by default Kronecker
            where the form allows it.
        terms: hidden layers side by side, or tanh in an elementwise mixture (1 and 4 by default).
        rho: how far from quadratic the map may be, below 1.
        log_range: rates stay within a factor exp(log_range) of the step size.
    """

    form: Literal["coupled", "kronecker", "elementwise"] = "coupled"
    scaling: Metric | None = None
    terms: int | None = None
    rho: float = 0.9
    log_range: float = 12.0


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn a map over every parameter of the model."""
    if options.form == "elementwise" and options.scaling == "kronecker":
        raise ValueError(
            f"gradnet:scaling is {options.scaling!r}; the elementwise form has a diagonal one only"
        )
    start = learned(model)
    if (kind := next(iter(start.values())).dtype).itemsize < 4:
        raise ValueError(
            f"the model is {kind}, in which torch cannot solve for gradnet's map: convert it, as "
            f"model.float() does, and let it run in less by autocast=torch.bfloat16"
        )
    g: MirrorMap
    if options.form == "elementwise":
        terms = 4 if options.terms is None else options.terms
        g = Elementwise(start, terms=terms, rho=options.rho, log_range=options.log_range)
    else:
        g = GradientNet(
            start,
            coupled=options.form == "coupled",
            metric=options.scaling or "kronecker",
            terms=1 if options.terms is None else options.terms,
            rho=options.rho,
            log_range=options.log_range,
            modes={**getattr(model, "modes", {}), **modes_of(model)},
        )
    return Parts(model, MirrorDescent(g, start=settings.point()))


METHOD = Method(
    key="gradnet",
    title="Gradient network mirror descent",
    optimizer="MD",
    geometry="gradient of a convex network",
    paper="this library",
    build=build,
    options=Options,
    group="relative",
    shaped=True,
)
