"""The same command twice, and with another number of threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

import metamirror as mm
from metamirror.cli.main import main
from tests.faults.killing import ended
from tests.runs import forks, results

GLYPHS = ("--data", "glyphs", "--model", "conv4", "--width", "8", "--queries", "5", "--steps", "2")
SINUSOID = ("--data", "sinusoid", "--shots", "5", "--queries", "5", "--steps", "2")
OUTER = ("--iterations", "10", "--log-every", "1", "--validate-every", "5", "--val-tasks", "4")


def trained(out: Path, threads: int, *words: str) -> Path:
    process = forks().Process(target=_life, args=(["train", *words, "--out", str(out)], threads))
    process.start()
    assert ended(process) == 0
    return out


def _life(words: list[str], threads: int) -> None:
    torch.set_num_threads(threads)
    os._exit(main(words))


def largest_difference(one: Path, other: Path) -> float:
    pairs = zip(mm.load(one).parameters(), mm.load(other).parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def repeat(folder: Path, method: str, data: tuple[str, ...], tasks: int) -> dict[str, Any]:
    """Whether two runs have the same bits, and how far two threads are from one."""
    words = ("--method", method, *data, *OUTER, "--tasks-per-step", str(tasks))
    place = folder / f"{method}-{data[1]}-{tasks}"
    first, again = (trained(place / name, 1, *words) for name in ("first", "again"))
    two, two_again = (trained(place / name, 2, *words) for name in ("two", "two-again"))
    return {
        "method": method,
        "data": data[1],
        "tasks_per_step": tasks,
        "same_bits": results(first) == results(again),
        "same_bits_with_two_threads": results(two) == results(two_again),
        "largest_difference_of_1_and_2_threads": largest_difference(first, two),
    }
