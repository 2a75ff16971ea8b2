"""Builds what would be published and checks it: `make release-check`.

    python tools/release.py --out dist

Wheel and source archive are built twice, from copies of the tracked files, and must have the same
bytes. SOURCE_DATE_EPOCH is the date of the last commit unless it is given.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 8_000_000
"""Bytes that a wheel may have."""

NEEDED = ("metamirror/py.typed", "metamirror/starts/photos/start.json")
INSIDE = re.compile(r"metamirror/|metamirror-[\d.]+\.dist-info/")
"""What a wheel may hold: no tests, no results, no site."""


def epoch() -> int:
    """Return the date that all files get."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or output("git", "log", "-1", "--format=%ct"))


def output(*words: str, cwd: Path = ROOT, **environment: str) -> str:
    own = {**os.environ, **environment}
    done = subprocess.run(words, cwd=cwd, env=own, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path, date: int) -> list[Path]:
    """Build both archives from a copy of the tracked files, so that nothing else gets in."""
    source, out = folder / "source", folder / "dist"
    for name in output("git", "ls-files", "-z").strip("\0").split("\0"):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
        target.chmod(0o644)  # whatever the umask of whoever cloned it
    words = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source))
    output(*words, SOURCE_DATE_EPOCH=str(date))
    for archive in out.glob("*.tar.gz"):
        archive.write_bytes(normalised(archive.read_bytes(), date))
    return sorted(out.iterdir())


def normalised(archive: bytes, date: int) -> bytes:
    """Return a source archive with one date and no owner: setuptools writes the clock's."""
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() else 0o644
            member.pax_headers = {}
            new.addfile(member, content)
    return gzip.compress(plain.getvalue(), mtime=date)


def faults(wheel: Path) -> Iterable[str]:
    """Yield what is wrong with a wheel's contents and size."""
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    yield from (
        f"{name} does not belong into the wheel" for name in inside if not INSIDE.match(name)
    )
    yield from (f"{name} is missing from the wheel" for name in NEEDED if name not in inside)
    starts = {start.name for start in (ROOT / "src/metamirror/starts").iterdir() if start.is_dir()}
    yield from (
        f"the start {name} is missing from the wheel"
        for name in sorted(starts)
        if f"metamirror/starts/{name}/start.json" not in inside
    )
    if (size := wheel.stat().st_size) > LARGEST:
        yield f"the wheel has {size:,} bytes; {LARGEST:,} are allowed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where the archives go")
    out, date = parser.parse_args().out, epoch()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        built, again = (build(Path(folder), date) for folder in (first, second))
        wrong = [
            f"{one.name} differs from build to build"
            for one, two in zip(built, again, strict=True)
            if one.read_bytes() != two.read_bytes()
        ]
        wrong += [fault for file in built if file.suffix == ".whl" for fault in faults(file)]
        output(sys.executable, "-m", "twine", "check", "--strict", *map(str, built))
        if wrong:
            sys.exit("\n".join(wrong))
        out.mkdir(parents=True, exist_ok=True)
        for file in built:
            shutil.copy(file, out)
            print(f"{out / file.name}: {file.stat().st_size:,} bytes, the same twice")


if __name__ == "__main__":
    main()
