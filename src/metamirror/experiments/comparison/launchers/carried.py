"""The files of a job, packed to go to a machine that shares no folder, and back."""

import contextlib
import io
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from metamirror.core.files import write_atomically
from metamirror.experiments.comparison.jobs import Job
from metamirror.storage import checkpoint
from metamirror.storage.locks import OWNER

LEFT_BEHIND = (".lock", ".tmp")
RUN = "run"
"""Where a run from outside the comparison's folder is put on the other machine."""
State = dict[Path, tuple[int, int]]
"""When each file was changed, and how long it is."""


def send(job: Job) -> bytes:
    """Return what there is of a job: its run, with the checkpoints of earlier attempts."""
    out, run = Path(job.out), job.run_folder
    if run is None:
        return pack([], out)
    return pack(_files(run), out) if _is_below(run, out) else pack(_files(run), run, below=RUN)


def receive(job: Job, content: bytes, out: Path) -> Job:
    """Write what was sent of a job into a folder, and return the job as it stands there."""
    unpack(content, out)
    run = job.run_folder
    outside = run is not None and not _is_below(run, Path(job.out))
    return replace(job, out=str(out), run=str(out / RUN) if outside else None)


def _is_below(run: Path, out: Path) -> bool:
    return run.absolute().is_relative_to(out.absolute())


def state_of(out: Path) -> State:
    """Return the state of all files of a folder."""
    found = {}
    for file in _files(out):
        # A run removes its old checkpoints meanwhile.
        with contextlib.suppress(FileNotFoundError):
            stat = file.stat()
            found[file] = stat.st_mtime_ns, stat.st_size
    return found


def changed(out: Path, seen: State) -> list[Path]:
    """Return the files that are not as they were seen, and take note of them."""
    now = state_of(out)
    found = [file for file, state in now.items() if seen.get(file) != state]
    seen.update(now)
    return found


def pack(files: Sequence[Path], out: Path, below: str = "") -> bytes:
    """Return files as one archive, by their names in a folder, which becomes `below`.

    In the order given: a checkpoint before the metrics, which may be longer than it says, but not
    shorter.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for file in files:
            try:
                data = file.read_bytes()
            except FileNotFoundError:
                continue
            entry = tarfile.TarInfo(str(Path(below, file.relative_to(out))))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def unpack(content: bytes, out: Path) -> None:
    """Write the files of an archive, each at once or not at all; refuse one that is elsewhere."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for entry in archive:
            target = out / entry.name
            data = archive.extractfile(entry)
            if data is None or not target.resolve().is_relative_to(out.resolve()):
                raise ValueError(f"{entry.name} is no file of {out}")
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, data.read())


def take_in(job: Job, content: bytes) -> None:
    """Write what came back of a job, and keep as many checkpoints as a run keeps."""
    unpack(content, Path(job.out))
    if job.folder is not None:
        for old in checkpoint.files(Path(job.out, job.folder))[: -checkpoint.KEPT]:
            old.unlink()


def _files(folder: Path) -> list[Path]:
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.endswith(LEFT_BEHIND) and file.name != OWNER
    ]
