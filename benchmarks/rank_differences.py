"""By how much two ranks differ from one after the same iterations: the order of sums, and no more.

    python benchmarks/rank_differences.py [--out results/rank_differences.json]

conv4 with 8 filters on glyphs, 20 iterations of Adam, in float64 and float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from metamirror.core.files import write_json
from metamirror.methods import METHODS
from metamirror.storage import tensor_file

SETTINGS = """
    train --data glyphs --width 8 --steps 2 --queries 5 --tasks-per-step 4 --iterations 20
    --validate-every 0 --log-every 20
"""
TWO = "-m torch.distributed.run --standalone --nproc-per-node 2 -m metamirror"


def train(prefix: str, *words: str) -> None:
    command = [sys.executable, *prefix.split(), *SETTINGS.split(), *words]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=2)


def measure(method: str, dtype: str, folder: Path) -> dict[str, object]:
    runs = [folder / f"{method}-{dtype}-{n}" for n in (1, 2)]
    for run, prefix in zip(runs, ("-m metamirror", TWO), strict=True):
        train(prefix, "--method", method, "--dtype", dtype, "--out", str(run))
    one, two = (tensor_file.read(run / "last" / "learner.safetensors")[0] for run in runs)
    differences = {name: (one[name] - two[name]).abs().max().item() for name in one}
    worst = max(differences, key=lambda name: differences[name])
    losses = [json.loads((run / "metrics.jsonl").read_text())["loss"] for run in runs]
    return {
        "method": method,
        "dtype": dtype,
        "largest_difference": differences[worst],
        "where": worst,
        "difference_of_mean_loss": abs(losses[0] - losses[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/rank_differences.json"))
    parser.add_argument("--methods", default=",".join(METHODS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(method, dtype, Path(folder))
            for dtype in ("float64", "float32")
            for method in given.methods.split(",")
        ]
    for row in rows:
        print(row)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, {"command": "python benchmarks/rank_differences.py", "rows": rows})


if __name__ == "__main__":
    main()
