"""glibc's allocator, told to keep the memory of large tensors instead of giving it back."""

from __future__ import annotations

import ctypes
import platform

# Numbers of options of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def tune_allocator() -> bool:
    """Lets this process reuse the memory of large tensors; whether it could.

    By default glibc takes fresh pages from the system for every large tensor and returns them
    afterwards: clearing those pages can cost more than the arithmetic. The price is that the
    process keeps its peak memory until it ends. Call it at the start, before threads exist.
    metamirror's commands do; `import metamirror` does not.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    options = (
        (M_MMAP_THRESHOLD, 1 << 30),
        (M_TRIM_THRESHOLD, 2**31 - 1),
        # The arenas of other threads hold 64 MB at the most: what is larger would be fresh pages.
        (M_ARENA_MAX, 1),
    )
    return all(mallopt(option, value) == 1 for option, value in options)
