"""The inner level of a learner: everything that adapting to one task needs."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metamirror.core.adjoints import Adjoint, Detached, FirstOrder
from metamirror.core.attention import AttentionWatch, plain_attention
from metamirror.core.checks import asked_outputs, check_labels, check_lr, check_steps
from metamirror.core.derivatives import check_derivatives
from metamirror.core.geometry import Geometry, GradientDescent, State
from metamirror.core.inner_loop import Path, descend, detached
from metamirror.core.layer_calls import recorded_calls
from metamirror.core.lower_level import LowerLevel
from metamirror.core.normalisation import (
    Statistics,
    fixed_statistics,
    recorded_statistics,
    torch_layer_norms,
    torch_norms,
)
from metamirror.core.priors import Diagonal, Prior
from metamirror.core.settings import Settings
from metamirror.core.start import LearnedStart, Start
from metamirror.core.tasks import Batch, Params, tensor_like


class InnerLevel(nn.Module):
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
        super().__init__()
        self.model = model
        self.geometry: Geometry[Any] = geometry or GradientDescent()
        self.start = start or LearnedStart()
        if not (prior is None or isinstance(prior, Prior)):
            raise ValueError(f"prior is {prior!r}; give a Prior, or a word such as isotropic:0.1")
        self.prior = prior if self.geometry.descends else None
        self.draws_noise = False
        """Whether the model was seen to draw random numbers, as a dropout layer does."""
        self.progress = 1.0
        """How far training is, from 0 to 1: what `train` sets before every outer step.

        An objective may read it as `episode.inner.progress`, to anneal something. 1 says that
        training is over, and is what a learner has that nobody trains.
        """
        self.attends = True
        """Whether it may call fused attention; False once it was seen to run without."""
        self._tried: set[tuple[bool, bool, bool]] = set()
        self._outputs: dict[tuple[torch.Size, torch.dtype, torch.device, bool], int] = {}

        computed = self.start.computed
        learned = {n for n, p in model.named_parameters() if p.requires_grad or n in computed}
        if isinstance(adapts, str):
            raise ValueError(f"adapts is {adapts!r}; give a list of names, or use make_learner")
        wanted = learned if adapts is None else set(adapts)
        if wanted - learned:
            raise ValueError(
                f"{sorted(wanted - learned)} cannot adapt: the model's learned parameters "
                f"are {sorted(learned)}"
            )
        if not wanted:
            raise ValueError("no parameter adapts: the model has none that requires a gradient")
        self.adapts = [name for name, _ in model.named_parameters() if name in wanted]
        if isinstance(prior, Diagonal) and set(prior.names) != wanted:
            raise ValueError(f"the prior is for {prior.names}; what adapts is {self.adapts}")
        for name in computed:
            model.get_parameter(name).requires_grad_(False)
        self._use(settings)

    @property
    def steps(self) -> int:
        """K, the number of inner steps."""
        return self.steps_of(None)

    @property
    def lr(self) -> float:
        """Alpha, the inner step size."""
        return self.settings.lr

    @property
    def norm(self) -> str:
        """Whose statistics normalise the query."""
        return self.settings.norm

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
        batch_norms, instance_norms = torch_norms(self.model)
        if settings.vectorize and (batch_norms or instance_norms):
            way_out = (
                "pass the model through metamirror.models.convert_batch_norm"
                if batch_norms
                else "use nn.GroupNorm instead"
            )
            raise ValueError(
                f"{(batch_norms + instance_norms)[0]} is a batch or instance normalisation of "
                f"torch.nn, whose second-order gradients torch.func.vmap gets wrong without an "
                f"error: {way_out}, or leave vectorize off"
            )
        layer_norms = torch_layer_norms(self.model, self.adapts)
        if settings.vectorize and layer_norms and differentiates_twice(settings.adjoint):
            raise ValueError(
                f"{layer_norms[0]} is a layer normalisation of torch.nn, of whose scale, if it "
                f"adapts, torch.func.vmap gets the second-order gradients wrong without an error: "
                f"pass the model through metamirror.models.convert_layer_norm, or leave vectorize "
                f"off"
            )
        if settings.norm == "inductive" and batch_norms:
            raise ValueError(
                f"{batch_norms[0]} of torch.nn cannot take the support set's statistics: pass the "
                f"model through metamirror.models.convert_batch_norm, or use norm='transductive'"
            )
        self._check_adjoint(settings.adjoint)
        self.settings = settings

    def _check_adjoint(self, adjoint: Adjoint) -> None:
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

    # Parameters

    def theta(self) -> Params:
        """Return the learned parameters that adapt: phi^(0), or its dual z^(0)."""
        named = dict(self.model.named_parameters())
        return {name: named[name] for name in self.adapts}

    def fixed(self) -> Params:
        """Return the model's parameters that do not adapt, outside the graph."""
        return {
            name: p.detach() for name, p in self.model.named_parameters() if name not in self.adapts
        }

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
        if not detached:
            return self.begin_at(self.theta(), support, self.prepare(), noise)
        theta = {name: value.detach().clone() for name, value in self.theta().items()}
        with torch.no_grad():
            prepared = self.geometry.prepare(theta if self.start.shared else None)
            return self.begin_at(theta, support, prepared, noise)

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
        )

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

        `phi0` is the prior's centre, if not the state's own point; the other arguments as in
        `inner_loop.descend`.
        """
        adjoint = self.settings.adjoint if adjoint is None else adjoint
        if phi0 is None and self.prior is not None:
            with torch.set_grad_enabled(adjoint.builds_graph or adjoint.attaches):
                phi0 = self.geometry.primal(state)

        def renew() -> State:
            z = detached(state.z)
            prepared = self.geometry.prepare(z if self.start.shared else None)
            begun: State = self.geometry.begin(z, prepared, {})
            return begun

        if self.attends and differentiates_twice(adjoint):
            # Inside the lower level: a rematerialised step runs again, later.
            lower = replace(lower, predict=_without_fusion(lower.predict))
        return descend(
            self.geometry.lower_level(lower, state),
            self.geometry,
            state,
            steps=self.steps_of(steps),
            lr=self.lr if lr is None else check_lr(lr),
            adjoint=adjoint,
            keep=keep,
            phi0=phi0,
            through=[p for p in self.parameters() if p.requires_grad],
            first=first,
            inside_vmap=inside_vmap,
            renew=renew if adjoint.last else None,
        )

    # Predicting

    def predict(self, phi: Params, x: Tensor, statistics: Statistics | None = None) -> Tensor:
        """Return the model's output with parameters phi."""
        # Buffers are passed as copies: a layer that updates its own must not leave traces.
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        low = self.settings.autocast
        precision: AbstractContextManager[object] = nullcontext()
        if low is not None:
            # Without its cache: inner parameters are new tensors at every step.
            precision = torch.autocast(x.device.type, low, cache_enabled=False)
        # Inside transforms nobody knows how often a result is differentiated.
        nested = self.attends and torch._C._are_functorch_transforms_active()
        attention = plain_attention() if nested else nullcontext()
        with fixed_statistics(statistics) if statistics else nullcontext(), precision, attention:
            output: Tensor = functional_call(self.model, {**buffers, **phi}, (x,))
        # A loss is computed in full precision, whatever the model ran in.
        return output if low is None else output.to(next(iter(phi.values())).dtype)

    def layer_input(self, layer: str, phi: Params, x: Tensor) -> Tensor:
        """Return what one layer is given when the model runs with parameters phi."""
        with recorded_calls(self.model, layer) as calls:
            self.predict(phi, x)
        if len(calls) != 1:
            raise ValueError(
                f"the layer {layer!r} is called {len(calls)} times when the model runs; a head "
                f"that is computed must be called once"
            )
        return calls[0][0]

    def statistics(self, phi: Params, support: Batch) -> Statistics | None:
        """Return the support set's statistics for normalisation at phi; None if transductive."""
        if self.norm == "transductive":
            return None
        with recorded_statistics() as recorded:
            self.predict(phi, support.x)
        return recorded

    def outputs(self, x: Tensor) -> int:
        """Return how many numbers the model gives for each of such examples."""
        example = x[:1]
        key = (example.shape, example.dtype, example.device, self.model.training)
        if key in self._outputs:
            return self._outputs[key]
        try:
            # A layer that draws noise must not shift the random state of what follows.
            with torch.no_grad(), torch.random.fork_rng(), AttentionWatch() as watch:
                before = torch.get_rng_state()
                # Twice: torch's batch normalisation refuses to train on one example.
                output = self.predict(self.theta(), torch.cat([example, example]))
                if not torch.equal(before, torch.get_rng_state()):
                    self.draws_noise = True
        except (IndexError, RuntimeError) as error:
            why = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"the model does not take an example of shape {tuple(example.shape[1:])} and type "
                f"{example.dtype}: {why}"
            ) from error
        self.attends = watch.seen or (self.attends and bool(self._outputs))
        self._outputs[key] = output.shape[-1] if output.dim() else 1
        return self._outputs[key]

    def fits_any_outputs(self, steps: int | None = None) -> bool:
        """Return whether tasks may ask for another number of outputs than the model has.

        That is where the head is computed, and no step, or one that does not depend on its shape,
        follows; `steps` are those of the settings unless given.
        """
        bound = not self.geometry.any_outputs or isinstance(self.prior, Diagonal)
        rests = (self.steps if steps is None else steps) == 0 and not self.geometry.moves_start
        return self.start.any_outputs and (rests or not bound)

    def check_derivatives(self, x: Tensor) -> None:
        """Refuse a model that torch cannot differentiate as these settings need."""
        s = self.settings
        twice = differentiates_twice(s.adjoint)
        key = (twice, s.vectorize, self.model.training)
        if key in self._tried or self.steps == 0 or x.device.type == "meta":
            return

        predict = _without_fusion(self.predict) if twice else self.predict
        example = torch.cat([x[:1], x[:1]])
        with torch.random.fork_rng():
            check_derivatives(
                predict, self.model, self.theta(), example, twice=twice, vectorize=s.vectorize
            )
        self._tried.add(key)

    def check_outputs(self, batch: Batch, name: str, outputs: int | None = None) -> None:
        """Name a wrong shape or label before it fails deep inside torch, or not at all."""
        own = self.outputs(batch.x)
        if self.settings.loss is None and not batch.y.is_floating_point():
            check_labels(batch, name, own if outputs is None else outputs)

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


def differentiates_twice(adjoint: Adjoint) -> bool:
    """Return whether an adjoint takes second derivatives of the model."""
    return not isinstance(adjoint, FirstOrder | Detached)


def _without_fusion(predict: Callable[..., Any]) -> Callable[..., Any]:
    def run(phi: Params, x: Any) -> Any:
        with plain_attention():
            return predict(phi, x)

    return run
