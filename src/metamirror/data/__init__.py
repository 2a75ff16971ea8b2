"""Few-shot tasks by name."""

from __future__ import annotations

from pathlib import Path

from metamirror.data.sinusoid import Sinusoid
from metamirror.data.stream import TaskStream

DATA_SETS: dict[str, type[TaskStream]] = {"sinusoid": Sinusoid}

__all__ = ["DATA_SETS", "TaskStream", "tasks"]


def tasks(
    name: str,
    split: str = "train",
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    seed: int = 0,
    batch: int = 4,
    image_size: int | None = None,
    data_dir: str | Path | None = None,
) -> TaskStream:
    """The tasks of a data set: `tasks(...)[step]` is a stack of `batch` of them.

    >>> tasks("sinusoid", split="test", shots=5, batch=2)[7].query.y.shape
    torch.Size([2, 15, 1])
    """
    if name not in DATA_SETS:
        raise ValueError(f"no data set is called {name!r}; choose from {', '.join(DATA_SETS)}")
    return DATA_SETS[name](split, shots, queries, seed, batch)
