"""The memory allocators of glibc and torch, told to keep memory and to take large pages."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence

import torch

# Numbers of options of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8

KEPT = 32 << 20
KEPT_OF_LARGE_PICTURES = 1 << 20
SMALL_PICTURE = 64
"""Height and width up to which a picture is small."""

_tuned = False


def tune_allocator() -> bool:
    """Makes memory for tensors cheaper in this process; whether it could.

    Memory that comes fresh from the system has to be cleared page by page, which can cost as much
    as the arithmetic. Here it is kept for the next tensor, up to 32 MB; larger ones, which would
    leave gaps, get fresh pages of 2 MB where the system has them. Call it at the start, before
    there are tensors and threads. metamirror's commands do; `import metamirror` does not.
    """
    global _tuned
    # What torch looks at when it first allocates.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if platform.libc_ver()[0] != "glibc":
        return False
    options = (
        (M_MMAP_THRESHOLD, KEPT),
        (M_TRIM_THRESHOLD, 2**31 - 1),
        # One heap for all threads: what one of them frees, another can use.
        (M_ARENA_MAX, 1),
    )
    _tuned = all(_mallopt(option, value) for option, value in options)
    return _tuned


def spare_memory_for(example_shape: Sequence[int]) -> None:
    """With large pictures gaps cost more memory than fresh pages cost time: keep less.

    Does nothing in a process that has not called `tune_allocator`.
    """
    if _tuned and not small_pictures(example_shape):
        _mallopt(M_MMAP_THRESHOLD, KEPT_OF_LARGE_PICTURES)


def small_pictures(example_shape: Sequence[int]) -> bool:
    """Whether examples are pictures whose operations are short.

    >>> small_pictures((1, 28, 28)), small_pictures((3, 84, 84)), small_pictures((1,))
    (True, False, False)
    """
    return len(example_shape) == 3 and max(example_shape[1:]) <= SMALL_PICTURE


def memory_ran_out(error: RuntimeError) -> bool:
    """Whether an error of torch says that there is not enough memory, or never could be.

    >>> memory_ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory: ..."))
    True
    """
    words = ("can't allocate memory", "not enough memory", "overflow", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


def _mallopt(option: int, value: int) -> bool:
    return bool(ctypes.CDLL(None).mallopt(option, value) == 1)
