"""A trial of the derivatives that training will need, on a few examples, before it begins."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metamirror.core.losses import scalar
from metamirror.core.tasks import Batch, Loss, Params
from metamirror.core.trees import form, leaves, mapped, registered

INSTEAD: dict[type[nn.Module], str] = {
    nn.EmbeddingBag: "an nn.Embedding and a mean or sum",
    nn.RNNBase: "a loop over a cell of nn.Linear layers",
    nn.RNNCellBase: "a cell of nn.Linear layers",
    nn.MultiheadAttention: "products and a softmax",
    nn.modules.batchnorm._BatchNorm: "what metamirror.models.convert_batch_norm makes of it",
    nn.modules.instancenorm._InstanceNorm: "track_running_stats=False",
}
"""What to write in place of modules that are known to fail."""

CHECKPOINT = "torch.utils.checkpoint"
CUT_OFF = "None of the inputs have requires_grad=True"
"""What a checkpoint warns of where it cuts parameters off, without an error."""


@dataclass(frozen=True)
class Trial:
    """One inner step and its meta-gradient.

    Attributes:
        call: (parameters, inputs) -> output: the model as the inner loop calls it.
        theta: the parameters that adapt.
        x: inputs of a few examples.
        twice: whether the meta-gradient takes second derivatives.
        vectorize: whether tasks run under `torch.func.vmap`.
        rest: the parameters that do not adapt.
    """

    call: Callable[[Params, Any], Any]
    theta: Params
    x: Any
    twice: bool
    vectorize: bool
    rest: Params = field(default_factory=dict)

    def error(self) -> Exception | None:
        """Return what goes wrong, or None."""
        # Leaves of its own, in which a whole backward pass leaves gradients: one for given inputs
        # passes by what is @once_differentiable, as if that were a constant.
        theta = {n: p.detach().requires_grad_() for n, p in self.theta.items()}
        rest = {n: p.detach().requires_grad_(p.requires_grad) for n, p in self.rest.items()}
        try:
            # Warnings of operations that vmap runs one by one are not for the user.
            with warnings.catch_warnings(record=True) as warned, torch.enable_grad():
                warnings.simplefilter("always")
                value = self._step(theta, rest)
                if value.requires_grad:
                    value.backward()
        except (RuntimeError, IndexError) as error:
            return error
        if any(CUT_OFF in str(warning.message) for warning in warned):
            return RuntimeError(f"{CHECKPOINT}: {CUT_OFF}")
        return None

    def _step(self, theta: Params, rest: Params) -> Tensor:
        """Return the loss after one step, of two tasks under vmap."""

        def loss(phi: Params, x: Any) -> Tensor:
            found = leaves(registered(self.call({**rest, **phi}, x)))
            outputs = [t for t in found if isinstance(t, Tensor) and t.is_floating_point()]
            # An object of the user's own class is known to the loss alone.
            return torch.stack([t.square().mean() for t in outputs or phi.values()]).sum()

        def total(phi: Params) -> Tensor:
            if not self.vectorize:
                return loss(phi, self.x)
            every = torch.func.vmap(loss, (0, axes), randomness="different")(phi, tasks)
            return every.sum()

        tasks = mapped(lambda t: torch.stack([t, t]) if isinstance(t, Tensor) else t, self.x)
        axes = mapped(lambda t: 0 if isinstance(t, Tensor) else None, self.x)
        if self.vectorize:
            theta = {n: p.expand(2, *p.shape) for n, p in theta.items()}
        grads = torch.autograd.grad(
            total(theta), list(theta.values()), create_graph=self.twice, materialize_grads=True
        )
        steps = [g if self.twice else g.detach() for g in grads]
        return total({n: p - g for (n, p), g in zip(theta.items(), steps, strict=True)})


def check_derivatives(model: nn.Module, trial: Trial) -> None:
    """Refuse a model that cannot be differentiated as training will, and name the module."""
    error = trial.error()
    if error is None:
        again = None if trial.vectorize else runs_again(model, trial)
    elif CHECKPOINT in str(error):
        again = type(model).__name__
    else:
        raise ValueError(described(error, model, trial)) from error
    if again is not None:
        raise ValueError(
            f"{again} is under {CHECKPOINT}, which runs it again in the backward pass, with other "
            f"parameters than the inner loop's: call it without; adjoint='rematerialised' saves "
            f"the memory"
        ) from error


def described(error: Exception, model: nn.Module, trial: Trial) -> str:
    """Return what failed, and what to do."""
    trial, error = _simplest(trial, error)
    name, kind = culprit(model, trial)
    instead = next((word for k, word in INSTEAD.items() if isinstance(kind, k)), None)
    what = f"{name} ({type(kind).__name__})" if name else type(model).__name__
    out = [f"use {instead} instead"] if instead else ["replace it"]
    if trial.vectorize:
        out.append("leave vectorize off")
    elif trial.twice:
        out.append("choose adjoint='first'")
        out += ["let something else adapt, as in adapts='head'"] if name else []
    return f"torch cannot differentiate {what}{_way(trial)}: {', or '.join(out)} ({brief(error)})"


def _simplest(trial: Trial, error: Exception) -> tuple[Trial, Exception]:
    """Return the trial without vmap and its error where it fails so too, else as given."""
    plain = replace(trial, vectorize=False)
    alone = plain.error() if trial.vectorize else None
    return (trial, error) if alone is None else (plain, alone)


def _way(trial: Trial) -> str:
    if trial.vectorize:
        return " under torch.func.vmap"
    return " twice" if trial.twice else ""


def brief(error: Exception) -> str:
    """Return the first line of what an error says."""
    words = str(error).strip().partition("\n")[0].rstrip(".")[:160]
    return words or type(error).__name__


def check_loss(loss: Loss, name: str, trial: Trial) -> None:
    """Refuse a loss of the user's own that fails, or that training cannot use.

    Args:
        loss: what is refused.
        name: what the setting is called.
        trial: that of the model; its inputs are a `Batch`, a task's support or query set.
    """
    batch: Batch = trial.x
    theta = {n: p.detach().requires_grad_() for n, p in trial.theta.items()}
    try:
        with torch.enable_grad():
            output = trial.call(theta, batch.x)
            value = loss(output, batch.y)
    except Exception as error:
        raise ValueError(
            f"{name} does not take an output {form(output)} and targets {form(batch.y)}: give a "
            f"function (output, targets) -> scalar that does ({brief(error)})"
        ) from error
    if not scalar(value, name).requires_grad:
        raise ValueError(
            f"{name} is {value.item():.4g} without a gradient; the model must be able to lower it: "
            f"leave out detach(), argmax() and rounding"
        )
    if not bool(value.isfinite()):
        raise ValueError(
            f"{name} is {value.item()} on the first task, before any step; it must be finite: look "
            f"for a division by 0, a logarithm of 0 or a mean of nothing"
        )
    both = replace(trial, call=lambda phi, own: loss(trial.call(phi, own.x), own.y))
    if (failed := both.error()) is not None:
        both, failed = _simplest(both, failed)
        out = "leave vectorize off" if both.vectorize else "choose adjoint='first'"
        raise ValueError(
            f"torch cannot differentiate {name}{_way(both)}: write it with other operations, or "
            f"{out} ({brief(failed)})"
        ) from failed


def runs_again(model: nn.Module, trial: Trial) -> str | None:
    """Return the first module that runs in the backward pass, as checkpoints do, or None."""
    theta = {n: p.detach().requires_grad_() for n, p in trial.theta.items()}
    with recorded_inputs(model) as seen, torch.enable_grad():
        found = leaves(registered(trial.call({**trial.rest, **theta}, trial.x)))
        outputs = [t.sum() for t in found if isinstance(t, Tensor) and t.requires_grad]
        seen.clear()
        torch.autograd.grad(outputs, list(theta.values()), allow_unused=True)
    return next((name or type(model).__name__ for name in seen), None)


def culprit(model: nn.Module, trial: Trial) -> tuple[str, nn.Module]:
    """Return the smallest module that fails alone, on the inputs it has in the model."""
    with torch.no_grad(), recorded_inputs(model) as inputs:
        trial.call({**trial.rest, **trial.theta}, trial.x)
    modules = dict(model.named_modules())
    # Children stand behind their parents.
    for name in reversed(list(modules)):
        if name and name in inputs:
            call, theta = _alone(modules[name], inputs[name])
            alone = replace(trial, call=call, theta=theta, rest={}, x=inputs[name])
            if theta and alone.error() is not None:
                return name, modules[name]
    return "", model


@contextmanager
def recorded_inputs(model: nn.Module) -> Iterator[dict[str, tuple[Any, Any]]]:
    """Collect what each module is given in its last call inside the block."""
    inputs: dict[str, tuple[Any, Any]] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda module, args, kwargs: inputs.update({name: (args, kwargs)})

    handles = [
        module.register_forward_pre_hook(note(name), with_kwargs=True)
        for name, module in model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)  # which takes no hooks
    ]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def _alone(module: nn.Module, given: tuple[Any, Any]) -> tuple[Callable[..., Any], Params]:
    """Return a module as a function of its parameters, or of its inputs where it has none."""
    own: Params = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if own:
        return lambda phi, given: functional_call(module, phi, *given), own

    def call(phi: Params, given: Any) -> Any:
        number = itertools.count()
        args, kwargs = mapped(lambda leaf: phi.get(str(next(number)), leaf), given)
        return module(*args, **kwargs)

    inputs = enumerate(leaves(given))
    real = ((i, t) for i, t in inputs if isinstance(t, Tensor) and t.is_floating_point())
    return call, {str(i): t for i, t in real}
