r"""MAML++: MAML with what each inner step has of its own, and two annealings of the outer level.

The rates: $\phi_l \leftarrow \phi_l - \alpha_{l,k} \nabla_l L$, one learned for each tensor l and
step k. The batch normalisations: a learned scale and shift for each step, which do not adapt. The
objective: at first the query losses after all K steps count, with weights that move to the last
one. The derivatives: at first each inner gradient is treated as a constant.

As the authors' code has it, the query after step k is predicted with the scale and shift that step
k had. Their running statistics for each step are not here: in their code they are written and never
read, since every layer normalises with its batch. Where more steps are taken than were trained, the
further ones have the last one's rates, scales and shifts. The annealings follow
`learner.progress` from one outer step to the next, where the authors' follow whole epochs.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metamirror.core.adjoints import FirstOrder
from metamirror.core.episode import Episode
from metamirror.core.geometry import Geometry, moved
from metamirror.core.mirror_map import Identity, MirrorMap
from metamirror.core.normalisation import BatchNorm
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params
from metamirror.linalg.parametrisation import SPEED
from metamirror.methods.named_parameters import learned
from metamirror.methods.registry import Method, Parts


@dataclass(frozen=True)
class Options:
    """Options of `mamlpp`. With the first two false and the others 0 it is MAML.

    Attributes:
        rates: learn a rate for every tensor and step.
        norms: learn a scale and shift of each batch normalisation for every step.
        all_losses_until: share of training during which the losses after all steps count. The
            authors' 100 epochs have 15 on miniImageNet and 10 on Omniglot.
        first_order_until: share of training during which inner gradients are constants. 50 epochs,
            as summaries of the paper have it, are half of 100; the released configurations
            have none.
    """

    rates: bool = True
    norms: bool = True
    all_losses_until: float = 0.15
    first_order_until: float = 0.5


class StepState(NamedTuple):
    """The parameters, and how many steps were taken."""

    z: Params
    k: int


class StepGeometry(Geometry[StepState]):
    """Gradient descent with rates, and scales and shifts of normalisations, of each step.

    The model's own scales and shifts are those of the first step. A rate is stored as its relative
    change a: alpha (1 + 10 a), which one learning rate serves whatever alpha is; at alpha = 0.1 it
    learns as if it were stored itself.

    Args:
        shapes: the tensors that adapt, by name.
        norms: scales and shifts to be learned for each step, by name.
        steps: how many steps have their own.
        rates: whether rates are learned.
    """

    # A tensor has one rate a step, however large it is.
    any_outputs = True

    def __init__(self, shapes: Params, norms: Params, steps: int, rates: bool):
        super().__init__()
        self.column = {name: i for i, name in enumerate(shapes)}
        self.norm_names = list(norms)
        self.last = max(steps, 1) - 1
        table = next(iter(shapes.values())).new_zeros(self.last + 1, len(shapes))
        self.rates = nn.Parameter(table) if rates else None
        self.norms = nn.ParameterList(
            p.expand(self.last, *p.shape).clone() for p in norms.values() if self.last
        )

    def begin(self, theta: Params, prepared: None, noise: Params) -> StepState:
        return StepState(theta, 0)

    def primal(self, state: StepState) -> Params:
        return state.z

    def given(self, state: StepState) -> Params:
        return self.norms_of(state.k)

    def norms_of(self, k: int) -> Params:
        """Return the scales and shifts of step k + 1, where they are not the model's own."""
        row = min(k, self.last) - 1
        if row < 0:
            return {}
        return {name: p[row] for name, p in zip(self.norm_names, self.norms, strict=True)}

    def step(self, state: StepState, grad: Params, *, lr: float, loss: Tensor, k: int) -> StepState:
        direction = grad
        if self.rates is not None:
            rates = 1 + SPEED * self.rates[min(k, self.last)]
            direction = {name: rates[self.column[name]] * g for name, g in grad.items()}
        return StepState(moved(state.z, direction, lr), state.k + 1)

    def candidate_mirror_map(self, theta: Params) -> MirrorMap | None:
        """Return the identity without rates; with them, no one map serves all steps."""
        return Identity() if self.rates is None else None


class AnnealedQueryLoss:
    """The query losses after every step, first or second order, as far as training is."""

    def __init__(self, options: Options):
        self.options = options

    def __call__(self, episode: Episode) -> Tensor:
        progress, until = episode.inner.progress, self.options.all_losses_until
        adjoint = FirstOrder() if progress < self.options.first_order_until else None
        if progress >= until or episode.inner.steps == 0:
            return episode.query_loss(episode.descend(adjoint=adjoint).phi)
        geometry: Any = episode.inner.geometry
        path = episode.descend(adjoint=adjoint, keep=True)
        losses = [
            episode.query_loss({**geometry.norms_of(k), **geometry.primal(state)})
            for k, state in enumerate(path.states[1:])
        ]
        weights = loss_weights(len(losses), progress / until)
        return torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum()


def loss_weights(steps: int, share: float) -> list[float]:
    """Return the weights of the losses after each step; `share` of the annealing is done.

    All are 1/K at first. Those before the last fall in a straight line, but not below 0.03/K, and
    the last one takes what they lose.

    >>> loss_weights(4, 0.5)
    [0.125, 0.125, 0.125, 0.625]
    """
    early = max(1 - share, 0.03) / steps
    return [early] * (steps - 1) + [1 - (steps - 1) * early]


def norm_parameters(model: nn.Module) -> Params:
    """Return the learned scales and shifts of all batch normalisations; a tied one once."""
    kinds = (BatchNorm, nn.modules.batchnorm._BatchNorm)
    norms = [m for m in model.modules() if isinstance(m, kinds)]
    own = {id(p) for m in norms for p in m.parameters(recurse=False)}
    return {n: p.detach() for n, p in model.named_parameters() if p.requires_grad and id(p) in own}


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn rates, scales and shifts for each of the steps, and anneal the objective."""
    for name in ("all_losses_until", "first_order_until"):
        if not 0 <= getattr(options, name) <= 1:
            raise ValueError(
                f"mamlpp:{name} is {getattr(options, name)}; it is a share of training: from 0 to 1"
            )
    norms = norm_parameters(model) if options.norms else {}
    adapting = {name: p for name, p in learned(model).items() if name not in norms}
    if not adapting:
        raise ValueError("mamlpp finds nothing to adapt beside batch normalisations: norms=false")
    geometry = StepGeometry(adapting, norms, settings.steps, options.rates)
    return Parts(model, geometry, AnnealedQueryLoss(options), adapts=list(adapting))


METHOD = Method(
    key="mamlpp",
    title="MAML++",
    optimizer="GD with rates of each step",
    geometry="block-constant diagonal",
    paper="Antoniou, Edwards, Storkey 2019",
    reported="52.15 ± 0.26 / 68.32 ± 0.44, conv4",
    build=build,
    options=Options,
    # On Omniglot down to 1e-5; the released configuration for miniImageNet keeps the rate.
    recipe={"schedule": "cosine"},
    anneals=True,
    group="relative",
)
