"""Zips and tars, read in place and with suspicion."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar, cast

T = TypeVar("T")

LIMIT = 64 * 2**20
"""The most bytes of one file, unless the caller says otherwise: ample for a picture."""

LARGE = 1 << 35
"""No pickle or array of the known data sets comes near this many bytes."""

MAX_ENTRIES = 5_000_000
"""The most files of one source."""

_CHUNK = 2**20
_MAX_HEADER = 2**14  # names have 4,096 bytes at most, and tarfile takes long over long headers
_MAX_LETTERS = 2**29
_DRIVE = re.compile(r"[A-Za-z]:")

# What a compressed tar may grow to: pictures hardly shrink, and even blank ones not a thousandfold.
_RATIO, _ALWAYS_ALLOWED = 1000, 2**30
_RATIO_IN_MEMORY = 20


class DamagedArchive(ValueError):  # noqa: N818
    """An archive that was cut short or changed on its way."""


class RefusedFile(ValueError):  # noqa: N818
    """A file or an entry of an archive that is not safe to read."""


class Packed(ABC):
    """An archive: its names, and its files in its own order."""

    def __init__(self, path: Path):
        self.path = path

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """The names of all visible files, found when first asked for."""

    @abstractmethod
    def read(
        self, names: Collection[str], limit: int, *, tolerant: bool
    ) -> Iterator[tuple[str, bytes]]:
        """Some files, in the archive's order; see `Source.read_many`."""

    @abstractmethod
    def close(self) -> None:
        """Gives the file back. The next `read` opens it again."""


class Zip(Packed):
    """A zip: its directory stands at its end, and each entry can be reached at once."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._open: zipfile.ZipFile | None = None

    @cached_property
    def names(self) -> Mapping[str, zipfile.ZipInfo]:
        with damage(self.path):
            infos = self._file().infolist()
        index: _Index[zipfile.ZipInfo] = _Index(self.path)
        for info in infos:
            # `filename` has been cut at a zero byte and, on Windows, has lost its backslashes.
            index.add(info.orig_filename, info, partial(self._is_file, info))
        return index.complete()

    def _is_file(self, info: zipfile.ZipInfo) -> bool:
        if info.is_dir():
            return False
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise _unsafe(self.path, info.filename, "is a link or a device, not a file")
        check_readable(info, self.path)
        return True

    def read(
        self, names: Collection[str], limit: int, *, tolerant: bool
    ) -> Iterator[tuple[str, bytes]]:
        index = self.names
        for name in sorted(names, key=lambda name: index[name].header_offset):
            try:
                most = most_of(limit, index[name].compress_size)
                with damage(self.path, name), self._file().open(index[name]) as entry:
                    data = bounded(entry, most, f"{name} in {self.path}")
            except DamagedArchive:
                if not tolerant:
                    raise
                data = b""
            yield name, data

    def _file(self) -> zipfile.ZipFile:
        if self._open is None:
            self._open = zipfile.ZipFile(self.path)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class Tar(Packed):
    """A tar, plain or compressed: a row of entries without a directory."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._open: _Forward | None = None

    @cached_property
    def names(self) -> Mapping[str, tuple[int, int]]:
        index: _Index[tuple[int, int]] = _Index(self.path)
        with damage(self.path), _Forward(self.path) as file:
            tar = tarfile.TarFile(fileobj=cast(IO[bytes], file), tarinfo=_StrictInfo)
            while (info := tar.next()) is not None:
                place = (info.offset_data, info.size)
                index.add(info.name, place, partial(self._is_file, info))
                # It would keep every header that it has seen.
                headers = cast(Any, tar)
                headers.members.clear()
                headers.pax_headers.clear()
            # The checksum of a compressed file stands behind the last entry.
            file.finish()
        return index.complete()

    def _is_file(self, info: tarfile.TarInfo) -> bool:
        if info.isdir():
            return False
        if not info.isreg() or info.issparse():
            raise _unsafe(self.path, info.name, "is a link, a device or sparse, not a plain file")
        return True

    def read(
        self, names: Collection[str], limit: int, *, tolerant: bool
    ) -> Iterator[tuple[str, bytes]]:
        # Behind damage in a tar nothing can be trusted: there is no tolerance to be had.
        index = self.names
        most = most_of(limit, self.path.stat().st_size)
        for name in sorted(names, key=lambda name: index[name]):
            start, size = index[name]
            with damage(self.path, name):
                if self._open is None or self._open.tell() > start:
                    self.close()
                    self._open = _Forward(self.path)
                self._open.seek(start)
                entry = _Window(self._open, size)
                data = bounded(entry, most, f"{name} in {self.path}")
                if len(data) < size:
                    raise EOFError(f"{len(data)} of {size} bytes")
            yield name, data

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class _StrictInfo(tarfile.TarInfo):
    """tarfile takes a broken header for the end of the archive, and drops the rest in silence."""

    @classmethod
    def fromtarfile(cls, tarfile_: Any) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            # A block of zeros is the true end.
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise tarfile.ReadError(str(error)) from error


