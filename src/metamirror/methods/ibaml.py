r"""iBaML: a Gaussian for every parameter, adapted by variational inference.

What is learned is a prior $p = N(m_0, e^{v_0})$, with a mean and a log-variance for each parameter.
For a task the inner level adapts both, $q = N(m, e^{v})$, by gradient descent on

$$\mathbb{E}_{\phi \sim q}\, L(\phi; \mathrm{support})
        + \frac{\kappa}{n}\, \mathrm{KL}(q \,\|\, p),$$

n the number of support examples. The expectation is over `samples` draws
$\phi = m + e^{v/2} \epsilon$. Each $\epsilon$ is drawn once for all steps of a task, so that the
inner level has a minimiser to differentiate: by the adjoint `implicit`, with the damping of
`imaml`. The query loss has draws of its own.

A prediction averages probabilities over draws, as the released code does, or outputs where the
targets are numbers. There are `samples` draws, from one fixed seed: an adapted model is a function.

The released code draws anew in every step, on miniImageNet five times in training and ten in an
evaluation. It has $\kappa = 0.01$, and leaves the prior's variance out of the mean's term of the KL
and $\kappa$ out of the linear system. With the KL itself, as here, that $\kappa$ would hold the
means with a curvature of $e^{10} \kappa / n$ = 44 for five examples, where they hardly adapt. There
is a hyper-prior on $(m_0, v_0)$ too, of weight 0.01 over examples and iterations, and $v_0$ starts
between -10 and -9.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from metamirror.core.episode import Episode
from metamirror.core.geometry import Geometry, moved
from metamirror.core.lower_level import LowerLevel
from metamirror.core.mirror_map import Identity, MirrorMap
from metamirror.core.priors import OF_THE_METHOD, Prior
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params, tensor_like
from metamirror.methods.named_parameters import learned
from metamirror.methods.registry import Method, Parts


@dataclass(frozen=True)
class Options:
    """Options of `ibaml`.

    Attributes:
        samples: draws of the parameters for each expectation.
        kl: kappa, the weight of the KL divergence. By default the means are held about as in iMAML:
            with a curvature kl * exp(-log_variance) / n of 4.4 / n.
        log_variance: where every log-variance of the prior starts. Steps of size lr diverge where
            lr times that curvature is above 2.
        objective: what the outer level minimises: "bound", the same bound on all examples of the
            task, as the released code does, or the expected "query" loss.
    """

    samples: int = 5
    kl: float = 2e-4
    log_variance: float = -10.0
    objective: Literal["bound", "query"] = "bound"


class GaussianKL(Prior):
    r"""kl times $\mathrm{KL}(N(m, e^v) \| N(m_0, e^{v_0}))$, per support example.

    Args:
        pairs: the name of the log-variance that belongs to each mean.
        kl: the weight.
    """

    spec = OF_THE_METHOD
    per_example = True

    def __init__(self, pairs: dict[str, str], kl: float):
        super().__init__()
        self.pairs, self.kl = pairs, kl
        self.vanishes = kl == 0

    def forward(self, phi: Params, phi0: Params) -> Tensor:
        return self.kl * self.divergence(phi, phi0)

    def divergence(self, phi: Params, phi0: Params) -> Tensor:
        """Return the KL divergence itself."""
        terms = []
        for mean, log_variance in self.pairs.items():
            ratio = phi[log_variance] - phi0[log_variance]
            square = (phi[mean] - phi0[mean]).square() * (-phi0[log_variance]).exp()
            terms.append((ratio.exp() - 1 - ratio + square).sum())
        return 0.5 * torch.stack(terms).sum()


@dataclass(frozen=True)
class ExpectedLoss(LowerLevel):
    """The support loss in expectation over draws of the parameters."""

    draws: Sequence[Callable[[Params], Params]] = ()

    def loss(self, phi: Params) -> Tensor:
        one = super().loss
        return torch.stack([one(draw(phi)) for draw in self.draws]).mean()


class GaussianState(NamedTuple):
    """Means and log-variances, and the standard normal numbers of each draw."""

    z: Params
    support: tuple[Params, ...]
    query: tuple[Params, ...]


class GaussianDescent(Geometry[GaussianState]):
    """Gradient descent on means and log-variances alike.

    Args:
        pairs: the name of the log-variance that belongs to each mean.
        shapes: the shape of each mean.
        samples: draws for the support loss, and as many for the query's.
    """

    stochastic = True

    def __init__(self, pairs: dict[str, str], shapes: dict[str, torch.Size], samples: int):
        super().__init__()
        self.pairs, self.shapes, self.samples = pairs, shapes, samples
        # Once and here: under vmap every task would draw others.
        self.predicting = self._split(self.draw(torch.Generator().manual_seed(0)))[:samples]

    def draw(self, generator: torch.Generator) -> Params:
        size = {name: (2 * self.samples, *shape) for name, shape in self.shapes.items()}
        return {n: torch.randn(s, generator=generator, device="cpu") for n, s in size.items()}

    def begin(self, theta: Params, prepared: None, noise: Params) -> GaussianState:
        draws = self._split(noise)
        return GaussianState(theta, draws[: self.samples], draws[self.samples :])

    def _split(self, noise: Params) -> tuple[Params, ...]:
        count = len(next(iter(noise.values())))
        return tuple({name: e[i] for name, e in noise.items()} for i in range(count))

    def lower_level(self, lower: LowerLevel, state: GaussianState) -> LowerLevel:
        draws = [partial(self.draw_at, noise=noise) for noise in state.support]
        return ExpectedLoss(**vars(lower), draws=draws)

    def primal(self, state: GaussianState) -> Params:
        return state.z

    def step(
        self, state: GaussianState, grad: Params, *, lr: float, loss: Tensor, k: int
    ) -> GaussianState:
        return state._replace(z=moved(state.z, grad, lr))

    def draw_at(self, phi: Params, noise: Params) -> Params:
        """Return one draw of the model's parameters."""
        return {
            name: phi[name] + (0.5 * phi[log_variance]).exp() * noise[name]
            for name, log_variance in self.pairs.items()
        }

    def members(self, phi: Params) -> list[Params]:
        like = next(iter(phi.values()))
        draws = ({n: tensor_like(e, like) for n, e in draw.items()} for draw in self.predicting)
        return [{**phi, **self.draw_at(phi, draw)} for draw in draws]

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        return Identity()


