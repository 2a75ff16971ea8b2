"""The full campaign of faults and abuse, part by part; docs/reliability.md shows what it finds.

    python tests/faults/campaign.py              # every part that has not been done
    python tests/faults/campaign.py fuzz soak    # these, again

Each part leaves results/faults/PART.json. One that is interrupted is done again from its start, but
for `fuzz`, which goes on with the next kind of input.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402

from metamirror._version import __version__  # noqa: E402
from metamirror.core.files import read_json, write_json  # noqa: E402
from metamirror.methods import METHODS  # noqa: E402
from serving import served  # noqa: E402
from tests.faults import disks, killing, killing_workers, offline, repeating, soaking  # noqa: E402
from tests.faults.fuzzing import fuzz  # noqa: E402

OUT = ROOT / "results" / "faults"
INPUTS = 100_000


def kills(folder: Path, out: Path) -> dict[str, Any]:
    checkpointing = [
        killing.kill_checkpointing(folder / f"checkpointing-{first}", first)["kills"]
        for first in (0, 1, 2, 7)
    ]
    return {
        "training, at random moments": killing.kill_training(folder / "training", 40),
        "training, before changes to the disk": {"kills": sum(checkpointing)},
        "data add, later and later": killing.kill_adding(folder / "adding", late=10),
        "compare, at random moments": killing.kill_comparing(folder / "comparing", 15),
    }


def workers(folder: Path, out: Path) -> dict[str, Any]:
    return {
        **killing_workers.kill_workers(folder / "local", 8),
        **killing_workers.kill_ray(folder / "ray", 12),
    }


def full_and_read_only_disks(folder: Path, out: Path) -> dict[str, Any]:
    if not disks.available():
        raise SystemExit("this machine does not let us mount: run the part elsewhere")
    return {kind: {"tried": n} for kind, n in disks.in_namespace(folder).items()}


def fuzzing(folder: Path, out: Path) -> dict[str, Any]:
    """At least `INPUTS` in all, shared out by weight; what is done is kept."""
    from tests.faults import of_data, of_pages, of_runs, of_words

    found = read_json(out) if out.exists() else {}
    with served() as server:
        raw = of_pages.raw_target(server)
        targets = [*of_runs.TARGETS, *of_data.TARGETS, *of_words.TARGETS, *of_pages.TARGETS, raw]
        whole = sum(target.weight for target in targets)
        for target in targets:
            if target.name in found.get("found", {}):
                continue
            place = folder / f"{targets.index(target)}"
            place.mkdir()
            count = -(-int(INPUTS * target.weight) // int(whole)) + 1
            tally = fuzz(target, count, place)
            found.setdefault("found", {})[target.name] = tally.described()
            print(f"{target.name}: {tally.described()}", flush=True)
            write_json(out, {**found, "unfinished": True})
    return dict(found["found"])


def soak(folder: Path, out: Path) -> dict[str, Any]:
    return {
        "adaptations": soaking.adapt(1_000),
        "evaluations": soaking.evaluate(200),
        "requests to the playground": soaking.serve(10_000),
    }


def determinism(folder: Path, out: Path) -> dict[str, Any]:
    rows = [repeating.repeat(folder, method, repeating.GLYPHS, 2) for method in METHODS]
    rows += [repeating.repeat(folder, "maml", repeating.SINUSOID, 4)]
    # More threads than tasks: a task is then computed by several.
    rows += [
        repeating.repeat(folder, method, repeating.GLYPHS, 1) for method in ("maml", "blockiaf")
    ]
    return {f"{r['method']}, {r['data']}, {r['tasks_per_step']} tasks a step": r for r in rows}


def network(folder: Path, out: Path) -> dict[str, Any]:
    return {
        "quickstart": offline.quickstart(folder / "quickstart", 1.0, small=False),
        "data add --download": {"said": offline.download(folder / "download")},
    }


PARTS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "kills": kills,
    "workers": workers,
    "disks": full_and_read_only_disks,
    "fuzz": fuzzing,
    "soak": soak,
    "determinism": determinism,
    "network": network,
}


def do(part: str) -> None:
    out = OUT / f"{part}.json"
    folder = Path(tempfile.mkdtemp(prefix=f"metamirror-{part}-"))
    begun = time.monotonic()
    try:
        found = PARTS[part](folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = {
        "command": f"python tests/faults/campaign.py {part}",
        "metamirror": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
    write_json(out, {**about, "found": found})
    print(f"{part}: {(time.monotonic() - begun) / 60:.1f} minutes, {out}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], help="by default, what is missing"
    )
    chosen = parser.parse_args().parts
    OUT.mkdir(parents=True, exist_ok=True)
    # Data of its own, not a user's. Not set above: every process started imports this file.
    os.environ["METAMIRROR_HOME"] = tempfile.mkdtemp(prefix="metamirror-faults-")
    # What a shell starts in the background ignores Ctrl-C, and so would the servers started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    for part in chosen or PARTS:
        out = OUT / f"{part}.json"
        if chosen and out.exists() and not read_json(out).get("unfinished"):
            out.unlink()
        if not out.exists() or read_json(out).get("unfinished"):
            do(part)
    shutil.rmtree(os.environ["METAMIRROR_HOME"], ignore_errors=True)


if __name__ == "__main__":
    main()
