"""Which parameters of a model a method works on, by name."""

from torch import nn

from metamirror.core.tasks import Params
from metamirror.mirror_maps.partition import layers


def learned(model: nn.Module) -> Params:
    """Return the parameters that adapt by default, as plain tensors to take shapes from."""
    found = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("no parameter adapts: the model has none that requires a gradient")
    if len(types := sorted({str(p.dtype) for p in found.values()})) > 1:
        raise ValueError(
            f"what adapts is {' and '.join(types)}, and a geometry has one type: convert the "
            f"model, as model.float() does, and let it run in less by autocast=torch.bfloat16"
        )
    return found


def modes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the modes in which a geometry sees parameters, where they are not as stored.

    `make_learner` finds them where a part of the model adapts: see `adapting.long_axes`.
    """
    found: dict[str, tuple[int, ...]] = getattr(model, "adapted_modes", {})
    return found


def layers_of(model: nn.Module) -> list[list[str]] | None:
    """Return what adapts, layer by layer of the whole model; None if everything does."""
    if not hasattr(model, "adapted_modes"):
        return None
    wanted = learned(model)
    blocks = layers({name: tuple(p.shape) for name, p in model.named_parameters()})
    return [names for block in blocks if (names := [n for n in block if n in wanted])]


def parameters_of(model: nn.Module, layer: str) -> list[str]:
    """Return the learned parameters of one layer; a tied one has the name it was given first."""
    known = [name for name, m in model.named_modules() if name and [*m.parameters(False)]]
    try:
        own = {id(p) for p in model.get_submodule(layer).parameters()}
    except AttributeError as error:
        raise ValueError(f"there is no layer {layer!r}; the layers are {known}") from error
    names = [n for n, p in model.named_parameters() if p.requires_grad and id(p) in own]
    if not names:
        raise ValueError(
            f"the layer {layer!r} has no learned parameters that adapt; "
            f"the layers with parameters are {known}"
        )
    return names
