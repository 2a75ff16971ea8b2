"""What every method must satisfy, on two small networks in float64."""

import copy
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import nn

from metamirror.core.learner import Learner
from metamirror.core.tasks import Batch, Params, Task
from metamirror.core.trees import mapped
from metamirror.methods import METHODS, Method, make_learner
from metamirror.storage.learner_file import load, save
from metamirror.testing.differences import check_slope, move, named, require
from metamirror.testing.networks import smooth_conv, smooth_mlp, tasks_of


def check_method(
    method: str | Method,
    *,
    starts_as: str | None = "maml",
    no_finite_differences: str | None = None,
    straight_through: str | None = None,
    unused: Sequence[str] = (),
) -> None:
    """Check a method as the library's own are checked; a new method fails here first.

    Args:
        method: a key with options, such as `metasgd:positive=true`, or a `Method`, which need not
            be registered.
        starts_as: the method whose path it follows, exactly, before it has learned; None if none.
        no_finite_differences: why its meta-gradient is not the gradient of its value.
        straight_through: how the names of parameters begin whose gradient is defined otherwise.
        unused: parts of the names of parameters that have no gradient, by intention.

    >>> check_method("maml")
    """
    with registered(method) as spec, torch.random.fork_rng(devices=[]):
        for model, tasks in ((smooth_mlp(), tasks_of((6,))), (smooth_conv(), tasks_of((1, 8, 8)))):
            check_step(spec, model, tasks)
            if no_finite_differences is None:
                check_learner_gradient(moved(spec, model, steps=3), tasks, straight_through)
            if starts_as is not None:
                check_start(spec, model, tasks, starts_as)
            check_vmap(spec, model, tasks)
            check_meta_device(spec, model, tasks)
            check_strides(spec, model, tasks)
            check_adaptation(spec, model, tasks)
        check_copies(spec, smooth_mlp(), tasks_of((6,)))
        check_learning(spec, smooth_mlp(), tasks_of((6,)), unused)


@contextmanager
def registered(method: str | Method) -> Iterator[str]:
    """Put a method into the registry for a while, and yield the name to use it by."""
    if isinstance(method, str):
        yield method
        return
    with patch.dict(METHODS, {method.key: method}):
        yield method.key


def check_step(spec: str, model: nn.Module, tasks: Task) -> None:
    """Check that a step keeps names and shapes, and is the same when it is taken again."""
    learner = moved(spec, model)
    way_out = "direction and step must return every parameter, in its own shape"
    with named(f"{spec} cannot take a step", way_out):
        paths = [learner.adapt(_first(tasks), seed=0, keep=True).path for _ in range(2)]
    params, again = (path.phi for path in paths)
    # Beside what adapts may stand what the geometry gives, or what a start takes from the support.
    own = {n: p for n, p in learner.model.named_parameters() if n in {*params, *learner.adapts}}
    forms = [{n: tuple(t.shape) for n, t in p.items()} for p in (own | paths[0].points[0], params)]
    require(forms[0] == forms[1], f"{spec} goes from {forms[0]} to {forms[1]}: {way_out}")
    require(
        all(torch.equal(p, again[name]) for name, p in params.items()),
        f"{spec} adapts differently with the same seed: draw noise in `draw`, with its generator",
    )


def check_learner_gradient(
    learner: Learner, tasks: Task, straight_through: str | None = None
) -> None:
    """Check a learner's meta-gradient, part by part, against finite differences."""
    grads = meta_gradient(learner, tasks)
    left_out = straight_through or "nothing"
    named = {n: p for n, p in learned(learner).items() if not n.startswith(left_out)}
    for part in ("model.", "geometry.", "start.", "prior."):
        if chosen := {name: p for name, p in named.items() if name.startswith(part)}:
            check_slope(
                lambda: learner.meta_loss(tasks, seeds=_seeds(tasks)),
                list(chosen.values()),
                [grads[name] for name in chosen],
                f"the meta-gradient by {part.rstrip('.')}",
            )


def check_start(spec: str, model: nn.Module, tasks: Task, starts_as: str = "maml") -> None:
    """Check that the method, before it has learned, follows another method's path exactly."""
    paths = []
    for one in (spec, starts_as):
        adapted = make_learner(one, model, steps=4, lr=0.1).adapt(_first(tasks), seed=0)
        paths.append([*adapted.params.values(), adapted.path.losses])
    error = max(float((a - b).abs().max()) for a, b in zip(*paths, strict=True))
    require(
        error <= 1e-12,
        f"{spec} does not start as {starts_as}: after 4 steps the paths differ by {error:.3g}. "
        f"Choose initial values that do nothing, or call check_method(..., starts_as=None)",
    )


def check_vmap(spec: str, model: nn.Module, tasks: Task) -> None:
    """Check that tasks under vmap give the meta-gradient that they give one after the other."""
    learner = moved(spec, model)
    if not learner.settings.adjoint.vectorizes:
        return  # `Settings` refuses it
    loop = meta_gradient(learner, tasks)
    with named(f"{spec} fails under torch.func.vmap", "do not branch on values"):
        stacked = meta_gradient(moved(spec, model, vectorize=True), tasks)
    error = relative_difference(stacked, loop)
    require(
        error < 1e-10,
        f"{spec} has another meta-gradient under torch.func.vmap, by {error:.3g} of its length: do "
        f"not branch on values and change nothing in place",
    )


