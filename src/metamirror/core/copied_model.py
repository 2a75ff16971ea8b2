"""The notice of an optimiser that holds the model which `make_learner` copied, not the learner."""

import gc
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

CALLS = 10
"""Differentiated losses in a row, with no parameter changed, after which optimisers are looked at.

Looking at them takes milliseconds, and is done once.
"""


class CopiedModel:
    """The parameters that a learner's own were copied from, watched until the learner is trained.

    An unchanged learner alone says nothing: gradients may be accumulated over many batches, and
    torch's fused optimisers do not count their changes. What is reported is an optimiser that holds
    parameters copied from, whose gradients it has never seen, while none holds the learner's.

    A copy of a learner, and one that was saved or sent to a process, has nothing to watch.
    """

    def __init__(self, source: Iterable[Tensor] = ()):
        self._source = [weakref.ref(p) for p in source]
        self._versions: list[int] = []
        self._calls = 0

    def __reduce__(self) -> Any:
        return CopiedModel, ()

    def watch(self, model: nn.Module) -> None:
        """Note that a loss of the learner, whose model this is, will be differentiated."""
        if not self._source:
            return
        own = [p for p in model.parameters() if p.requires_grad and not p.is_inference()]
        versions = [p._version for p in own]
        if not self._calls:
            self._versions = versions
        elif versions != self._versions:
            self._source = []
            return
        self._calls += 1
        if self._calls <= CALLS or all(p.grad is None for p in own):
            return
        source = [p for p in (ref() for ref in self._source) if p is not None]
        self._source = []
        if source and only_source_is_held(source, own):
            warnings.warn(
                f"the learner's parameters have not changed during {CALLS} differentiated losses: "
                f"the optimiser holds the model that make_learner copied; give it "
                f"learner.parameters(), as in torch.optim.Adam(learner.parameters()), or make the "
                f"learner with copy=False",
                stacklevel=4,
            )


def only_source_is_held(source: Sequence[Tensor], own: Sequence[Tensor]) -> bool:
    """Return whether an optimiser waits in vain for gradients of `source`, and none holds `own`."""
    copied, learned = {id(p) for p in source}, {id(p) for p in own}
    found = False
    for optimizer in living_optimizers():
        # Another thread may be making it.
        groups = getattr(optimizer, "param_groups", [])
        held = [p for group in groups for p in group["params"]]
        if any(id(p) in learned for p in held):
            return False
        waiting = [p for p in held if id(p) in copied]
        idle = all(p.grad is None and p not in optimizer.state for p in waiting)
        found |= bool(waiting) and idle
    return found


def living_optimizers() -> list[Optimizer]:
    """Return every optimiser of torch's that there is."""
    kinds: set[type[Optimizer]] = set()
    new = [Optimizer]
    while new:
        kinds.update(new)
        new = [child for kind in new for child in kind.__subclasses__() if child not in kinds]
    # By their types: to ask objects of others for their class may run code of theirs.
    return [thing for thing in gc.get_objects() if type(thing) in kinds]
