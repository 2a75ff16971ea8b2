"""The allocator: tuned by our commands, never by an import."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
import metamirror as mm
if sys.argv[1] == "tuned":
    assert mm.tune_allocator()
torch.set_num_threads(1)
def work():
    return (torch.ones(10 << 20) * 2).sum()  # two tensors of 40 MB
for _ in range(6):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator alone is tuned")
def test_tuned_it_takes_no_fresh_pages_and_an_import_does_not_tune_it():
    faults = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
            ).stdout
        )
        for how in ("tuned", "plain")
    }
    # Unless the system hands out huge pages, the plain one faults at every page of 4 kB.
    assert faults["plain"] > 3 * faults["tuned"]
