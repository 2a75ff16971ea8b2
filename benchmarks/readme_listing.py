"""What README's training listing prints, for several seeds.

    python benchmarks/readme_listing.py

The listing names seed 0; here the others take its place.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import time
from pathlib import Path

from metamirror.core.files import read_json, write_json
from metamirror.experiments.paired_timing import machine

ROOT = Path(__file__).parents[1]
SEED = "torch.manual_seed(0)"
PRINTED = re.compile(r"accuracy ([\d.]+) ± ([\d.]+) %")


def measure(seeds: int) -> dict[str, dict[str, float]]:
    """Accuracy, interval and processor time of each seed."""
    listing = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    if SEED not in listing:
        raise ValueError(f"the listing has no {SEED}")
    found = {}
    for seed in range(seeds):
        began, printed = time.process_time(), io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(listing.replace(SEED, f"torch.manual_seed({seed})"), {})
        accuracy, ci95 = map(float, PRINTED.findall(printed.getvalue())[0])
        seconds = round(time.process_time() - began, 1)
        found[str(seed)] = {"accuracy": accuracy, "ci95": ci95, "cpu_seconds": seconds}
    return found


def sentence(results: Path) -> str:
    """What README says below the listing."""
    seeds = read_json(results / "readme_listing.json")["seeds"]
    *shown, last = [f"{seed['accuracy']:.0f}" for seed in seeds.values()]
    return (
        "It prints an accuracy within a minute; chance is 20 %. "
        f"Seeds 0 to {len(shown)} gave {', '.join(shown)} and {last} %; "
        "another processor rounds otherwise, which is like another seed."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/readme_listing.json"))
    given = parser.parse_args()
    command = "python benchmarks/readme_listing.py"
    write_json(given.out, {"command": command, **machine(1), "seeds": measure(given.seeds)})
    print(sentence(given.out.parent))


if __name__ == "__main__":
    main()
