"""Proto-MAML: MAML from the head of prototypical networks, computed anew for each task.

The outer level differentiates through that head too. With `steps=0` it is `protonet`.
"""

from metamirror.methods.maml import build
from metamirror.methods.registry import Method

METHOD = Method(
    key="protomaml",
    title="Proto-MAML",
    optimizer="GD from class means",
    geometry="identity matrix",
    paper="Triantafillou et al. 2020",
    build=build,
    defaults={"start": "prototypes"},
    group="relative",
)
