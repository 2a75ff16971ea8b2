r"""MetaMD: mirror descent whose Bregman divergence is learned for the speed of convergence.

The outer level minimises the support losses along the path,

$$\frac1K \sum_{k=1}^K L(\phi^{(k)}; \mathrm{support}),$$

which is the regret of the inner level up to a constant; the query set has no part in it. It only
provides the accuracy that training reports.

The paper's text was not at hand. Known from its abstract are the learned divergence, the objective
(a bound on the regret, here the regret itself), and that no validation data are used. The two
families of h are a choice of this library. The paper learns an optimiser for long training; here
the start is learned by the same objective, or stays as it is with `learn_start=false`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from metamirror.core.episode import Episode
from metamirror.core.lower_level import LowerLevel
from metamirror.core.settings import Settings
from metamirror.core.start import Start
from metamirror.core.tasks import Params
from metamirror.methods.named_parameters import learned
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.mirror_descent import MirrorDescent
from metamirror.mirror_maps.power import Power


@dataclass(frozen=True)
class Options:
    """Options of `metamd`.

    Attributes:
        form: "diagonal", a quadratic h with a positive number q for every parameter, or "pnorm",
            its generalisation to a learned power p for every tensor.
        learn_start: learn the start, too; otherwise the geometry alone.
    """

    form: Literal["diagonal", "pnorm"] = "diagonal"
    learn_start: bool = True


class PathLoss:
    """The mean support loss over the points after each step: small if the inner level is fast."""

    def __call__(self, episode: Episode) -> Tensor:
        path = episode.descend(keep=True)
        lower = episode.inner.lower_level(episode.task.support)
        # Without a step there is the start alone.
        losses = [lower.loss(phi) for phi in path.points[1:] or path.points]
        with torch.no_grad():
            episode.query_loss(path.phi)
        return torch.stack(losses).mean()


class FixedStart(Start):
    """Every task begins at the model's parameters, which the outer level leaves as they are."""

    # What is shared would be computed from parameters that learn.
    shared = False

    def forward(self, theta: Params, lower: LowerLevel) -> Params:
        return {name: p.detach() for name, p in theta.items()}


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn the divergence for every parameter of the model."""
    g = Power(learned(model), powers=options.form == "pnorm")
    start = None if options.learn_start else FixedStart()
    return Parts(model, MirrorDescent(g, start=settings.point()), PathLoss(), start=start)


METHOD = Method(
    key="metamd",
    title="MetaMD",
    optimizer="MD",
    geometry="diag. matrix, or powers",
    paper="Gao, Gouk, Lee, Hospedales 2022",
    build=build,
    options=Options,
    group="relative",
    shaped=True,
)
