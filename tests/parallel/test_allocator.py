"""The allocator: tuned by our commands, never by an import."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
import metamirror as mm
from metamirror.parallel.allocator import spare_memory_for
_, how, size = sys.argv
if how != "plain":
    assert mm.tune_allocator()
spare_memory_for((3, 84, 84) if how == "spared" else (1, 28, 28))
torch.set_num_threads(1)
def work():
    return (torch.ones(int(size)) * 2).sum()
for _ in range(6):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc", reason="glibc's allocator alone is tuned"
    ),
]


def page_faults(how: str, size: int) -> int:
    words = [sys.executable, "-c", SCRIPT, how, str(size)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_tuned_it_takes_no_fresh_pages_and_an_import_does_not_tune_it():
    # Two tensors of 40 MB. Unless the system hands out huge pages, the plain one faults at every
    # page of 4 kB.
    size = 10 << 20
    assert page_faults("plain", size) > 3 * page_faults("tuned", size)


def test_for_large_pictures_less_memory_is_kept_but_only_where_it_was_tuned():
    size = 400_000  # numbers, of 1.6 MB: too few for huge pages
    # The least of three: a busy system may take a tensor's pages back while a process waits.
    assert min(page_faults("tuned", size) for _ in range(3)) < 100
    assert page_faults("spared", size) > 1000
