"""A trial of the derivatives that training will need, on two examples, before it begins."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metamirror.core.tasks import Params
from metamirror.core.trees import leaves, mapped

INSTEAD: dict[type[nn.Module], str] = {
    nn.EmbeddingBag: "an nn.Embedding and a mean or sum",
    nn.RNNBase: "a loop over its cell (nn.LSTMCell, nn.GRUCell, nn.RNNCell)",
    nn.MultiheadAttention: "products and a softmax",
}
"""What to write in place of modules that are known to fail."""

Call = Callable[[Params, Any], Any]
"""(parameters, inputs) -> output."""


def check_derivatives(
    call: Call, model: nn.Module, theta: Params, x: Any, *, twice: bool, vectorize: bool
) -> None:
    """Refuse a model that cannot be differentiated as training will, and name the module.

    Args:
        call: the model as the inner loop calls it.
        model: the model.
        theta: the parameters that adapt.
        x: inputs of two examples.
        twice: whether the meta-gradient takes second derivatives.
        vectorize: whether tasks run under `torch.func.vmap`.
    """
    if not vectorize and not twice:
        return
    outer = [p for p in model.parameters() if p.requires_grad]
    error = failure(call, theta, outer, x, twice, vectorize)
    if error is None:
        return
    way = "under torch.func.vmap" if vectorize else "twice"
    if vectorize and twice and failure(call, theta, outer, x, twice, False) is not None:
        vectorize, way = False, "twice"
    name, kind = culprit(call, model, theta, x, twice, vectorize)
    instead = next((word for k, word in INSTEAD.items() if isinstance(kind, k)), None)
    what = f"{name} ({type(kind).__name__})" if name else type(model).__name__
    out = [f"use {instead} instead"] if instead else ["replace it"]
    out += ["leave vectorize off"] if vectorize else ["choose adjoint='first'"]
    out += ["let something else adapt, as in adapts='head'"] if name and not vectorize else []
    reason = str(error).split("\n")[0].rstrip(".")[:160]
    raise ValueError(
        f"torch cannot differentiate {what} {way}: {', or '.join(out)} ({reason})"
    ) from error


def failure(
    call: Call, theta: Params, outer: Sequence[Tensor], x: Any, twice: bool, vectorize: bool
) -> Exception | None:
    """Return the error of one inner step and its meta-gradient, or None."""
    # Warnings are of operations that vmap runs one by one.
    with warnings.catch_warnings(action="ignore"), torch.enable_grad():
        return _failure(call, theta, outer, x, twice, vectorize)


def _failure(
    call: Call, theta: Params, outer: Sequence[Tensor], x: Any, twice: bool, vectorize: bool
) -> Exception | None:
    try:
        if vectorize:

            def one(*tensors: Tensor) -> Tensor:
                rest = iter(tensors)
                own = mapped(lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf, x)
                return _one_step(call, theta, own, twice)

            tasks = [torch.stack([t, t]) for t in leaves(x) if isinstance(t, Tensor)]
            value = torch.func.vmap(one, randomness="different")(*tasks).sum()
        else:
            value = _one_step(call, theta, x, twice)
        if value.requires_grad:
            torch.autograd.grad(value, outer, allow_unused=True)
    except (RuntimeError, NotImplementedError, IndexError) as error:
        return error
    return None


def _one_step(call: Call, theta: Params, x: Any, twice: bool) -> Tensor:
    def loss(phi: Params) -> Tensor:
        found = leaves(call(phi, x))
        outputs = [t for t in found if isinstance(t, Tensor) and t.is_floating_point()]
        # An object of the user's own class is known to the loss alone.
        return torch.stack([t.square().mean() for t in outputs or phi.values()]).sum()

    if torch._C._are_functorch_transforms_active():
        slope = torch.func.grad(loss)(theta)
    else:
        phi = {n: p if p.requires_grad else p.detach().requires_grad_() for n, p in theta.items()}
        found = torch.autograd.grad(
            loss(phi), list(phi.values()), create_graph=twice, materialize_grads=True
        )
        slope = dict(zip(phi, found, strict=True))
    return loss({n: p - (slope[n] if twice else slope[n].detach()) for n, p in theta.items()})


def culprit(
    call: Call, model: nn.Module, theta: Params, x: Any, twice: bool, vectorize: bool
) -> tuple[str, nn.Module]:
    """Return the smallest module that fails alone, on the inputs it has in the model."""
    inputs: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    handles = [
        module.register_forward_pre_hook(_recorder(inputs, name), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            call(theta, x)
    finally:
        for handle in handles:
            handle.remove()
    modules = dict(model.named_modules())
    # Children stand behind their parents.
    for name in reversed(list(modules)):
        module = modules[name]
        own = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if name and name in inputs and own:
            outer, given = list(own.values()), inputs[name]
            if failure(_alone(module), own, outer, given, twice, vectorize) is not None:
                return name, module
    return "", model


def _recorder(inputs: dict[str, Any], name: str) -> Callable[..., None]:
    def record(module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs[name] = (args, kwargs)

    return record


def _alone(module: nn.Module) -> Call:
    def call(phi: Params, given: Any) -> Any:
        args, kwargs = given
        return functional_call(module, phi, args, kwargs)

    return call
