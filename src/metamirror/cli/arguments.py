"""Arguments that several commands take, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

RunFolder = Annotated[Path, Positional, arg(help="the run folder.")]
Split = Annotated[str, arg(help="train, val or test.")]
Which = Annotated[
    Literal["best", "last"],
    arg(help="the learner with the best validation score, or the last one."),
]
Device = Annotated[str, arg(help="auto (CUDA, MPS or CPU, in this order), or one of them.")]
DataDir = Annotated[
    Path | None,
    arg(help="where installed data are; by default $METAMIRROR_HOME or the user's data folder."),
]
Imports = Annotated[
    tuple[str, ...],
    UseAppendAction,
    arg(
        name="import",
        metavar="MODULE",
        help="a module that registers methods of your own, imported first.",
    ),
]
Json = Annotated[bool, arg(help="print one JSON document.")]
