"""Zips, tars and npz, read in place by their own modules, with limits that those do not set.

Extracting with tarfile's `data` filter would write every file to disk, and does not limit how far a
few bytes grow. Here nothing is unpacked, and what is refused is refused before it is read.
"""

import contextlib
import errno
import io
import lzma
import math
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

LIMIT = 64 * 2**20
"""The most bytes of one file, unless the caller says otherwise: ample for an image."""

LARGE = 1 << 35
"""No pickle or array of the known data sets comes near this many bytes."""

MAX_ENTRIES = 5_000_000
"""The most files of one source."""

_CHUNK = 2**20
_MAX_HEADER = 2**14  # names have 4,096 bytes at most, and tarfile takes long over long headers
_MAX_LETTERS = 2**29
_OUTSIDE = re.compile(r"^/|^[A-Za-z]:|\\|\0")

# What a compressed tar may grow to: images hardly shrink, and even blank ones not a thousandfold.
_RATIO, _ALWAYS_ALLOWED = 1000, 2**30
_RATIO_IN_MEMORY = 20

Entry = tuple[int, int, Any]
"""Where a file begins in its archive, how many bytes it takes there, and what opens it."""
Found = tuple[str, Entry | None, str]
"""The name of an entry, its place (None for a folder), and the problem with it, if any."""


class DamagedArchive(ValueError):  # noqa: N818
    """An archive that was cut short or changed on its way."""


class RefusedFile(ValueError):  # noqa: N818
    """A file or an entry of an archive that is not safe to read."""


class Archive:
    """A zip or a tar, opened when first asked: visible files by name, bytes in its own order."""

    def __init__(self, path: Path):
        self.path, self.is_zip = path, path.suffix.lower() == ".zip"
        self.opened = contextlib.ExitStack()

    @cached_property
    def file(self) -> Any:
        """The open file."""
        if self.is_zip:
            return self.opened.enter_context(zipfile.ZipFile(self.path))
        return self.opened.enter_context(tarfile.open(self.path, "r:*", tarinfo=_StrictInfo))

    @cached_property
    def index(self) -> dict[str, Entry]:
        """The place of every visible file. Each name stands for one file inside the archive."""
        found: dict[str, Entry] = {}
        letters = 0
        with damage(self.path):
            for raw, entry, problem in (_zipped if self.is_zip else _tarred)(self.file, self.path):
                parts = raw.split("/")
                if ".." in parts or _OUTSIDE.search(raw):
                    problem = "would lie outside the archive"
                elif entry is None or not visible(parts):
                    continue
                name = "/".join(part for part in parts if part not in ("", "."))
                problem = problem or ("stands in it twice" if name in found else "")
                if problem or entry is None:
                    raise RefusedFile(
                        f"the entry {raw!r} of {self.path} {problem}, so it is not read; if you "
                        f"trust the archive, unpack it yourself and give the folder"
                    )
                letters += len(name)
                if len(found) >= MAX_ENTRIES or letters > _MAX_LETTERS:
                    raise RefusedFile(f"{self.path} has more than {MAX_ENTRIES:,} files; split it")
                found[name] = entry
        if not found:
            raise RefusedFile(f"{self.path} holds no files; give an archive that holds the data")
        return found

    def read(
        self, names: Collection[str], limit: int, *, tolerant: bool
    ) -> Iterator[tuple[str, bytes]]:
        """Yield some files, in the archive's order; see `Source.read_many`."""
        for name in sorted(names, key=lambda name: self.index[name][0]):
            place, packed, what = self.index[name]
            try:
                with damage(self.path, name):
                    if self.is_zip:
                        opened = self.file.open(what)
                    else:
                        info = tarfile.TarInfo()
                        info.offset_data, info.size = place, what
                        opened = self.file.extractfile(info)
                    with opened as file:
                        data = bounded(file, limit, f"{name} in {self.path}", packed=packed)
            except DamagedArchive:
                # Behind damage in a tar nothing can be trusted: an entry begins where the one
                # before says that it ends.
                if not (tolerant and self.is_zip):
                    raise
                data = b""
            yield name, data


def _zipped(file: zipfile.ZipFile, path: Path) -> Iterator[Found]:
    for info in file.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        problem = "" if kind in (0, stat.S_IFREG) else "is a link or a device, not a file"
        entry = None if info.is_dir() else (info.header_offset, info.compress_size, info)
        if entry and not problem:
            check_readable(info, path)
        # `filename` has been cut at a zero byte and, on Windows, has lost its backslashes.
        yield info.orig_filename, entry, problem


def _tarred(file: Any, path: Path) -> Iterator[Found]:
    size = path.stat().st_size
    most = max(_ALWAYS_ALLOWED, _RATIO * size)

    def check_growth(place: int) -> None:
        if place > most:
            raise RefusedFile(
                f"{path} unpacks to more than {most:,} bytes, so it is not read; if you trust the "
                f"archive, unpack it yourself and give the folder"
            )

    while (info := file.next()) is not None:
        check_growth(file.offset)
        problem = "" if info.isreg() else "is a link or a device, not a plain file"
        yield info.name, None if info.isdir() else (info.offset_data, size, info.size), problem
        # tarfile would keep every header that it has seen.
        file.members.clear()
        file.pax_headers.clear()
    # The checksum of a compressed file stands behind the last entry.
    while file.fileobj.read(_CHUNK):
        check_growth(file.fileobj.tell())


