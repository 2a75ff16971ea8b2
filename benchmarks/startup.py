"""How long it takes to start, in turns: help, the package's import, a learner, and torch alone.

    python benchmarks/startup.py

Each line runs in a process of its own, in rounds. Processor time is counted, which other programs
disturb less than the clock; a ratio is the median over rounds, with its bootstrap interval.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from metamirror.core.files import read_json, write_json
from metamirror.experiments.paired_timing import machine, ratio

TORCH = 'python -c "import torch"'
LINES = {
    TORCH: ["-c", "import torch"],
    "metamirror --help": ["-m", "metamirror", "--help"],
    'python -c "import metamirror"': ["-c", "import metamirror"],
    "metamirror train --help": ["-m", "metamirror", "train", "--help"],
}


def seconds(words: list[str]) -> float:
    """The processor time of one process, its children included."""
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    own = after.children_user - before.children_user
    return own + after.children_system - before.children_system


def measure(rounds: int) -> dict[str, object]:
    """The times of every line, and their ratios to torch's import."""
    for words in LINES.values():
        seconds(words)  # the first run reads the files
    turns: dict[str, list[float]] = {line: [] for line in LINES}
    for _ in range(rounds):
        for line, words in LINES.items():
            turns[line].append(seconds(words))
    against = {line: ratio(times, turns[TORCH]) for line, times in turns.items()}
    rows = {
        line: {
            "cpu_seconds": statistics.median(times),
            "of_torch": [against[line].median, *against[line].interval],
        }
        for line, times in turns.items()
    }
    return {**machine(1), "rounds": rounds, "lines": rows}


def table(results: Path) -> str:
    """The table of docs/growth.md."""
    file = results / "startup.json"
    if not file.exists():
        return "Not measured yet."
    rows = [
        f"| `{line}` | {row['cpu_seconds']:.2f} | "
        f"{row['of_torch'][0]:.2f} [{row['of_torch'][1]:.2f}, {row['of_torch'][2]:.2f}] |"
        for line, row in read_json(file)["lines"].items()
    ]
    return "\n".join(["| line | CPU s | of torch's import |", "| --- | ---: | ---: |", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("results/startup.json"))
    given = parser.parse_args()
    found = {"command": "python benchmarks/startup.py", **measure(given.rounds)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, found)
    print(table(given.out.parent))


if __name__ == "__main__":
    main()
