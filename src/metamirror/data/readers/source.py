"""One view of a folder, a zip, a tar or a file: names and bytes, nothing unpacked to disk."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

from metamirror.data.readers.archives import LIMIT, MAX_ENTRIES, Archive, bounded, visible

_SUFFIXES = re.compile(r"\.(zip|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz))$", re.IGNORECASE)


class Source(AbstractContextManager["Source"]):
    """The files of a folder, of an archive, or of a folder that holds archives.

    An archive that lies directly in a folder is looked into, one level deep; its entries are called
    `archive.zip/inner/name`. `files` are those on disk that hold everything, for checksums.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "labels.csv").write_text("filename,label")
    >>> with open_source(folder) as source:
    ...     source.names, source.read("labels.csv")
    (['labels.csv'], b'filename,label')
    """

    def __init__(self, path: Path, plain: dict[str, Path], archives: dict[str, Archive]):
        self.path, self._plain, self._archives = path, plain, archives
        self.files = sorted([*plain.values(), *(archive.path for archive in archives.values())])

    @cached_property
    def names(self) -> list[str]:
        """All names, sorted. A compressed tar is decompressed once for this, and so checked."""
        return sorted(self._prefixes)

    @cached_property
    def _prefixes(self) -> dict[str, str]:
        """For each name the part of it that leads to its archive, if it is in one."""
        found = dict.fromkeys(self._plain, "")
        for prefix, archive in self._archives.items():
            found |= dict.fromkeys((prefix + name for name in archive.index), prefix)
        for name in found:
            try:
                name.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{name!r} in {self.path} is not UTF-8: rename it") from None
        return found

    def read(self, name: str, limit: int = LIMIT) -> bytes:
        """Return the bytes of one file. In a compressed tar this may be slow: see `read_many`."""
        return next(self.read_many([name], limit))[1]

    def read_many(
        self, names: Iterable[str], limit: int = LIMIT, *, tolerant: bool = False
    ) -> Iterator[tuple[str, bytes]]:
        """Yield each of some files once, in the order in which the archives hold them.

        A compressed tar has to be decompressed from its beginning to reach an entry: 12,000 calls
        of `read` would take hours where this takes one pass. None of the files may have more than
        `limit` bytes. If `tolerant`, a damaged entry of a zip comes without its bytes.
        """
        wanted: dict[str, set[str]] = {"": set(), **{prefix: set() for prefix in self._archives}}
        for name in names:
            if name not in self._prefixes:
                some = f"{len(self.names):,} files, such as {', '.join(map(repr, self.names[:3]))}"
                raise ValueError(f"{self.path} holds no {name!r}; it holds {some}")
            prefix = self._prefixes[name]
            wanted[prefix].add(name[len(prefix) :])
        for prefix, inner in wanted.items():
            if prefix in self._archives:
                for name, data in self._archives[prefix].read(inner, limit, tolerant=tolerant):
                    yield prefix + name, data
                continue
            for name in sorted(inner):
                with self._plain[name].open("rb") as file:
                    yield name, bounded(file, limit, f"{name} in {self.path}")

    def __exit__(self, *error: object) -> None:
        for archive in self._archives.values():
            archive.opened.close()


def open_source(path: Path, *, look_into_archives: bool = True) -> Source:
    """Open a folder, a zip, a tar (plain, gz, bz2, xz) or a single file, by its suffix.

    Hidden files, `__MACOSX` and directories are left out. Symbolic links inside a folder are
    followed as long as they stay in it. Archives in a folder are looked into, unless told not to.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no {path}; give a folder, a zip, a tar or a single file")
    if not path.is_dir():
        _check_regular(path)
        if _SUFFIXES.search(path.name):
            return Source(path, {}, {"": Archive(path)})
        return Source(path, {path.name: path}, {})
    files = dict(sorted(_walk(path)))
    if not files:
        raise ValueError(f"{path} is empty; give a folder that holds files, or an archive")
    inside = [n for n in files if look_into_archives and "/" not in n and _SUFFIXES.search(n)]
    archives = {f"{name}/": Archive(files.pop(name)) for name in inside}
    return Source(path, files, archives)


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield names and paths of all visible files under a folder."""
    home = root.resolve()
    # Each folder comes with the real folders that lead to it: a link to one of them is a circle.
    waiting: list[tuple[str, tuple[Path, ...]]] = [("", (home,))]
    seen = 0
    while waiting:
        prefix, above = waiting.pop()
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                seen += 1
                if seen > MAX_ENTRIES:
                    raise ValueError(f"{root} has more than {MAX_ENTRIES:,} files; split it")
                name, path = prefix + entry.name, Path(entry.path)
                if not visible([entry.name]):
                    continue
                real = _inside(home, path) if entry.is_symlink() else above[-1] / entry.name
                if not entry.is_dir():
                    _check_regular(path)
                    yield name, path
                elif real in above:
                    raise ValueError(f"the link {entry.path} leads in a circle; remove it")
                else:
                    waiting.append((name + "/", (*above, real)))


def _inside(home: Path, link: Path) -> Path:
    try:
        real = link.resolve(strict=True)
    except PermissionError:
        raise
    except (OSError, RuntimeError) as error:  # absent, or a link to itself
        raise ValueError(f"the link {link} leads nowhere; remove it") from error
    if not real.is_relative_to(home):
        raise ValueError(
            f"the link {link} leads out of the folder, to {real}; "
            f"put the file itself there, or give the folder it is in"
        )
    return real


def _check_regular(path: Path) -> None:
    # A pipe would be waited for and a device read for ever.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is neither a file nor a folder; remove it")
