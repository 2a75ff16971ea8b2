r"""Low-rank updates of linear layers (LoRA): $W + \frac{\alpha}{r} B A$, of which A and B adapt.

B starts at zero, so that the network is unchanged, and A at random: a product of two factors that
are both zero has no gradient in either, ever.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LowRank(nn.Module):
    """The factors A (rank, inputs) and B (outputs, rank) of one update."""

    def __init__(self, outputs: int, inputs: int, rank: int, alpha: float):
        super().__init__()
        self.scale = alpha / rank
        self.A = nn.Parameter(torch.empty(rank, inputs).uniform_(-1, 1) / math.sqrt(inputs))
        self.B = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return the update's part of a layer's output, without the product B A."""
        return self.scale * F.linear(F.linear(x, self.A), self.B)

    def matrix(self) -> Tensor:
        """Return the update of the weight."""
        return self.scale * (self.B @ self.A)


class _Add:
    """A forward hook that adds an update to a linear layer's output.

    An object, not a closure, so that a deep copy of the model refers to the copy of the update.
    """

    def __init__(self, update: LowRank):
        self.update = update

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        update: Tensor = self.update(inputs[0])
        return output + update


class _Merge:
    """Hooks that put updated weights into a module while it runs.

    For `nn.MultiheadAttention`, which hands its weights to a function and calls none of its layers.
    """

    def __init__(self, updates: list[tuple[nn.Module, str, LowRank]]):
        self.updates = updates
        self.held: list[Any] = []

    def put(self, module: nn.Module, inputs: Any) -> None:
        """Put the updated weights in place; before the module runs."""
        self.held = [owner._parameters[name] for owner, name, _ in self.updates]
        for (owner, name, update), weight in zip(self.updates, self.held, strict=True):
            owner._parameters[name] = weight + update.matrix()

    def take_back(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Put the module's own weights back, also after an error."""
        for (owner, name, _), weight in zip(self.updates, self.held, strict=True):
            owner._parameters[name] = weight
        self.held = []


def insert(model: nn.Module, rank: int, alpha: float, skipped: set[int]) -> list[LowRank]:
    """Add an update to every linear layer and attention of a model; return the updates.

    Args:
        model: it is changed in place; its own parameters keep their names.
        rank: of each update.
        alpha: updates are multiplied by alpha / rank.
        skipped: ids of weights that get none.
    """
    attentions = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
    skipped = skipped | {id(m.out_proj) for m in attentions}
    updates: list[LowRank] = []

    def update_of(owner: nn.Module, name: str, child: str) -> LowRank:
        if hasattr(owner, child):
            raise ValueError(f"a layer has an attribute {child!r} already: rename it")
        weight: Tensor = getattr(owner, name)
        outputs, inputs = weight.shape
        made = LowRank(outputs, inputs, rank, alpha).to(weight)
        owner.add_module(child, made)
        updates.append(made)
        return made

    for module in list(model.modules()):
        if isinstance(module, nn.MultiheadAttention):
            weights = [(module, n) for n, _ in module.named_parameters(recurse=False)]
            weights = [(m, n) for m, n in weights if n.endswith("proj_weight")]
            owners = [*weights, (module.out_proj, "weight")]
            merge = _Merge(
                [
                    (m, n, update_of(m, n, "lora" if n == "weight" else f"lora_{n[:-7]}"))
                    for m, n in owners
                    if id(getattr(m, n)) not in skipped
                ]
            )
            if merge.updates:
                module.register_forward_pre_hook(merge.put)
                module.register_forward_hook(merge.take_back, always_call=True)
        elif isinstance(module, nn.Linear) and not {id(module), id(module.weight)} & skipped:
            module.register_forward_hook(_Add(update_of(module, "weight", "lora")))
    return updates


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that have an update, with it, by the names they have without."""
    found = {}
    for name, update in model.named_modules():
        if isinstance(update, LowRank):
            owner, _, child = name.rpartition(".")
            # As `insert` names them: `lora_in_proj` is the update of `in_proj_weight`.
            own = "weight" if child == "lora" else f"{child.removeprefix('lora_')}_weight"
            whole = f"{owner}.{own}".lstrip(".")
            found[whole] = model.get_parameter(whole) + update.matrix()
    return found
