"""Commands without a network: every process that Python starts hears of it before it connects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NO_NETWORK = ("unshare", "--map-root-user", "--net")
CUT = """
import os, sys

def cut(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname"):
        if event == "socket.connect" and isinstance(arguments[1], (str, bytes)):
            return  # a socket of this machine's own, which is a file
        with open(os.environ["METAMIRROR_ATTEMPTS"], "a") as file:
            file.write(f"{event} {arguments[1:]}\\n")
        raise PermissionError(f"the network is cut off: {event}")

sys.addaudithook(cut)
"""
QUICKSTART = """
from dataclasses import replace
from metamirror.cli.main import main
from metamirror.experiments import quickstart
import pkgutil, importlib, metamirror, sys

# Nothing connects while it is imported either.
for module in pkgutil.walk_packages(metamirror.__path__, "metamirror."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
if len(sys.argv) > 2:
    small = replace(quickstart.BASE, width=4, image_size=16, steps=1, vectorize=False)
    quickstart.BASE, quickstart.FEWEST_TASKS = small, 3
    few = ("maml", "blockiaf", "gradnet")
    quickstart.METHODS = {key: quickstart.METHODS[key] for key in few}
sys.exit(main(["quickstart", "--minutes", sys.argv[1], "--out", "quickstart"]))
"""


def cut_off(folder: Path, program: str, *words: str) -> tuple[int, str, list[str], bool]:
    """Exit code, complaints and attempts of a program, and whether its network was really cut.

    Where the system lets us, the processes have no network but themselves; anyway they are kept
    from connecting, and what they tried is written down.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(CUT)
    attempts = folder / "attempts"
    attempts.touch()
    source = Path(__file__).parents[2] / "src"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(source)]),
        "METAMIRROR_ATTEMPTS": str(attempts),
    }
    allowed = (
        subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode == 0
    )
    prefix = NO_NETWORK if allowed else ()
    done = subprocess.run(
        [*prefix, sys.executable, "-c", program, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr, attempts.read_text().splitlines(), allowed


def quickstart(folder: Path, minutes: float, *, small: bool) -> dict[str, Any]:
    code, errors, attempts, cut = cut_off(
        folder, QUICKSTART, str(minutes), *(["small"] if small else [])
    )
    assert code == 0, errors
    assert not attempts, attempts
    assert (folder / "quickstart" / "report.html").is_file()
    return {"minutes": minutes, "network": "cut by the system" if cut else "refused in Python"}


def download(folder: Path) -> str:
    """What `--download`, the one thing that needs a network, says without one."""
    program = "from metamirror.cli.main import entry; entry()"
    words = ("data", "add", "omniglot", "--download", "--data-dir", "data")
    code, errors, attempts, _ = cut_off(folder, program, *words)
    assert code == 2, errors
    assert attempts
    assert "Traceback" not in errors
    return errors.strip().splitlines()[-1]
