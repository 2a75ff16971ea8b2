"""The inner level of a learner: everything that adapting to one task needs."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metamirror.core.adjoints import Adjoint
from metamirror.core.checks import asked_outputs, check_labels, check_lr, check_steps
from metamirror.core.derivatives import check_loss
from metamirror.core.geometry import Geometry, GradientDescent, State
from metamirror.core.inner_loop import Path, descend, detached
from metamirror.core.layer_calls import recorded_calls
from metamirror.core.linear_head import FEWER, descended_on_head
from metamirror.core.losses import LOSSES
from metamirror.core.lower_level import LowerLevel
from metamirror.core.predictor import Predictor, without_fusion
from metamirror.core.priors import Diagonal, Prior
from metamirror.core.settings import Settings
from metamirror.core.start import LearnedStart, Start
from metamirror.core.tasks import Batch, Params, Task, tensor_like
from metamirror.core.trees import leaves


class InnerLevel(Predictor):
    """A model, start, geometry and prior around the one inner loop: arguments as in `Learner`."""

    def __init__(
        self,
        model: nn.Module,
        geometry: Geometry[Any] | None,
        start: Start | None,
        prior: Prior | None,
        adapts: Iterable[str] | None,
        settings: Settings,
    ):
        start = start or LearnedStart()
        super().__init__(model, adapts, start.computed)
        self.geometry: Geometry[Any] = geometry or GradientDescent()
        self.start = start
        if not (prior is None or isinstance(prior, Prior)):
            raise ValueError(f"prior is {prior!r}; give a Prior, or a word such as isotropic:0.1")
        self.prior = prior if self.geometry.descends else None
        self.progress = 1.0
        """How far training is, from 0 to 1: what `train` sets before every outer step.

        An objective may read it as `episode.inner.progress`, to anneal something. 1 says that
        training is over, and is what a learner has that nobody trains.
        """
        if isinstance(prior, Diagonal) and set(prior.names) != set(self.adapts):
            raise ValueError(f"the prior is for {prior.names}; what adapts is {self.adapts}")
        self._use(settings)

    @property
    def steps(self) -> int:
        """K, the number of inner steps."""
        return self.steps_of(None)

    @property
    def lr(self) -> float:
        """Alpha, the inner step size."""
        return self.settings.lr

    def steps_of(self, asked: int | None) -> int:
        """Return K: what is asked for or else in the settings, and 0 without an inner loop."""
        steps = self.settings.steps if asked is None else check_steps(asked)
        return steps if self.geometry.descends else 0

    def configure(self, **changes: Any) -> None:
        """Change some of the settings.

        >>> import metamirror as mm
        >>> learner = mm.make_learner("maml", mm.models.MLP(1, 1))
        >>> learner.configure(steps=3, norm="inductive")
        >>> learner.steps
        3
        """
        if "start" in changes:
            raise ValueError("start belongs to how a learner was built: give it to make_learner")
        Settings.check_names(changes)
        self._use(replace(self.settings, **changes))

    def _use(self, settings: Settings) -> None:
        self.check_layers(settings)
        self._check_adjoint(settings.adjoint)
        self.settings = settings
        self.keep_averages()

    def _check_adjoint(self, adjoint: Adjoint) -> None:
        if adjoint.needs_prior and not self.geometry.descends:
            raise ValueError(
                f"the {adjoint.name} adjoint differentiates what inner steps minimise, and this "
                f"method takes none: leave the adjoint out"
            )
        if adjoint.needs_prior and (self.prior is None or self.prior.vanishes):
            state = "there is none" if self.prior is None else "its weight is 0"
            raise ValueError(
                f"the {adjoint.name} adjoint reaches the start through the prior of the lower "
                f"level, and {state}: give one, such as prior=isotropic:1"
            )
        if adjoint.last and self.geometry.stochastic:
            raise ValueError(
                f"adjoint {adjoint.name}:last is {adjoint.last}; steps of a geometry that draws "
                f"noise cannot be taken again: leave it at 0"
            )

    # Adapting

    def prepare(self) -> Any:
        """Compute what the tasks of an outer step share."""
        return self.geometry.prepare(self.theta() if self.start.shared else None)

    def begin(self, support: Batch, *, seed: int | None = None, detached: bool = False) -> State:
        """Return the state at k = 0 of one task.

        Args:
            support: its labelled examples.
            seed: of the geometry's own noise; by default drawn from torch's generator.
            detached: begin at a copy of the learned parameters, outside the graph.
        """
        noise = self.noise(seed)
        if detached:
            return self.begin_detached(support, noise)
        return self.begin_at(self.theta(), support, self.prepare(), noise)

    def begin_detached(self, support: Batch, noise: Params, outputs: int | None = None) -> State:
        """Return the state at k = 0 at a copy of the learned parameters, outside the graph."""
        theta = {name: value.detach().clone() for name, value in self.theta().items()}
        with torch.no_grad():
            prepared = self.geometry.prepare(theta if self.start.shared else None)
            return self.begin_at(theta, support, prepared, noise, outputs)

    def begin_at(
        self,
        theta: Params,
        support: Batch,
        prepared: Any,
        noise: Params,
        outputs: int | None = None,
    ) -> State:
        """Return the state at k = 0, from what was prepared for all tasks and one task's noise.

        `outputs` is how many outputs the task asks for; by default its labels are counted, which
        cannot be done under vmap.
        """
        if self.start.any_outputs and outputs is None:
            outputs = asked_outputs(support.y, self.outputs(support.x))

        def layer_input(layer: str, theta: Params) -> Tensor:
            if self.geometry.moves_start:
                theta = self.geometry.primal(self.geometry.begin(theta, prepared, noise))
            return self.layer_input(layer, theta, support.x)

        lower = replace(self.lower_level(support), outputs=outputs, layer_input=layer_input)
        start = self.start(theta, lower)
        if not self.start.shared:
            # A start that is computed depends on theta: other nodes of the graph, so that the
            # inner gradient by one parameter does not go through another.
            start = {name: p.view_as(p) for name, p in start.items()}
        state: State = self.geometry.begin(start, prepared, noise)
        return state

    def noise(self, seed: int | None) -> Params:
        """Draw the geometry's own noise for one task (MT-net's masks, for example)."""
        if not self.geometry.stochastic:
            return {}
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        like = next(iter(self.theta().values()))
        noise = self.geometry.draw(torch.Generator().manual_seed(seed))
        return {name: tensor_like(value, like) for name, value in noise.items()}

    def lower_level(self, support: Batch, fixed: Params | None = None) -> LowerLevel:
        """Return what the inner loop minimises for a support set.

        `fixed` has values for parameters that do not adapt, in place of the model's own.
        """
        own = fixed or {}
        return LowerLevel(
            predict=lambda phi, x: self.predict({**own, **phi}, x),
            batch=support,
            own_loss=self.settings.loss,
            prior=self.prior,
            fixed=own,
        )

    def behind_body(self, lower: LowerLevel, adjoint: Adjoint) -> LowerLevel:
        """Return a lower level that runs the head alone, where nothing else adapts.

        Its inputs are what the body makes of the support set, once for all steps. That holds for
        the library's own models, whose output is the head's.
        """
        ours = self.is_ours and self.settings.autocast is None
        gives = type(self.geometry).given is not Geometry.given
        lone = all(name.startswith("head.") for name in self.adapts)
        if not (ours and lone and adjoint.knows_body) or gives:
            return lower
        head = self.model.get_submodule("head")
        with recorded_calls(self.model, "head") as calls:
            lower.predict({}, lower.batch.x)

        def predict(phi: Params, x: Tensor) -> Tensor:
            every = {**lower.fixed, **phi}
            own = {n.removeprefix("head."): p for n, p in every.items() if n.startswith("head.")}
            output: Tensor = functional_call(head, own, (x,))
            return output

        return replace(lower, predict=predict, batch=Batch(calls[0][0], lower.batch.y))

    def descend(
        self,
        lower: LowerLevel,
        state: State,
        *,
        adjoint: Adjoint | None = None,
        keep: bool = False,
        steps: int | None = None,
        lr: float | None = None,
        phi0: Params | None = None,
        first: int = 0,
        inside_vmap: bool = False,
    ) -> Path:
        """Run the inner loop from a state; what is not given is as in the settings.

        `phi0` is the prior's centre, if not the state's own point; `inside_vmap` says that tasks
        run under `torch.func.vmap`; the other arguments as in `inner_loop.descend`.
        """
        adjoint = self.settings.adjoint if adjoint is None else adjoint
        if phi0 is None and self.prior is not None:
            graph = adjoint.builds_graph or adjoint.attaches
            with torch.set_grad_enabled(graph and torch.is_grad_enabled()):
                phi0 = self.geometry.primal(state)

        def renew() -> State:
            z = detached(state.z)
            prepared = self.geometry.prepare(z if self.start.shared else None)
            begun: State = self.geometry.begin(z, prepared, {})
            return begun

        if self.attends and adjoint.differentiates_twice:
            # Inside the lower level: a rematerialised step runs again, later.
            lower = replace(lower, predict=without_fusion(lower.predict))
        lower = self.behind_body(lower, adjoint)
        count, rate = self.steps_of(steps), self.lr if lr is None else check_lr(lr)
        stacked = leaves(lower.batch) if inside_vmap else ()
        if count > 1 and not (keep or first) and self.descends_on_head(lower, adjoint):
            return descended_on_head(
                lower, state, steps=count, lr=rate, adjoint=adjoint, stacked=stacked
            )
        return descend(
            self.geometry.lower_level(lower, state),
            self.geometry,
            state,
            steps=count,
            lr=rate,
            adjoint=adjoint,
            stacked=stacked,
            keep=keep,
            phi0=phi0,
            through=[p for p in self.parameters() if p.requires_grad],
            first=first,
            renew=renew if adjoint.last else None,
        )

    def descends_on_head(self, lower: LowerLevel, adjoint: Adjoint) -> bool:
        """Return whether gradient descent moves a linear head and nothing else, of many inputs."""
        x, head = lower.batch.x, getattr(self.model, "head", None)
        plain = type(self.geometry) is GradientDescent and self.prior is None
        known = self.is_ours and adjoint.knows_body and self.settings.autocast is None
        if not (plain and known and type(head) is nn.Linear and head.weight.dim() == 2):
            return False
        whole = set(self.adapts) == {f"head.{name}" for name, _ in head.named_parameters()}
        return whole and x.dim() == 2 and FEWER * len(x) <= x.shape[1] == head.in_features

    def fits_any_outputs(self, steps: int | None = None) -> bool:
        """Return whether tasks may ask for another number of outputs than the model has.

        That is where the head is computed, and no step, or one that does not depend on its shape,
        follows; `steps` are those of the settings unless given.
        """
        bound = not self.geometry.any_outputs or isinstance(self.prior, Diagonal)
        rests = (self.steps if steps is None else steps) == 0 and not self.geometry.moves_start
        return self.start.any_outputs and (rests or not bound)

    def check_outputs(self, batch: Batch, name: str, outputs: int | None = None) -> None:
        """Name a wrong shape or label before it fails deep inside torch, or not at all."""
        own = self.outputs(batch.x)
        if self.settings.loss is None and own:
            check_labels(batch, name, own if outputs is None else outputs)

    def check_losses(self, task: Task) -> None:
        """Refuse losses of the user's own that training cannot use, before it begins."""
        s = self.settings
        # A head that is computed may be larger than the one that stands there.
        if self.start.any_outputs or leaves(task.support.x)[0].device.type == "meta":
            return
        for name, batch in (("loss", task.support), ("query_loss", task.query)):
            loss, trial = getattr(s, name), self.trial(batch)
            if name == "query_loss":
                trial = replace(trial, twice=False)
            key = (name, id(loss), trial.twice, s.vectorize)
            if loss not in (None, *LOSSES.values()) and key not in self._tried:
                with torch.random.fork_rng():
                    check_loss(loss, name, trial)
                self._tried.add(key)

    def asked_outputs(self, support: Batch, steps: int | None = None) -> int | None:
        """Return how many outputs a support set asks for; None if it has to take the model's."""
        if not self.start.any_outputs:
            return None
        own = self.outputs(support.x)
        asked = asked_outputs(support.y, own)
        if asked != own and not self.fits_any_outputs(steps):
            raise ValueError(
                f"the task asks for {asked} outputs, and the geometry or the prior is made for the "
                f"model's {own}: build the model with {asked}, or use plain gradient descent, as "
                f"maml:start=prototypes does, which takes any number"
            )
        return asked
