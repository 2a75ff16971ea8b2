"""Downloads that survive broken lines: resumed, verified, and complete or absent."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any

from metamirror._version import __version__
from metamirror.storage.atomic import digest_of, sync_folder, write_atomically

Progress = Callable[[int, int | None], None]

TIMEOUT = 30.0
"""Seconds without a sign of life after which a line counts as broken."""

_CHUNK = 2**18
_SCHEMES = ("http", "https")

# The server is busy or restarting; anything else it will say again.
_PASSING = (408, 425, 429, 500, 502, 503, 504)


def fetch(
    url: str,
    target: Path,
    *,
    md5: str | None,
    sha256: str | None = None,
    progress: Progress | None = None,
    attempts: int = 5,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Downloads a file, or what is missing of it, and puts it in place once it is verified.

    Until then it is called `target.part`, with a note beside it, `target.part.json`, of which
    version of the file it is part of. Both survive a kill, and the next call goes on from there.

    Args:
        url: an http or https address.
        target: the file to make; its folder is made too.
        md5: the checksum in hexadecimal digits, or None for an unknown one.
        sha256: likewise.
        progress: called with the bytes so far and all bytes, if the server tells.
        attempts: how often to try in all.
        sleep: waits between two attempts.

    Raises:
        ValueError: the address is wrong or gone, or the checksum is.
        OSError: the network or the disk fails.
    """
    _check_address(url)
    if attempts < 1:
        raise ValueError(f"attempts is {attempts}; it must be at least 1")
    if target.is_dir():
        raise ValueError(f"{target} is a folder; name the file to make")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(target, url, verified=bool(md5 or sha256))
    for attempt in range(1, attempts + 1):
        try:
            _download(url, part, progress)
            break
        except _BrokenError as error:
            if attempt == attempts:
                raise ConnectionError(
                    f"could not fetch {url} in {attempts} attempts: {error}. Check the network "
                    f"and call again: it goes on after the {part.size():,} bytes in {part.path}"
                ) from error
            sleep(min(2.0 ** (attempt - 1), 30.0))
    for kind, expected in (("md5", md5), ("sha256", sha256)):
        if expected is not None:
            _verify(url, part, kind, expected.lower())
    part.finish(target)


@dataclass
class _Note:
    """Which version of which file a part belongs to."""

    url: str
    etag: str | None = None
    modified: str | None = None
    total: int | None = None

    @property
    def version(self) -> str | None:
        """What If-Range compares. A weak tag does not promise the same bytes."""
        strong = self.etag if self.etag and not self.etag.startswith("W/") else None
        return strong or self.modified