class _StrictInfo(tarfile.TarInfo):
    """A header that tarfile would follow into a circle, into gigabytes, or take for the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _DESCRIPTIONS and not 0 <= info.size <= _MAX_HEADER:
            raise RefusedFile(
                f"the archive has a header of {info.size:,} bytes, so it is not read; the most is "
                f"{_MAX_HEADER:,}. Download or copy it again"
            )
        return info

    def _proc_sparse(self, *_: object) -> Self:
        raise RefusedFile(
            f"the entry {self.name!r} is sparse, not a plain file; unpack the archive yourself and "
            f"give the folder"
        )

    # Maps of holes are lists of any length, held in memory.
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _proc_sparse

    @classmethod
    def fromtarfile(cls, tarfile_: Any) -> Self:
        start = tarfile_.offset
        try:
            info = super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            # A block of zeros is the true end; a broken header would hide the entries behind it.
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise tarfile.ReadError(str(error)) from error
        if tarfile_.offset <= start or info.size < 0:
            raise tarfile.ReadError(f"a header leads back from {start:,} to {tarfile_.offset:,}")
        return info


_DESCRIPTIONS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
"""Long names and other facts about the entry that follows, which tarfile holds in memory."""


def read_npz(content: bytes | Path, key: str, name: str) -> NDArray[Any]:
    """Return the array `key` of an npz called `name`, as a read-only view of its bytes.

    From a file, an array that is not compressed is memory-mapped. `numpy.load` takes memory for any
    shape that a header claims, and unpacks without bounds.
    """
    source = io.BytesIO(content) if isinstance(content, bytes) else content
    with damage(name), zipfile.ZipFile(source) as archive:
        if f"{key}.npy" not in archive.namelist():
            there = ", ".join(n.removesuffix(".npy") for n in archive.namelist()[:9]) or "none"
            raise RefusedFile(f"{name} holds no array called {key}, but {there}")
        info = archive.getinfo(f"{key}.npy")
        check_readable(info, name)
        data: Any
        with archive.open(info) as entry:
            if isinstance(content, Path) and info.compress_type == zipfile.ZIP_STORED:
                data = _mapped(content, info)
            else:
                data = bounded(entry, LARGE, name, packed=info.compress_size)
        stream = io.BytesIO(data[:_MAX_HEADER])
        try:
            old = npy.read_magic(stream) == (1, 0)
            read = npy.read_array_header_1_0 if old else npy.read_array_header_2_0
            shape, columns_first, dtype = read(stream)
        except Exception as error:  # Python itself reads the header, as it would a program's line
            raise ValueError(f"its header is none of numpy's: {error}") from error
        start = stream.tell()
        if dtype.hasobject:
            raise RefusedFile(
                f"the array {key} of {name} holds Python objects, which are not read: save it as "
                f"numbers, or as words with .astype(str)"
            )
        if len(data) - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{len(data) - start:,} bytes for an array of {shape} {dtype}")
        found = np.frombuffer(data, dtype, offset=start)
        return found.reshape(shape, order="F" if columns_first else "C")


def _mapped(path: Path, info: zipfile.ZipInfo) -> NDArray[np.uint8]:
    """Return the bytes of an entry that is not compressed, memory-mapped."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        # The entry's own header, whose extra field may be longer than the one in the list.
        name, extra = struct.unpack("<26xHH", file.read(30))
    start = info.header_offset + 30 + name + extra
    return np.memmap(path, np.uint8, "r", offset=start, shape=(info.file_size,))


def bounded(file: IO[bytes], limit: int, what: str, packed: int | None = None) -> bytes:
    """Return all of a file; raise if it has more than `limit` bytes, whatever its header says.

    Of an entry that takes `packed` bytes in its archive less may be allowed: it is held in memory,
    and images and arrays hardly shrink.
    """
    if packed is not None:
        limit = min(limit, max(_ALWAYS_ALLOWED, _RATIO_IN_MEMORY * packed))
    buffer = io.BytesIO()
    while data := file.read(min(_CHUNK, limit + 1 - buffer.tell())):
        buffer.write(data)
        if buffer.tell() > limit:
            raise RefusedFile(
                f"{what} has more than {limit:,} bytes, the most that is read of one file here; "
                f"remove it if it does not belong to the data"
            )
    return buffer.getvalue()


def check_readable(info: zipfile.ZipInfo, where: object) -> None:
    """Refuse entries of a zip that need a password, or whose reader has no bounds."""
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
    return not any(part == "__MACOSX" or (part.startswith(".") and part != ".") for part in parts)


@contextlib.contextmanager
def damage(path: object, name: str | None = None) -> Iterator[None]:
    """Name the archive in whatever error its reader raises."""
    try:
        yield
    except RefusedFile:
        raise
    except _ERRORS as error:
        # A disk that fails says how (errno); a damaged bz2 is an OSError that does not, and an
        # impossible place in a file is EINVAL.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        where = f"{path}" if name is None else f"{path} (at {name!r})"
        why = str(error).partition(":\n")[0] or type(error).__name__
        raise DamagedArchive(
            f"{where} is damaged or not what its name says: {why}; download or copy it again"
        ) from error


_ERRORS = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, ValueError, NotImplementedError, OverflowError, RuntimeError),
)