class _Forward:
    """A file, decompressed if need be, from front to back.

    A header that makes tarfile jump back or swallow gigabytes is an attack: a negative size would
    keep it in a circle, and a long name of zeros would fill the memory.
    """

    def __init__(self, path: Path):
        self._path, size = path, path.stat().st_size
        with path.open("rb") as raw:
            magic = raw.read(6)
        opener = next((o for m, o in _COMPRESSIONS.items() if magic.startswith(m)), None)
        self._file = path.open("rb") if opener is None else opener(path)
        self._plain = opener is None
        self._at = 0
        self._most = size if self._plain else max(_ALWAYS_ALLOWED, _RATIO * size)

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        """What tarfile reads: headers."""
        if not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self.take(size)

    def take(self, size: int) -> bytes:
        """The next bytes, fewer only at the end."""
        data = self._file.read(size)
        self._at += len(data)
        self._check(self._at)
        return data

    def seek(self, place: int) -> None:
        if place < self._at:
            raise tarfile.ReadError(f"a header leads back from {self._at:,} to {place:,}")
        self._check(place)
        if self._plain:
            self._file.seek(place)
            self._at = place
        while self._at < place:
            if not self.take(min(_CHUNK, place - self._at)):
                raise EOFError("it ends within an entry")

    def _check(self, place: int) -> None:
        if place > self._most and self._plain:
            raise EOFError("it ends within an entry")
        if place > self._most:
            raise RefusedFile(
                f"{self._path} unpacks to more than {self._most:,} bytes, so it is not read; if "
                f"you trust the archive, unpack it yourself and give the folder"
            )

    def finish(self) -> None:
        """Reads what is left of a compressed file, so that its checksum is compared."""
        while not self._plain and self.take(_CHUNK):
            pass

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_COMPRESSIONS: dict[bytes, Callable[[Path], IO[bytes]]] = {
    b"\x1f\x8b": lambda path: cast(IO[bytes], gzip.GzipFile(path)),
    b"BZh": lambda path: cast(IO[bytes], bz2.BZ2File(path)),
    b"\xfd7zXZ\x00": lambda path: cast(IO[bytes], lzma.LZMAFile(path)),  # noqa: SIM115
}


class _Window:
    """The next so many bytes of a file."""

    def __init__(self, file: _Forward, size: int):
        self._file, self._left = file, size

    def read(self, size: int) -> bytes:
        data = self._file.take(min(size, self._left))
        self._left -= len(data)
        return data


def bounded(file: IO[bytes] | _Window, limit: int, what: str) -> bytes:
    """All of a file, or an error if it has more bytes than `limit`, whatever its header said."""
    buffer = io.BytesIO()
    while data := file.read(min(_CHUNK, limit + 1 - buffer.tell())):
        buffer.write(data)
        if buffer.tell() > limit:
            raise RefusedFile(
                f"{what} has more than {limit:,} bytes, the most that is read of one file here; "
                f"remove it if it does not belong to the data"
            )
    return buffer.getvalue()


def most_of(limit: int, packed: int) -> int:
    """The most bytes of one entry, which is held in memory: pictures and arrays hardly shrink.

    Args:
        limit: what the caller would take.
        packed: what it takes in its archive.
    """
    return min(limit, max(_ALWAYS_ALLOWED, _RATIO_IN_MEMORY * packed))


def check_readable(info: zipfile.ZipInfo, where: object) -> None:
    """Refuses entries of a zip that need a password, or whose reader has no bounds."""
    if info.flag_bits & 0x41:
        raise RefusedFile(
            f"{where} is encrypted ({info.filename!r}); unpack it with its password "
            f"into a folder, and give that folder"
        )
    # The other methods' readers do not bound what a few bytes grow to, and nobody uses them.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise RefusedFile(
            f"{info.filename!r} in {where} is compressed by method {info.compress_type}; "
            f"only stored and deflated entries are read. Unpack it and give the folder"
        )


def visible(parts: Sequence[str]) -> bool:
    """Whether a file is meant for people: not hidden, nor what macOS adds to its archives."""
    return not any(part.startswith(".") or part == "__MACOSX" for part in parts)


class _Index(Generic[T]):
    """The visible files of an archive by their names, each of which stands for one file inside."""

    def __init__(self, path: Path):
        self._path, self._entries, self._letters = path, dict[str, T](), 0

    def add(self, raw: str, entry: T, is_file: Callable[[], bool]) -> None:
        parts = raw.split("/")
        if ".." in parts or raw.startswith("/") or "\\" in raw or "\0" in raw or _DRIVE.match(raw):
            raise _unsafe(self._path, raw, "would lie outside the archive")
        parts = [part for part in parts if part not in ("", ".")]
        if not visible(parts) or not is_file():
            return
        name = "/".join(parts)
        if name in self._entries:
            raise _unsafe(self._path, raw, "stands in it twice")
        self._letters += len(name)
        if len(self._entries) >= MAX_ENTRIES or self._letters > _MAX_LETTERS:
            raise RefusedFile(f"{self._path} holds more than {MAX_ENTRIES:,} files; split it")
        self._entries[name] = entry

    def complete(self) -> dict[str, T]:
        if not self._entries:
            raise RefusedFile(f"{self._path} holds no files; give an archive that holds the data")
        return self._entries


def _unsafe(path: Path, name: str, what: str) -> RefusedFile:
    return RefusedFile(
        f"the entry {name!r} of {path} {what}, so it is not read; if you trust the archive, "
        f"unpack it yourself and give the folder"
    )


@contextlib.contextmanager
def damage(path: object, name: str | None = None) -> Iterator[None]:
    """Names the archive in whatever its reader stumbles on."""
    try:
        yield
    except RefusedFile:
        raise
    except _STUMBLES as error:
        # A disk that fails says how (errno); a damaged bz2 is an OSError that does not, and an
        # impossible place in a file is EINVAL.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        where = f"{path}" if name is None else f"{path} (at {name!r})"
        raise DamagedArchive(
            f"{where} is damaged or not what its name says: {error or type(error).__name__}; "
            f"download or copy it again"
        ) from error


_STUMBLES = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
)
