"""Proto-MAML: MAML from the head of prototypical networks, computed anew for each task.

The outer level differentiates through that head too. With `steps=0` it is `protonet`.
"""

from torch import nn

from metamirror.core.option_spec import NoOptions
from metamirror.core.settings import Settings
from metamirror.methods.registry import Method, Parts


def build(model: nn.Module, options: NoOptions, settings: Settings) -> Parts:
    """Leave every slot but the start at its default."""
    return Parts(model)


METHOD = Method(
    key="protomaml",
    title="Proto-MAML",
    optimizer="GD from class means",
    geometry="identity matrix",
    paper="Triantafillou et al. 2020",
    build=build,
    defaults={"start": "prototypes"},
)
