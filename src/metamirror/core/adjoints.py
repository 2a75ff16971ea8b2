"""The adjoint slot: how the outer level differentiates the path of the inner loop."""

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import get_device_states, set_device_states

from metamirror.core.implicit import Minimiser
from metamirror.core.lower_level import LowerLevel
from metamirror.core.option_spec import parse_spec, read_options
from metamirror.core.tasks import Params
from metamirror.core.trees import pulled_back, tensors_in, with_tensors


class Adjoint(ABC):
    """How the meta-gradient passes from phi^(K) back to everything that is meta-learned.

    A new one is a frozen dataclass, so that two equal ones compare equal. It sets the attributes
    below, and overrides `step` or `attach` if it does not keep a step's graph as it is.
    """

    name: ClassVar[str]
    builds_graph: ClassVar[bool] = True
    """Whether a state depends on the one before it in the outer level's graph."""
    second_order: ClassVar[bool] = False
    """Whether the inner gradient does too, through the Hessian."""
    knows_body: ClassVar[bool] = True
    """Whether a step may read what the body of the model computed before, outside the step."""
    attaches: ClassVar[bool] = False
    """Whether phi^(K) alone has a graph, which `attach` makes when the path is done."""
    needs_prior: ClassVar[bool] = False
    """Whether it is defined by the minimiser of loss plus prior."""
    last: int = 0
    """How many of the last steps `attach` may take again."""

    @property
    def vectorizes(self) -> bool:
        """Whether it works under `torch.func.vmap`."""
        return True

    @property
    def spec(self) -> str:
        """The word from which `make` builds it again, such as `implicit:cg=5,damping=1.0`."""
        words = ",".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{self.name}:{words}" if words else self.name

    @property
    def differentiates_twice(self) -> bool:
        """Whether it takes second derivatives of the model."""
        return self.second_order or self.attaches

    def step(self, step: Callable[..., Any], *args: Any, through: Sequence[Tensor]) -> Any:
        """Run one inner step. `through` holds the meta-learned tensors that it may use."""
        return step(*args)

    def attach(self, phi: Params, phi0: Params, lower: Any, replay: "Replay") -> Params:
        """Return phi^(K) with the graph by which the outer level reaches the start phi^(0).

        For an adjoint that builds none along the path, as implicit differentiation does.
        """
        return phi


@dataclass(frozen=True)
class Replay:
    """What else an adjoint may attach phi^(K) to.

    Attributes:
        through: the meta-learned tensors that the path may have used.
        geometry: those of them that are the geometry's.
        run: takes the last steps again, with a graph that reaches the geometry alone; None if the
            adjoint asks for no steps.
        stacked: the task's own tensors where it is one of a stack under `torch.func.vmap`.
    """

    through: Sequence[Tensor]
    geometry: Sequence[Tensor]
    run: Callable[[], Params] | None = None
    stacked: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Unrolled(Adjoint):
    """Differentiate every step exactly, Hessians included: memory grows with K. The default."""

    name = "unrolled"
    second_order = True


@dataclass(frozen=True)
class FirstOrder(Adjoint):
    """Treat each inner gradient as a constant."""

    name = "first"


@dataclass(frozen=True)
class Rematerialised(Adjoint):
    """Differentiate exactly, and build each step's graph again when it is needed.

    Memory hardly grows with K, at the price of time: a path holds K sets of parameters and the
    graph of one step, instead of K graphs.
    """

    name = "rematerialised"
    second_order = True
    knows_body = False

    @property
    def vectorizes(self) -> bool:
        return False

    def step(self, step: Callable[..., Any], *args: Any, through: Sequence[Tensor]) -> Any:
        # What the results look like is known only when the step has run.
        found: list[Any] = []
        tensors = _Recomputed.apply(step, args, found, *tensors_in(args), *through)  # type: ignore[no-untyped-call]
        return with_tensors(found[0], tensors)


