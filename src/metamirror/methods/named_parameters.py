"""Which parameters of a model a method works on, by name."""

from torch import nn

from metamirror.core.tasks import Params


def learned(model: nn.Module) -> Params:
    """Return the parameters that adapt by default, as plain tensors to take shapes from."""
    found = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("no parameter adapts: the model has none that requires a gradient")
    return found


def parameters_of(model: nn.Module, layer: str) -> list[str]:
    """Return the learned parameters of one layer; a tied one has the name it was given first."""
    layers = [name for name, m in model.named_modules() if name and [*m.parameters(False)]]
    try:
        own = {id(p) for p in model.get_submodule(layer).parameters()}
    except AttributeError as error:
        raise ValueError(f"there is no layer {layer!r}; the layers are {layers}") from error
    names = [n for n, p in model.named_parameters() if p.requires_grad and id(p) in own]
    if not names:
        raise ValueError(f"the layer {layer!r} has no learned parameters; the layers are {layers}")
    return names
