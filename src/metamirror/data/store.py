"""Where installed images live: one array file and one index for each data set.

The index is written last and atomically, and names its array file. Whatever happens before that
leaves what was there untouched; whatever it leaves behind, the next installation removes.
"""

import errno
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import platformdirs
from filelock import FileLock, Timeout

from metamirror.console import Progress
from metamirror.core.files import digest_of, expanded, read_json, sync_folder, to_json, write_json
from metamirror.data.addressing import SPLITS
from metamirror.data.image_set import ImageClass, ImageSet, Pixels

FORMAT = 1
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)

Rows = Iterable[tuple[int, Pixels | None]]
"""(row, one image (channels, height, width)), in any order; None is an image left out."""


def data_home(data_dir: str | Path | None = None) -> Path:
    """Return the folder of installed data: given, or $METAMIRROR_HOME, or the platform's own."""
    chosen = data_dir or os.environ.get("METAMIRROR_HOME")
    return expanded(chosen) if chosen else Path(platformdirs.user_data_dir("metamirror"))


class DamagedSet(ValueError):  # noqa: N818
    """What is installed is not what was installed."""


@dataclass(frozen=True)
class Store:
    """Installed data sets in one folder, which is made when something is installed."""

    root: Path

    def names(self) -> list[str]:
        """Return the names of what is installed."""
        return sorted(path.stem for path in self.root.glob("*.json"))

    def holds(self, name: str) -> bool:
        """Return whether a data set is installed."""
        return self._index(name).is_file()

    def facts(self, name: str) -> dict[str, Any]:
        """Return the index of a data set, checked for what the rest relies on."""
        path = self._index(name)
        try:
            found: dict[str, Any] = read_json(path)
            _check_index(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(name, f"{path} is no index of format {FORMAT} ({error})") from error
        array, expected = self.root / found["array"], math.prod(found["shape"])
        if not array.is_file():
            raise self._damaged(name, f"{array} is missing")
        if (size := array.stat().st_size) != expected:
            raise self._damaged(name, f"{array} has {size} bytes instead of {expected}")
        return found

    def open(self, name: str) -> ImageSet:
        """Open a data set, its images memory-mapped."""
        facts = self.facts(name)
        pixels = np.memmap(self.root / facts["array"], np.uint8, "r", shape=tuple(facts["shape"]))
        classes = tuple(ImageClass(**c) for c in facts["classes"])
        whole = to_json([facts["sha256"], facts["classes"]]).encode()
        return ImageSet(name, pixels, classes, hashlib.sha256(whole).hexdigest())

    def check(self, name: str) -> dict[str, Any]:
        """Compare every byte of the array with its checksum, and return the index."""
        facts = self.facts(name)
        array = self.root / facts["array"]
        if (found := digest_of(array, "sha256")) != facts["sha256"]:
            raise self._damaged(name, f"{array} is damaged: its sha256 is {found}")
        return facts

    def keep(self, name: str, key: str, value: object, install: Callable[[], object]) -> ImageSet:
        """Open what can be made again, installed unless what is there was made from the same."""

        def current() -> bool:
            try:
                return self.holds(name) and self.facts(name).get(key) == value
            except DamagedSet:
                return False  # to be made again

        # Looked at first without the lock, so that a folder that cannot be written to will do.
        if not current():
            with self.locked(name, wait=True):
                if not current():
                    install()
        return self.open(name)

    @contextmanager
    def locked(self, name: str, *, wait: bool) -> Iterator[None]:
        """Keep other processes from installing the data set; the lock ends with its process."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with FileLock(self.root / f".{name}.lock", timeout=-1 if wait else 0):
                yield
        except Timeout:
            raise ValueError(
                f"another process is adding {name} to {self.root}: wait until it has finished"
            ) from None
        except OSError as error:
            if error.errno not in UNWRITABLE or error.filename is None:
                raise
            raise OSError(
                f"{self.root} cannot be written to ({error}): set METAMIRROR_HOME, or --data-dir, "
                f"to a folder of yours"
            ) from error

    def install(
        self,
        name: str,
        shape: tuple[int, int, int],
        classes: Sequence[ImageClass],
        rows: Rows,
        about: dict[str, Any],
        title: str | None = None,
    ) -> int:
        """Write images of one shape and an index; return how many were left out.

        Call it inside `locked`. Rows that are left out are closed up. The progress says `title`.
        """
        self._clean(name)
        part = self.root / f".{name}.part"
        total, size = sum(c.count for c in classes), math.prod(shape)
        missing: list[int] = []
        try:
            with part.open("wb+") as file, Progress(title or f"add {name}", total) as progress:
                for done, (row, image) in enumerate(rows, 1):
                    progress.update(done, f"{len(missing)} left out" if missing else "")
                    if image is None:
                        missing.append(row)
                        continue
                    if image.shape != shape or image.dtype != np.uint8:
                        raise ValueError(f"{name}: image {row} is {image.shape}, not {shape}")
                    # Written, not mapped: a full disk is then an error and not a signal.
                    file.seek(row * size)
                    file.write(image.tobytes())
                classes = close_up(classes, missing, file, size)
                file.truncate((total - len(missing)) * size)
                file.flush()
                os.fsync(file.fileno())
            if not classes:
                raise ValueError(f"none of the {total} images of {name} could be read")
            digest = digest_of(part, "sha256")
            index = {
                "format": FORMAT,
                "name": name,
                "array": f"{name}.{digest[:16]}.bytes",
                "sha256": digest,
                "shape": [total - len(missing), *shape],
                "left_out": len(missing),
                **about,
                "classes": [asdict(c) for c in classes],
            }
            _check_index(index)
            os.replace(part, self.root / f"{name}.{digest[:16]}.bytes")
            sync_folder(self.root)
            write_json(self._index(name), index)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise OSError(
                f"{name} needs {total * size / 2**20:,.0f} MB in {self.root}, where there is no "
                f"room ({error.strerror}): make some, or choose another folder with --data-dir"
            ) from error
        finally:
            part.unlink(missing_ok=True)
            self._clean(name)
        return len(missing)

    def _index(self, name: str) -> Path:
        if not re.fullmatch(r"[a-z0-9][a-z0-9@-]*", name):
            raise ValueError(f"{name!r} is no name of a data set")
        return self.root / f"{name}.json"

    def _damaged(self, name: str, what: str) -> DamagedSet:
        made_again = "@" in name or name == "glyphs"  # from something else, whenever it is used
        way = f"remove {self._index(name)}, and it is made" if made_again else f"add {name}"
        return DamagedSet(f"{what}: {way} again")

    def _clean(self, name: str) -> None:
        """Remove arrays that no index names: leftovers of a killed or superseded installation."""
        try:
            kept = read_json(self._index(name)).get("array")
        except (ValueError, AttributeError):  # there is none, or it is damaged
            kept = None
        for path in self.root.glob(f"{name}.*.bytes"):
            if path.name != kept:
                path.unlink(missing_ok=True)


def close_up(
    classes: Sequence[ImageClass], missing: Sequence[int], file: BinaryIO, size: int
) -> list[ImageClass]:
    """Return the classes without the missing rows, whose followers move up in the file."""
    gone, kept, end = set(missing), [], 0
    for c in classes:
        rows = [row for row in range(c.start, c.start + c.count) if row not in gone]
        for target, row in enumerate(rows, end):
            if row != target:
                file.seek(row * size)
                image = file.read(size)
                file.seek(target * size)
                file.write(image)
        if rows:
            kept.append(replace(c, start=end, count=len(rows)))
        end += len(rows)
    return kept


def _check_index(found: dict[str, Any]) -> None:
    """Refuse an index that this version did not write, or that somebody has changed."""
    if found["format"] != FORMAT:
        raise ValueError(f"format is {found['format']!r}")
    shape = found["shape"]
    if len(shape) != 4 or not all(_is_count(n) and n > 0 for n in shape):
        raise ValueError(f"shape is {shape!r}")
    if not re.fullmatch(r"[a-z0-9@-]+\.[0-9a-f]{16}\.bytes", found["array"]):
        raise ValueError(f"array is {found['array']!r}")
    if not re.fullmatch(r"[0-9a-f]{64}", found["sha256"]) or not _is_count(found["left_out"]):
        raise ValueError("a checksum or a count is missing")
    end, names = 0, set()
    for c in (ImageClass(**c) for c in found["classes"]):
        counts = _is_count(c.count) and _is_count(c.start) and c.turns in (0, 1, 2, 3)
        if not (isinstance(c.name, str) and counts and c.split in SPLITS and c.start == end):
            raise ValueError(f"class {c.name!r} is {c}")
        if c.name in names:
            raise ValueError(f"class {c.name!r} is there twice")
        names.add(c.name)
        end = c.start + c.count
    if end != shape[0]:
        raise ValueError(f"the classes hold {end} images and the array {shape[0]}")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