class _Part:
    """The file until it is complete."""

    def __init__(self, target: Path, url: str, verified: bool):
        self.path = target.with_name(target.name + ".part")
        self._note_path = target.with_name(target.name + ".part.json")
        self._fresh = _Note(url)
        self.note = self._read_note()
        # Without a version only a checksum can tell two halves that do not belong together.
        if self.note.url != url or not (self.note.version or verified):
            self.discard()

    def _read_note(self) -> _Note:
        try:
            note = _Note(**json.loads(self._note_path.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return _Note("")
        words = (note.etag, note.modified)
        return note if all(isinstance(word, str | None) for word in words) else _Note("")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note_path.unlink(missing_ok=True)
        self.note = self._fresh

    def begin(self, note: _Note) -> None:
        """Empties the part before it notes the new version: never new notes on old bytes."""
        self.path.write_bytes(b"")
        self.note = note
        write_atomically(self._note_path, json.dumps(asdict(note)).encode())

    def finish(self, target: Path) -> None:
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(self.path, target)
        self._note_path.unlink(missing_ok=True)
        sync_folder(target.parent)


class _BrokenError(Exception):
    """A failure that may pass."""


def _download(url: str, part: _Part, progress: Progress | None) -> None:
    """One attempt to complete a part."""
    start = part.size()
    if start and start == part.note.total:
        return
    headers = {
        # Compressed on the way, it would have neither the size nor the ranges of the file.
        "Accept-Encoding": "identity",
        "User-Agent": f"metamirror/{__version__}",
    }
    if start:
        headers["Range"] = f"bytes={start}-"
        if part.note.version:
            headers["If-Range"] = part.note.version
    try:
        response = _open(url, headers)
    except _NothingLeftError as error:
        if error.total == start:
            return
        part.discard()
        raise _BrokenError("the file has changed on the server") from error
    with response:
        note = _note(url, response)
        if response.status == 206:
            if _first_byte(response) != start or (start and _differ(part.note, note)):
                part.discard()
                raise _BrokenError("the server sent another part than was asked for")
        elif response.status != 200:
            raise _BrokenError(f"the server answers {response.status} {response.reason}")
        if response.status == 200 or not start:
            part.begin(note)
        _receive(url, response, part, note.total, progress)


def _receive(
    url: str, response: Any, part: _Part, total: int | None, progress: Progress | None
) -> None:
    size = part.size()
    if total is not None:
        free = shutil.disk_usage(part.path.parent).free
        if total - size > free:
            raise _full(url, part, f"{total - size:,} bytes are missing and {free:,} free")
    # Unbuffered: what has arrived is on disk if the process is killed.
    with part.path.open("ab", buffering=0) as file:
        while data := _next(response):
            try:
                _write(file, data)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise _full(url, part, "the disk is full") from error
                raise
            size += len(data)
            if progress is not None:
                progress(size, total)
    if total is not None and size < total:
        raise _BrokenError(f"the line broke after {size:,} of {total:,} bytes")
    if total is not None and size > total:
        part.discard()
        raise _BrokenError(f"{size:,} bytes arrived where {total:,} were announced")


def _next(response: Any) -> bytes:
    try:
        data: bytes = response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(f"the line broke: {error or type(error).__name__}") from error
    return data


def _write(file: Any, data: bytes) -> None:
    """An unbuffered file may take less than it is given."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _note(url: str, response: Any) -> _Note:
    headers: Message = response.headers
    total = headers["Content-Length"] or ""
    if response.status == 206:
        total = (headers["Content-Range"] or "").rpartition("/")[2]
    return _Note(
        url,
        _word(headers["ETag"]),
        _word(headers["Last-Modified"]),
        int(total) if re.fullmatch("[0-9]{1,18}", total) else None,
    )


def _word(value: str | None) -> str | None:
    """A header that can be sent back."""
    return value if value and value.isascii() and value.isprintable() else None


def _first_byte(response: Any) -> int | None:
    found = re.match("bytes ([0-9]{1,18})-", response.headers["Content-Range"] or "")
    return int(found[1]) if found else None


def _differ(old: _Note, new: _Note) -> bool:
    """Whether two answers surely are of two versions: what one of them omits tells nothing."""
    pairs = ((old.etag, new.etag), (old.modified, new.modified), (old.total, new.total))
    return any(a is not None and b is not None and a != b for a, b in pairs)


def _verify(url: str, part: _Part, kind: str, expected: str) -> None:
    found = digest_of(part.path, kind)
    if found != expected:
        size = part.size()
        part.discard()
        raise ValueError(
            f"what came from {url} is not the file that was expected: its {kind} is "
            f"{found} and should be {expected} ({size:,} bytes). It was removed. "
            f"Try again; if it happens again, the file at that address is another one now"
        )


def _full(url: str, part: _Part, why: str) -> OSError:
    return OSError(
        errno.ENOSPC,
        f"no room for {url}: {why}. Make room and call again: it goes on after the "
        f"{part.size():,} bytes so far",
        str(part.path),
    )


# The network.


class _NothingLeftError(Exception):
    """The server has no bytes from the place where the part ends."""

    def __init__(self, total: int | None):
        super().__init__("no bytes are left")
        self.total = total


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but neither to other schemes nor from https back to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme not in _SCHEMES or (req.type == "https" and scheme != "https"):
            raise urllib.error.HTTPError(newurl, code, f"leads to {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """An opener that cannot open file: and ftp:, unlike the usual one."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


def _open(url: str, headers: dict[str, str]) -> Any:
    """The answer to a request: a response, `_BrokenError` if it may pass, or what is to be done."""
    try:
        return _opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _PASSING:
            raise _BrokenError(f"the server answers {error.code} {error.reason}") from error
        if error.code == 416:
            found = re.fullmatch(r"bytes \*/([0-9]{1,18})", error.headers["Content-Range"] or "")
            raise _NothingLeftError(int(found[1]) if found else None) from error
        raise ValueError(
            f"{url} cannot be fetched: the server answers {error.code} {error.reason}. "
            f"If the address has changed, download the file by hand and put it in place"
        ) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise ValueError(
                f"{url} cannot be fetched: the server's certificate is not valid "
                f"({error.reason.verify_message}). Check the clock and the proxy of this machine"
            ) from error
        raise _BrokenError(f"no connection: {error.reason}") from error
    except http.client.InvalidURL as error:
        raise ValueError(f"{url!r} is no web address: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(f"no connection: {error or type(error).__name__}") from error


def _check_address(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        sound = parts.scheme in _SCHEMES and parts.hostname and (parts.port or True)
    except ValueError:
        sound = False
    if not sound or not url.isascii() or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ValueError(
            f"{url!r} is no web address; it must begin with http:// or https:// and hold neither "
            f"blanks nor letters beyond ASCII"
        )