class _Recomputed(Function):
    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Any], args: Any, found: list[Any], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.function, ctx.args = function, with_tensors(args, tensors)
        # A layer that draws noise has to draw the same again.
        ctx.random = torch.get_rng_state(), *get_device_states(*tensors)
        count = len(tensors_in(args))
        ctx.save_for_backward(*tensors[:count])
        ctx.through = tensors[count:]
        ctx.set_materialize_grads(False)
        found.append(function(*args))
        return tuple(t.detach() for t in tensors_in(found[0]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the meta-gradient of rematerialised steps cannot be differentiated again: choose "
                "the adjoint unrolled"
            )
        own = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        state, devices, device_states = ctx.random
        with torch.enable_grad(), torch.random.fork_rng(devices):
            torch.set_rng_state(state)
            set_device_states(devices, device_states)
            results = tensors_in(ctx.function(*with_tensors(ctx.args, own)))
        inputs = [*own, *ctx.through]
        found = iter(pulled_back(results, grads, [t for t in inputs if t.requires_grad]))
        return None, None, None, *(next(found) if t.requires_grad else None for t in inputs)


@dataclass(frozen=True)
class Implicit(Adjoint):
    r"""Differentiate the minimiser of loss plus prior, whatever path led to it.

    The point after K steps is taken for the minimiser of $L(\phi) + R(\phi; \phi^{(0)})$. Its
    derivative needs nothing but that point (`metamirror.core.implicit`), so that memory does not
    grow with K. With q the gradient of the outer level there,

    $$(R_{\phi\phi} + H_L)\, w = q$$

    is solved by `cg` steps of conjugate gradients, preconditioned by $R_{\phi\phi}$ (which for
    the isotropic prior changes nothing), and w is pulled back to the start, to the prior's own
    parameters, and to those of the model that do not adapt. Without a step nothing is assumed.

    With a damping d, L is L / (1 + d) in all of these derivatives: 0 is the definition, and a large
    one leaves the gradients at $\phi^{(K)}$, as at first order. K steps seldom reach a minimum,
    and where they do not, $H_L$ has negative eigenvalues: undamped, the system may be nearly
    singular. Where its curvature is not positive, the solution ends before that direction.

    A minimiser does not depend on the geometry, which only decides how it is reached: parameters
    of a geometry have no gradient from it, unless they move the start (a dual start does). With
    `last=k` theirs is that of the last k steps, unrolled from a constant state, which nothing else
    has a gradient from.

    Args:
        cg: conjugate-gradient steps, at least 1; each is a Hessian-vector product.
        damping: at least 0.
        last: steps that are unrolled for the geometry's parameters.
    """

    name = "implicit"
    builds_graph = False
    knows_body = False
    attaches = True
    needs_prior = True

    cg: int = 5
    damping: float = 0.0
    last: int = 0

    def __post_init__(self) -> None:
        if self.cg < 1:
            raise ValueError(f"adjoint implicit:cg is {self.cg}; it must be at least 1")
        if not 0 <= self.damping < float("inf"):
            raise ValueError(
                f"adjoint implicit:damping is {self.damping}; it must be finite and at least 0"
            )
        if self.last < 0:
            raise ValueError(f"adjoint implicit:last is {self.last}; it must be at least 0")

    @property
    def vectorizes(self) -> bool:
        # Steps that are taken again are taken later, outside of vmap.
        return not self.last

    def attach(self, phi: Params, phi0: Params, lower: LowerLevel, replay: Replay) -> Params:
        end = Minimiser(lower, self.cg, self.damping, replay.run, replay.geometry, replay.stacked)
        return end.attached(phi, phi0, replay.through)


@dataclass(frozen=True)
class Detached(Adjoint):
    """Keep no graph at all: what adapting uses, since nobody differentiates it."""

    name = "detached"
    builds_graph = False


ADJOINTS: dict[str, type[Adjoint]] = {
    kind.name: kind for kind in (Unrolled, FirstOrder, Rematerialised, Implicit)
}
"""Every adjoint by its name; add one of your own, so that a learner with it can be loaded."""


def make(adjoint: Adjoint | str, own: Adjoint | str = "") -> Adjoint:
    """Return an adjoint from its `spec`: its name, and its fields if it has any.

    `own` is a method's: where it is of the same name, fields that are not given are as in it.

    >>> make("first")
    FirstOrder()
    >>> make("implicit:cg=10", own="implicit:damping=21")
    Implicit(cg=10, damping=21.0, last=0)
    """
    if isinstance(adjoint, Adjoint):
        return adjoint
    name = adjoint.partition(":")[0] if isinstance(adjoint, str) else adjoint
    if name not in ADJOINTS:
        raise ValueError(f"adjoint is {adjoint!r}; choose from {', '.join(ADJOINTS)}")
    words = own.spec if isinstance(own, Adjoint) else own
    (kind, others), (_, given) = (parse_spec(w.replace(",", ":")) for w in (words, adjoint))
    given = {**others, **given} if kind == name else given
    found: Adjoint = read_options(f"adjoint {name}", ADJOINTS[name], given)
    return found
