"""A learner: a model, a geometry and an objective around the one inner loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metamirror.core.geometry import Geometry, State, tensor_like
from metamirror.core.inner_loop import Order, Path, descend
from metamirror.core.normalisation import (
    Statistics,
    fixed_statistics,
    recorded_statistics,
    torch_norms,
)
from metamirror.core.objectives import Objective, QueryLoss
from metamirror.core.outer_gradient import sum_of_gradients
from metamirror.core.priors import Diagonal, Prior
from metamirror.core.tasks import (
    Batch,
    Loss,
    Params,
    Task,
    check_batch,
    check_labels,
    check_task,
    loss_for,
)

if TYPE_CHECKING:
    from metamirror.parallel.processes import Crew

Norm = Literal["transductive", "inductive"]


class TaskLosses(NamedTuple):
    """What the outer level sees of each task of a stack.

    `loss` is the objective, with its graph; `accuracy` the share of query examples that the
    objective last predicted rightly, and NaN for regression.
    """

    loss: Tensor
    accuracy: Tensor


class Adapted:
    """A model adapted to one task: call it on new inputs.

    Attributes:
        params: the adapted parameters, phi^(K).
        path: support losses and gradient norms on the way there.
        statistics: what normalisation uses; None if the batch's own.
    """

    def __init__(self, learner: Learner, path: Path, statistics: Statistics | None):
        self.params = path.phi
        self.path = path
        self._learner = learner
        self.statistics = statistics
        # Copies: the learner's own go on learning.
        self._fixed = {name: p.clone() for name, p in learner.fixed().items()}

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            phi = {**self._fixed, **self.params}
            return self._learner.predict(phi, x, self.statistics)


class Learner(nn.Module):
    """What is meta-learned: `parameters()` that require a gradient are what the outer level trains.

    Build one with `metamirror.make_learner`, which fills the three slots for a method by name.

    Args:
        model: any module. Its parameters are the learned start.
        geometry: how a gradient becomes an update.
        objective: what the outer level minimises.
        adapts: names of the parameters that adapt; by default all that require a gradient.
        steps: K, at least 0.
        lr: alpha.
        first_order: treat the inner gradients as constants in the outer gradient.
        loss: (output, targets) -> scalar; by default it follows the targets.
        prior: R(phi; theta) of the lower level.
        norm: whose statistics batch normalisation uses for the query: its own batch's
            ("transductive", as MAML and the paper's code do) or the support set's ("inductive").
        vectorize: run the tasks of a step under `torch.func.vmap` instead of one after the other.
        recompute: build each inner step's graph again when the outer level needs it, so that
            memory hardly grows with the number of steps, at the price of time.
    """

    def __init__(
        self,
        model: nn.Module,
        geometry: Geometry | None = None,
        objective: Objective | None = None,
        *,
        adapts: Iterable[str] | None = None,
        steps: int = 5,
        lr: float = 0.01,
        first_order: bool = False,
        loss: Loss | None = None,
        prior: Prior | None = None,
        norm: Norm = "transductive",
        vectorize: bool = False,
        recompute: bool = False,
    ):
        super().__init__()
        self.model = model
        self.geometry = geometry or Geometry()
        self.objective = objective or QueryLoss()
        if not (prior is None or isinstance(prior, Prior)):
            raise ValueError(f"prior is {prior!r}; give a Prior, or a word such as isotropic:0.1")
        self.prior = prior
        self.steps = check_steps(steps)
        self.lr = check_lr(lr)
        for name, flag in (
            ("first_order", first_order),
            ("vectorize", vectorize),
            ("recompute", recompute),
        ):
            if not isinstance(flag, bool):
                raise ValueError(f"{name} is {flag!r}; give True or False")
        if vectorize and recompute:
            raise ValueError("torch.func.vmap cannot recompute: leave vectorize or recompute off")
        if not (loss is None or callable(loss)):
            raise ValueError(f"loss is {loss!r}; give a function (output, targets) -> scalar")
        self.first_order = first_order
        self.loss = loss
        self.norm: Norm = norm
        self.vectorize = vectorize
        self.recompute = recompute
        self.config: dict[str, Any] | None = None
        """How `make_learner` built it: what `save` writes."""
        self.autocast: torch.dtype | None = None
        """The type in which the model's own operations run, where they can; the rest stays."""
        self._inside_vmap = False
        self._accuracies: list[Tensor] | None = None
        self._outputs: dict[tuple[torch.Size, torch.dtype, torch.device, bool], int] = {}
        self.draws_noise = False
        """Whether the model was seen to draw random numbers, as a dropout layer does."""

        learned = {name for name, p in model.named_parameters() if p.requires_grad}
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
        self._check_norm()

    def _check_norm(self) -> None:
        if self.norm not in ("transductive", "inductive"):
            raise ValueError(f"norm is {self.norm!r}; choose 'transductive' or 'inductive'")
        batch_norms, instance_norms = torch_norms(self.model)
        if self.vectorize and (batch_norms or instance_norms):
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
        if self.norm == "inductive" and batch_norms:
            raise ValueError(
                f"{batch_norms[0]} of torch.nn cannot take the support set's statistics: pass the "
                f"model through metamirror.models.convert_batch_norm, or use norm='transductive'"
            )

    def use_norm(self, norm: Norm) -> None:
        """Changes whose statistics normalise the query."""
        self.norm = norm
        self._check_norm()

    # What users call

    def adapt(
        self,
        support: Batch,
        *,
        steps: int | None = None,
        lr: float | None = None,
        seed: int | None = None,
        keep: bool = False,
    ) -> Adapted:
        """A model adapted to one task. Keeps no graph, so memory does not grow with the steps.

        Args:
            support: the task's labelled examples, without a task axis.
            steps: K, if other than the learner's.
            lr: alpha, if other than the learner's.
            seed: of the method's own noise (MT-net's masks); by default drawn from torch's.
            keep: keep every point of the path, which costs one set of parameters per step.
        """
        state = self._begin(support, seed)
        path = self.descend(support, state, order="none", keep=keep, steps=steps, lr=lr)
        with torch.no_grad():
            return Adapted(self, path, self.statistics(path.phi, support))

    def adaptations(
        self,
        support: Batch,
        *,
        steps: int | None = None,
        lr: float | None = None,
        seed: int | None = None,
    ) -> Iterator[Adapted]:
        """The model after 0, 1, ..., K steps, of which only the present one is in memory.

        >>> import metamirror as mm
        >>> learner = mm.make_learner("maml", mm.models.MLP(1, 1))
        >>> support = mm.Batch(torch.zeros(5, 1), torch.ones(5, 1))
        >>> len(list(learner.adaptations(support, steps=3)))
        4
        """
        count = self.steps if steps is None else check_steps(steps)
        state = self._begin(support, seed)
        with torch.no_grad():
            phi0 = self.geometry.primal(state)
        for k in range(count + 1):
            path = self.descend(support, state, order="none", steps=min(k, 1), lr=lr, phi0=phi0)
            state = path.states[-1]
            with torch.no_grad():
                yield Adapted(self, path, self.statistics(path.phi, support))

    def _begin(self, support: Batch, seed: int | None) -> State:
        check_batch(support, "support", stacked=False)
        self._check_outputs(support, "support")
        # A copy: the path holds its start, and the learner's own goes on learning.
        theta = {name: value.detach().clone() for name, value in self.start().items()}
        with torch.no_grad():
            return self.geometry.begin(theta, self.geometry.prepare(), self._noise(seed))

    def meta_loss(self, tasks: Task, *, seeds: Sequence[int] | None = None) -> Tensor:
        """The objective's mean over a stack of tasks, to be differentiated by the outer level.

        Args:
            tasks: tensors with a leading task axis.
            seeds: one per task, of the method's own noise; by default drawn from torch's.
        """
        return self.task_losses(tasks, seeds=seeds).loss.mean()

    def task_losses(self, tasks: Task, *, seeds: Sequence[int] | None = None) -> TaskLosses:
        """The objective of each task of a stack, and the accuracy; arguments as in `meta_loss`."""
        noise = self._check_tasks(tasks, seeds)
        theta, prepared = self.start(), self.prepare()

        def one(task: Task, noise: Params) -> TaskLosses:
            return self.task_loss(task, self.geometry.begin(theta, prepared, noise))

        if not self.vectorize:
            each = [one(task, own) for task, own in zip(_split(tasks), noise, strict=True)]
            return TaskLosses(*(torch.stack(values) for values in zip(*each, strict=True)))
        stacked = {name: torch.stack([n[name] for n in noise]) for name in noise[0]}
        self._inside_vmap = True
        try:
            return TaskLosses(*torch.func.vmap(one, randomness="different")(tasks, stacked))
        finally:
            self._inside_vmap = False

    def meta_gradient(
        self,
        tasks: Task,
        parameters: Sequence[Tensor] | None = None,
        *,
        seeds: Sequence[int] | None = None,
        crew: Crew | None = None,
    ) -> tuple[TaskLosses, list[Tensor]]:
        """The gradient of `meta_loss`, in less time and memory than by differentiating that.

        Tasks run side by side, one for each of torch's threads, and each one's graph is freed at
        once.

        Args:
            tasks: tensors with a leading task axis.
            parameters: what to differentiate by; by default all that the outer level learns.
            seeds: one per task, of the method's own noise; by default drawn from torch's.
            crew: processes that share the tasks; by default threads do.

        >>> import metamirror as mm
        >>> learner = mm.make_learner("maml", mm.models.MLP(1, 1))
        >>> (losses, _), gradient = learner.meta_gradient(mm.tasks("sinusoid", batch=3)[0])
        >>> len(losses), len(gradient)
        (3, 6)
        """
        if parameters is None:
            parameters = [p for p in self.parameters() if p.requires_grad]
        if self.vectorize:
            loss, accuracy = self.task_losses(tasks, seeds=seeds)
            grads = torch.autograd.grad(loss.mean(), tuple(parameters), materialize_grads=True)
            return TaskLosses(loss.detach(), accuracy), list(grads)
        noise = self._check_tasks(tasks, seeds)
        loss, accuracy, total = sum_of_gradients(self, _split(tasks), noise, parameters, crew)
        return TaskLosses(loss, accuracy), [grad / len(noise) for grad in total]

    def task_loss(self, task: Task, state: State) -> TaskLosses:
        """The objective of one task adapted from a state, and the accuracy."""
        self._accuracies = []
        try:
            loss = self.objective(self, task, state)
            unknown = loss.detach().new_full((), float("nan"))
            return TaskLosses(loss, self._accuracies[-1] if self._accuracies else unknown)
        finally:
            self._accuracies = None

    def start(self) -> Params:
        """The learned start of the parameters that adapt: phi^(0), or its dual z^(0)."""
        named = dict(self.model.named_parameters())
        return {name: named[name] for name in self.adapts}

    def fixed(self) -> Params:
        """The model's parameters that do not adapt, outside the graph."""
        return {
            name: p.detach() for name, p in self.model.named_parameters() if name not in self.adapts
        }

    # What objectives and experiments call

    def prepare(self) -> Mapping[str, Any]:
        """What the tasks of an outer step share."""
        prepared = self.geometry.prepare()
        return {**prepared, **self.geometry.prepare_start(self.start(), prepared)}

    def begin(self, *, seed: int | None = None) -> State:
        """The state at k = 0 of one task."""
        return self.geometry.begin(self.start(), self.geometry.prepare(), self._noise(seed))

    def descend(
        self,
        support: Batch,
        state: State,
        *,
        order: Order | None = None,
        keep: bool = False,
        steps: int | None = None,
        lr: float | None = None,
        fixed: Params | None = None,
        phi0: Params | None = None,
    ) -> Path:
        """The inner loop on one task's support set, from a given state.

        `order`, `keep`, `steps` and `lr` as in `inner_loop.descend`; `fixed` holds values
        for parameters that do not adapt, in place of the model's own, and `phi0` the prior's centre
        where that is not the state's own point.
        """
        if order is None:
            order = "first" if self.first_order else "second"
        loss = self.loss or loss_for(support.y)
        if phi0 is None and self.prior is not None:
            with torch.set_grad_enabled(order != "none"):
                phi0 = self.geometry.primal(state)

        def lower(phi: Params, phi0: Params) -> tuple[Tensor, Tensor]:
            value = loss(self.predict({**(fixed or {}), **phi}, support.x), support.y)
            if value.dim():
                raise ValueError(
                    f"the loss has shape {tuple(value.shape)}; it must be a scalar: a mean"
                )
            return (value if self.prior is None else value + self.prior(phi, phi0)), value

        return descend(
            lower,
            self.geometry,
            state,
            steps=self.steps if steps is None else check_steps(steps),
            lr=self.lr if lr is None else check_lr(lr),
            order=order,
            inside_vmap=self._inside_vmap,
            keep=keep,
            phi0=phi0,
            recompute_through=(
                [p for p in self.parameters() if p.requires_grad] if self.recompute else None
            ),
        )

    def predict(self, phi: Params, x: Tensor, statistics: Statistics | None = None) -> Tensor:
        """The model's output with parameters phi."""
        # Buffers are handed over as copies: a layer that updates its own must not leave traces.
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        with fixed_statistics(statistics) if statistics else nullcontext(), self._precision(x):
            output: Tensor = functional_call(self.model, {**buffers, **phi}, (x,))
        # A loss is computed in full precision, whatever the model ran in.
        return output if self.autocast is None else output.to(next(iter(phi.values())).dtype)

    def statistics(self, phi: Params, support: Batch) -> Statistics | None:
        """The support set's statistics for normalisation at phi; None if norm is transductive."""
        if self.norm == "transductive":
            return None
        with recorded_statistics() as recorded:
            self.predict(phi, support.x)
        return recorded

    def query_loss(self, phi: Params, task: Task) -> Tensor:
        """The loss of a task's query set at phi, under the learner's normalisation protocol."""
        output = self.predict(phi, task.query.x, self.statistics(phi, task.support))
        if self._accuracies is not None and not task.query.y.is_floating_point():
            right = output.detach().argmax(-1) == task.query.y
            self._accuracies.append(right.to(output.dtype).mean())
        return (self.loss or loss_for(task.query.y))(output, task.query.y)

    def outputs(self, x: Tensor) -> int:
        """How many numbers the model gives for each of such examples."""
        example = x[:1]
        key = (example.shape, example.dtype, example.device, self.model.training)
        if key not in self._outputs:
            self._outputs[key] = self._probe(example)
        return self._outputs[key]

    # Private

    def _precision(self, x: Tensor) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        # Without its cache: inner parameters are new tensors at every step.
        return torch.autocast(x.device.type, self.autocast, cache_enabled=False)

    def _noise(self, seed: int | None) -> Params:
        if not self.geometry.stochastic:
            return {}
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        like = next(iter(self.start().values()))
        noise = self.geometry.draw(torch.Generator().manual_seed(seed))
        return {name: tensor_like(value, like) for name, value in noise.items()}

    def _check_tasks(self, tasks: Task, seeds: Sequence[int] | None) -> list[Params]:
        """Refuses tasks that do not fit, and draws each one's noise."""
        check_task(tasks)
        count = tasks.support.x.shape[0]
        if seeds is not None and len(seeds) != count:
            raise ValueError(f"{len(seeds)} seeds for {count} tasks; give one per task")
        for name, (x, y) in (("support", tasks.support), ("query", tasks.query)):
            self._check_outputs(Batch(x.flatten(0, 1), y.flatten(0, 1)), name)
        if self.vectorize and self.autocast is not None:
            raise ValueError("torch.func.vmap passes autocast over: leave vectorize off")
        return [self._noise(None if seeds is None else seeds[i]) for i in range(count)]

    def _check_outputs(self, batch: Batch, name: str) -> None:
        """Names a wrong shape or label before it fails deep inside torch, or not at all."""
        outputs = self.outputs(batch.x)
        if self.loss is None and not batch.y.is_floating_point():
            check_labels(batch, name, outputs)

    def _probe(self, example: Tensor) -> int:
        try:
            # A layer that draws noise must not shift the random state of what follows.
            with torch.no_grad(), torch.random.fork_rng():
                before = torch.get_rng_state()
                # Twice: torch's batch normalisation refuses to train on one example.
                twice = torch.cat([example, example])
                output = self.predict(self.geometry.primal(self.begin(seed=0)), twice)
                if not torch.equal(before, torch.get_rng_state()):
                    self.draws_noise = True
        except (IndexError, RuntimeError) as error:
            raise ValueError(
                f"the model does not take an example of shape {tuple(example.shape[1:])} and type "
                f"{example.dtype}: {error}"
            ) from error
        return output.shape[-1] if output.dim() else 1


def _split(tasks: Task) -> list[Task]:
    """The tasks of a stack, one by one."""
    each = zip(*(tensor for batch in tasks for tensor in batch), strict=True)
    return [Task(Batch(sx, sy), Batch(qx, qy)) for sx, sy, qx, qy in each]


def check_steps(steps: int) -> int:
    """K as given, if it is a count."""
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 0:
        raise ValueError(f"steps is {steps!r}; the number of inner steps is a whole number from 0")
    return int(steps)


def check_lr(lr: float) -> float:
    """Alpha as given, if it is finite and not negative."""
    if isinstance(lr, bool) or not (isinstance(lr, Real) and 0 <= lr < float("inf")):
        raise ValueError(f"lr is {lr!r}; the inner step size is finite and at least 0")
    return float(lr)
