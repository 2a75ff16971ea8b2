"""Settings of glibc's and torch's allocators: keep freed memory, take large pages."""

import ctypes
import os
import platform
from collections.abc import Sequence

# Numbers of options of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8

KEPT = 32 << 20
KEPT_OF_LARGE_IMAGES = 1 << 20
SMALL_IMAGE = 64
"""Height and width up to which an image is small."""

_tuned = False


def tune_allocator() -> bool:
    """Make memory for tensors cheaper in this process, and return whether that worked.

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
    """Keep less memory for large images, where gaps cost more, if `tune_allocator` was called."""
    if _tuned and not small_images(example_shape):
        _mallopt(M_MMAP_THRESHOLD, KEPT_OF_LARGE_IMAGES)


def small_images(example_shape: Sequence[int]) -> bool:
    """Return whether examples are images whose operations are short.

    >>> small_images((1, 28, 28)), small_images((3, 84, 84)), small_images((1,))
    (True, False, False)
    """
    return len(example_shape) == 3 and max(example_shape[1:]) <= SMALL_IMAGE


def memory_ran_out(error: RuntimeError) -> bool:
    """Return whether an error of torch says that memory ran out, or that there is never enough.

    >>> memory_ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory: ..."))
    True
    """
    import torch  # not above: help needs this module, and no torch

    words = ("can't allocate memory", "not enough memory", "overflow", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


def _mallopt(option: int, value: int) -> bool:
    return bool(ctypes.CDLL(None).mallopt(option, value) == 1)
