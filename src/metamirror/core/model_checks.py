"""Models that cannot run with parameters from outside, or be differentiated: named at once."""

from torch import Tensor, jit, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.nn.utils.weight_norm import WeightNorm


def check_model(model: nn.Module) -> None:
    """Refuse a model that no learner can use; say which part of it, and what to do.

    >>> check_model(nn.LazyLinear(3))
    Traceback (most recent call last):
    ValueError: weight has no shape yet: run the model on one example before, as in model(x)
    """
    if isinstance(model, jit.ScriptModule):
        raise ValueError(
            "the model is scripted and runs with no parameters but its own: give the module that "
            "torch.jit was given"
        )
    if isinstance(model, nn.DataParallel | DistributedDataParallel):
        raise ValueError(
            f"the model is wrapped in {type(model).__name__}, which shares out the examples of a "
            f"task: give what is inside, model.module; processes that share tasks are train's"
        )
    for name, module in model.named_modules():
        if problem := _problem_of(module):
            raise ValueError(f"{name or 'the model'} {problem}")
    for name, p in model.named_parameters():
        if p.requires_grad and (problem := _problem_with(p)):
            raise ValueError(f"{name} {problem}")


def _problem_of(module: nn.Module) -> str | None:
    if type(module).__name__ == "OptimizedModule":  # importing it would take a second
        return "is compiled by torch.compile, which has no second derivatives: give it uncompiled"
    if any(isinstance(hook, WeightNorm) for hook in module._forward_pre_hooks.values()):
        return (
            "has torch.nn.utils.weight_norm, whose second derivatives are wrong and which cannot "
            "be copied: use torch.nn.utils.parametrizations.weight_norm"
        )
    bag = isinstance(module, nn.Embedding | nn.EmbeddingBag)
    if bag and module.sparse and module.weight.requires_grad:
        return "has sparse gradients, which no inner step can take: build it with sparse=False"
    return None


def _problem_with(parameter: Tensor) -> str | None:
    if is_lazy(parameter):
        return "has no shape yet: run the model on one example before, as in model(x)"
    if parameter.is_complex():
        return (
            f"is {parameter.dtype}, and what adapts is real: hold its real and imaginary parts, "
            f"and join them by torch.view_as_complex"
        )
    if not parameter.numel():
        return f"has shape {tuple(parameter.shape)}, and no numbers to adapt: remove or freeze it"
    return None
