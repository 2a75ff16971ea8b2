"""Disks that fill up and disks that may not be written to: small ones, mounted for the occasion.

    unshare --map-root-user --mount python tests/faults/disks.py FOLDER [full|read-only ...]

The mounts are seen by this process alone and are gone with it. Root may write to a folder whatever
its mode says, but not to a disk that is mounted to be read: so this works for everyone. It prints
one JSON document.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

INSIDE = ("unshare", "--map-root-user", "--mount")
TRAIN = (
    *("train", "--method", "metasgd", "--data", "sinusoid", "--shots", "3", "--queries", "3"),
    *("--steps", "1", "--tasks-per-step", "2", "--iterations", "6", "--checkpoint-every", "1"),
    *("--validate-every", "2", "--val-tasks", "2", "--log-every", "1", "--vectorize", "False"),
)


def available() -> bool:
    """Whether this machine lets us mount something in a namespace of our own."""
    try:
        words = (*INSIDE, "mount", "-t", "tmpfs", "none", "/mnt")
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def in_namespace(folder: Path, *kinds: str) -> dict[str, Any]:
    """What `main` below finds, in a process that may mount."""
    root = Path(__file__).parents[2]
    places = [root, root / "src"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    words = [*INSIDE, sys.executable, __file__, str(folder), *kinds]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise AssertionError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Disk:
    """A small disk.

    Args:
        at: the folder where it is mounted.
        kilobytes: what fits on it.
    """

    def __init__(self, at: Path, kilobytes: int):
        self.at = at
        at.mkdir(parents=True)
        self._mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "none")

    def resize(self, kilobytes: int) -> None:
        self._mount("-o", f"remount,size={kilobytes}k")

    def read_only(self, yes: bool) -> None:
        self._mount("-o", "remount,ro" if yes else "remount,rw")

    def _mount(self, *words: str) -> None:
        subprocess.run(["mount", *words, str(self.at)], check=True, capture_output=True)

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self.at)], check=True)


def said(words: Sequence[str]) -> tuple[int, str]:
    """Exit code and complaints of a command."""
    from metamirror.cli.main import main as command

    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = command(list(words))
    assert "Traceback" not in errors.getvalue(), errors.getvalue()
    return code, errors.getvalue()


def refused(words: Sequence[str], *named: str) -> str:
    code, errors = said(words)
    assert code == 2, (code, errors)
    assert any(word in errors for word in named), errors
    return errors


def kilobytes(folder: Path) -> int:
    return sum(4 * -(-f.stat().st_size // 4096) for f in folder.rglob("*") if f.is_file())


# Full disks


def train_on_full_disks(folder: Path) -> int:
    """The run ends with a reason, keeps what it had, and ends the same once there is room."""
    from tests.faults.killing import assert_readable
    from tests.runs import results

    whole = folder / "whole"
    assert said((*TRAIN, "--out", str(whole)))[0] == 0
    size, tried = kilobytes(whole), 0
    for share in (10, 30, 45, 60, 75, 90):
        with Disk(folder / f"disk-{share}", max(4, size * share // 100)) as disk:
            run = disk.at / "run"
            words = (*TRAIN, "--out", str(run), "--resume")
            refused(words, "No space left")
            assert_readable(run)
            disk.resize(100 * size)
            assert said(words)[0] == 0
            assert results(run) == results(whole)
            tried += 1
    return tried


def add_on_full_disks(folder: Path) -> int:
    """What was installed before stays whole, nothing is left behind, and later it fits."""
    from metamirror.data.store import Store
    from tests.data import sources

    old = sources.write(folder / "old", sources.folders())
    more = {f"train/n9999/{i}.png": sources.picture(i) for i in range(40)}
    new = sources.write(folder / "new", {**sources.folders(), **more})
    tried = 0
    # The old set has 1.0 MB and the new one 1.9.
    for size in (1_200, 2_000, 2_700):
        with Disk(folder / f"data-{size}", size) as disk:
            words = ("data", "add", "mini-imagenet", "--data-dir", str(disk.at), "--from")
            assert said((*words, str(old)))[0] == 0
            before = Store(disk.at).check("mini-imagenet")["sha256"]
            refused((*words, str(new)), "where there is no room")
            assert Store(disk.at).check("mini-imagenet")["sha256"] == before
            assert not list(disk.at.glob(".*.part"))
            disk.resize(20_000)
            assert said((*words, str(new)))[0] == 0
            assert Store(disk.at).check("mini-imagenet")["sha256"] != before
            tried += 1
    return tried


def other_commands_on_a_full_disk(folder: Path) -> int:
    """Results are printed though they cannot be kept; files that were there stay."""
    import metamirror as mm
    from tests.data import sources

    run = folder / "for-others"
    assert said((*TRAIN, "--out", str(run)))[0] == 0
    pictures = sources.write(
        folder / "support",
        {f"{c}/{i}.png": sources.picture(99 * (c == "a")) for c in "ab" for i in "1"},
    )
    with Disk(folder / "full", 2000) as disk:
        shutil.copytree(run, disk.at / "run")
        words = ("adapt", "glyphs-maml", "--support", str(pictures), "--steps", "1", "--out")
        assert said((*words, str(disk.at / "model")))[0] == 0
        left = os.statvfs(disk.at)
        (disk.at / "ballast").write_bytes(bytes(left.f_bavail * left.f_frsize))
        code, errors = said(("evaluate", str(disk.at / "run"), "--tasks", "2"))
        assert code == 0
        assert "not kept" in errors
        refused((*words, str(disk.at / "model")), "No space left")
        assert mm.FewShotClassifier.load(disk.at / "model").classes_.tolist() == ["a", "b"]
        refused(("report", str(disk.at), "--inspect-seconds", "0"), "No space left")
    return 3


def compare_on_a_full_disk(folder: Path) -> int:
    """The same command goes on once there is room, to the same table."""
    from tests.faults.killing import COMPARE, table_of

    whole = folder / "whole-comparison"
    assert said((*COMPARE, "--out", str(whole)))[0] == 0
    tried = 0
    for share in (30, 70):
        with Disk(folder / f"comparison-{share}", kilobytes(whole) * share // 100) as disk:
            words = (*COMPARE, "--out", str(disk.at / "out"))
            code, errors = said(words)
            assert code in (0, 2)
            assert "No space left" in errors, errors
            disk.resize(10**5)
            assert said(words)[0] == 0
            assert table_of(disk.at / "out") == table_of(whole)
            tried += 1
    return tried


# Disks that may only be read


def read_only_disks(folder: Path) -> int:
    """What would write is refused with the place; what reads goes on."""
    from tests.data import sources

    pictures = sources.write(
        folder / "ro-support", {f"{c}/1.png": sources.picture(99 * (c == "a")) for c in "ab"}
    )
    source = sources.write(folder / "ro-source", sources.folders())
    with Disk(folder / "read-only", 20_000) as disk:
        at = disk.at
        assert said((*TRAIN, "--out", str(at / "run")))[0] == 0
        assert (
            said(("data", "add", "mini-imagenet", "--from", str(source), "--data-dir", str(at)))[0]
            == 0
        )
        adapt = ("adapt", "glyphs-maml", "--support", str(pictures), "--steps", "1", "--out")
        assert said((*adapt, str(at / "model")))[0] == 0
        before = sorted(str(path) for path in at.rglob("*"))
        disk.read_only(True)
        why = ("Read-only file system", "cannot be written to")
        writing = [
            (*TRAIN, "--out", str(at / "new")),
            (*TRAIN, "--out", str(at / "run"), "--resume", "--iterations", "9"),
            ("data", "add", "mini-imagenet", "--from", str(source), "--data-dir", str(at)),
            (*adapt, str(at / "model")),
            ("inspect", str(at / "run"), "--tasks", "1", "--points", "1"),
            ("report", str(at), "--inspect-seconds", "0"),
            ("data", "show", "mini-imagenet", "--data-dir", str(at), "--out", str(at / "task.png")),
            ("compare", "--data", "sinusoid", "--methods", "maml", "--out", str(at / "comparison")),
            ("quickstart", "--out", str(at / "quickstart")),
        ]
        for words in writing:
            refused(words, *why)
        show = folder / "task.png"
        reading = [
            ("evaluate", str(at / "run"), "--tasks", "2"),
            ("data", "list", "--data-dir", str(at)),
            ("data", "check", "mini-imagenet", "--data-dir", str(at)),
            (
                "data",
                "show",
                "mini-imagenet",
                "--data-dir",
                str(at),
                "--ways",
                "2",
                "--out",
                str(show),
            ),
            ("predict", str(at / "model"), str(pictures / "a" / "1.png")),
        ]
        for words in reading:
            code, errors = said(words)
            assert code == 0, errors
        assert sorted(str(path) for path in at.rglob("*")) == before
    return len(writing) + len(reading)


KINDS: dict[str, Callable[[Path], int]] = {
    "full: train": train_on_full_disks,
    "full: data add": add_on_full_disks,
    "full: evaluate, adapt, report": other_commands_on_a_full_disk,
    "full: compare": compare_on_a_full_disk,
    "read-only": read_only_disks,
}


def main() -> None:
    folder, kinds = Path(sys.argv[1]), sys.argv[2:] or list(KINDS)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["METAMIRROR_HOME"] = str(folder / "home")
    print(json.dumps({kind: KINDS[kind](folder) for kind in kinds}))


if __name__ == "__main__":
    main()