class ExpectedObjective:
    """The expected query loss, alone or as part of the bound on all examples of the task."""

    def __init__(self, geometry: GaussianDescent, prior: GaussianKL, bound: bool):
        self.geometry, self.prior, self.bound = geometry, prior, bound

    def __call__(self, episode: Episode) -> Tensor:
        state: GaussianState = episode.state  # type: ignore[assignment]
        phi = episode.descend().phi
        losses, scores = [], []
        for noise in state.query:
            losses.append(episode.query_loss(self.geometry.draw_at(phi, noise)))
            scores.append(episode.score)
        episode.score = torch.stack(scores).mean()
        query = torch.stack(losses).mean()
        if not self.bound:
            return query
        support = self.geometry.lower_level(
            episode.inner.lower_level(episode.task.support), state
        ).loss(phi)
        few, many = episode.task.support.examples, episode.task.query.examples
        kl: Tensor = self.prior(phi, self.geometry.primal(state))
        return (few * support + many * query + kl) / (few + many)


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Give every learned parameter a log-variance, and learn both."""
    if options.samples < 1:
        raise ValueError(f"ibaml:samples is {options.samples}; it must be at least 1")
    if not 0 <= options.kl < float("inf"):
        raise ValueError(f"ibaml:kl is {options.kl}; it must be finite and at least 0")
    if not abs(options.log_variance) < float("inf"):
        raise ValueError(f"ibaml:log_variance is {options.log_variance}; it must be finite")
    means = learned(model)
    pairs = {name: f"log_variance_{i:02}" for i, name in enumerate(means)}
    for name, log_variance in pairs.items():
        if hasattr(model, log_variance):
            raise ValueError(f"the model has an attribute {log_variance!r} already: rename it")
        # Of the model itself, not of a module in it, which nn.Sequential would call.
        value = torch.full_like(means[name], options.log_variance, requires_grad=True)
        model.register_parameter(log_variance, nn.Parameter(value))
    shapes = {name: p.shape for name, p in means.items()}
    geometry = GaussianDescent(pairs, shapes, options.samples)
    prior = GaussianKL(pairs, options.kl)
    objective = ExpectedObjective(geometry, prior, options.objective == "bound")
    return Parts(model, geometry, objective, prior=prior)


METHOD = Method(
    key="ibaml",
    title="iBaML",
    optimizer="GD on a variational bound",
    geometry="identity matrix",
    paper="Zhang, Li, Gao, Giannakis 2023",
    build=build,
    options=Options,
    defaults={"adjoint": "implicit:damping=21"},
    group="relative",
)
