"""The memory allocators of glibc and torch, told to take large pages and to keep small pieces."""

from __future__ import annotations

import ctypes
import os
import platform

# Numbers of options of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8

LARGE = 32 << 20


def tune_allocator() -> bool:
    """Makes memory for tensors cheaper in this process; whether it could.

    By default glibc takes fresh pages of 4 kB from the system for large tensors and returns them
    afterwards: clearing those pages can cost as much as the arithmetic. Here memory is kept for
    the next tensor, up to 32 MB; larger ones, which would leave gaps, get fresh pages of 2 MB where
    the system has them. Call it at the start, before there are tensors and threads. metamirror's
    commands do; `import metamirror` does not.
    """
    # What torch looks at when it first allocates.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    options = (
        (M_MMAP_THRESHOLD, LARGE),
        (M_TRIM_THRESHOLD, 2**31 - 1),
        # One heap for all threads: what one of them frees, another can use.
        (M_ARENA_MAX, 1),
    )
    return all(mallopt(option, value) == 1 for option, value in options)