def check_meta_device(spec: str, model: nn.Module, tasks: Task) -> None:
    """Check that the method makes every tensor where its inputs are."""
    there: Task = mapped(lambda tensor: tensor.to("meta"), tasks)
    learner = make_learner(spec, copy.deepcopy(model).to("meta"), steps=2)
    with named(f"{spec} fails on the meta device", "make every tensor where its inputs are"):
        grads = meta_gradient(learner, there)
    for name, grad in grads.items():
        require(grad.is_meta, f"{spec}: the gradient of {name} is not on the meta device")


def check_strides(spec: str, model: nn.Module, tasks: Task) -> None:
    """Check that gradients have their parameter's strides, which fused optimisers rely on."""
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    learner = make_learner(spec, last, steps=1)
    _, grads = learner.meta_gradient(tasks, seeds=_seeds(tasks))
    for (name, p), grad in zip(learned(learner).items(), grads, strict=True):
        # The stride along an axis of length one means nothing.
        strides = [
            [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (p, grad)
        ]
        require(
            strides[0] == strides[1],
            f"{spec}: {name} has strides {p.stride()} and its gradient {grad.stride()}: fused "
            f"optimisers would pair the wrong numbers",
        )


def check_adaptation(spec: str, model: nn.Module, tasks: Task) -> None:
    """Check that adapting leaves the learner as it was, and keeps no graph."""
    learner = moved(spec, model, steps=3)
    before = copy.deepcopy(learner.state_dict())
    adapted = learner.adapt(_first(tasks), seed=0)
    for name, value in learner.state_dict().items():
        require(torch.equal(value, before[name]), f"{spec}: adapting has changed {name}")
    for name, p in adapted.params.items():
        require(not p.requires_grad, f"{spec}: the adapted {name} still has a graph")


def check_copies(spec: str, model: nn.Module, tasks: Task) -> None:
    """Check that saved, pickled and copied learners are the same to the bit, and repr works."""
    learner = moved(spec, model, steps=3)
    expected = learner.meta_loss(tasks, seeds=_seeds(tasks))
    repr(learner)
    with tempfile.TemporaryDirectory() as folder:
        save(learner, folder)
        restored = load(folder)
    try:
        pickled = pickle.loads(pickle.dumps(learner))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(
            f"{spec} cannot be sent to a worker process: {error}. Define its classes in a module "
            f"and hold no local function"
        ) from error
    copies = {"saved": restored, "pickled": pickled, "copied": copy.deepcopy(learner)}
    for how, other in copies.items():
        theirs = dict(other.named_parameters())
        for name, p in learner.named_parameters():
            require(torch.equal(p, theirs[name]), f"{spec}: {name} changes when {how}")
        require(
            torch.equal(other.meta_loss(tasks, seeds=_seeds(tasks)), expected),
            f"{spec}: the loss changes when {how}: what decides it must be a parameter, a buffer "
            f"or an option",
        )


def check_learning(spec: str, model: nn.Module, tasks: Task, unused: Sequence[str] = ()) -> None:
    """Check that every meta-parameter has a gradient within two outer steps."""
    learner = make_learner(spec, model, steps=2, lr=0.1)
    parameters = learned(learner)
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-2)
    still = {name for name in parameters if not any(part in name for part in unused)}
    for _ in range(2):
        for name, grad in meta_gradient(learner, tasks).items():
            # Rounding in a sum that is zero in exact arithmetic does not count.
            if float(grad.abs().max()) > 1e-14:
                still.discard(name)
            parameters[name].grad = grad
        optimizer.step()
    require(
        not still,
        f"{spec}: {sorted(still)} have no gradient in two outer steps. A product of two factors "
        f"that both start at zero never learns; name what is meant to rest in `unused`",
    )


def learned(learner: Learner) -> Params:
    """Return what the outer level learns, by name."""
    return {name: p for name, p in learner.named_parameters() if p.requires_grad}


def moved(spec: str, model: nn.Module, *, steps: int = 2, vectorize: bool = False) -> Learner:
    """Return a learner away from its start, so that nothing holds by being there."""
    torch.manual_seed(0)  # two learners of a method that starts at random are the same
    learner = make_learner(spec, model, steps=steps, lr=0.1, vectorize=vectorize)
    move(list(learner.parameters()), 0.1, seed=2)
    return learner


def meta_gradient(learner: Learner, tasks: Task) -> Params:
    """Return the gradient of the meta-loss by autograd, by name."""
    parameters = learned(learner)
    loss = learner.meta_loss(tasks, seeds=_seeds(tasks))
    grads = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    return dict(zip(parameters, grads, strict=True))


def relative_difference(a: Params, b: Params) -> float:
    """Return the length of a - b over that of b, as vectors."""
    difference = torch.cat([(a[name] - b[name]).flatten() for name in a]).norm()
    return float(difference / torch.cat([b[name].flatten() for name in a]).norm())


def _first(tasks: Task) -> Batch:
    return Batch(*(t[0] for t in tasks.support))


def _seeds(tasks: Task) -> list[int]:
    return list(range(tasks.support.examples))
