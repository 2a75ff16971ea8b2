"""Downloads that survive broken connections: resumed, verified, and complete or absent.

Written here and not with pooch, which starts a file of a gigabyte anew whenever the connection
breaks and fetches it five times if its checksum is wrong.
"""

import errno
import http.client
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metamirror._version import __version__
from metamirror.console import Progress
from metamirror.core.files import digest_of, sync_folder

TIMEOUT = 30.0
"""Seconds without data after which a connection counts as broken."""

_CHUNK = 2**18
# The server is busy or restarting, or has no bytes where the part ends.
_PASSING = (408, 416, 425, 429, 500, 502, 503, 504)


class _Broken(Exception):  # noqa: N818
    """A failure that may pass."""


def fetch(
    url: str,
    target: Path,
    *,
    md5: str,
    attempts: int = 5,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Download a file, or what is missing of it, and put it in place once it is verified.

    Until then it is called `target.part`. It survives a kill, and the next call goes on from there:
    if the two halves do not belong together, the checksum shows it, and the file is fetched anew. A
    file that is gone or another one is a ValueError; a failing network or disk is an OSError.
    """
    if not re.match("https?://", url):
        raise ValueError(f"{url!r} is no web address: it must begin with https:// or http://")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with Progress(f"fetch {target.name} (MB)", 1) as progress:
        for attempt in range(1, attempts + 1):
            try:
                _receive(url, part, md5, progress)
                break
            except _Broken as error:
                if attempt == attempts:
                    raise ConnectionError(
                        f"could not fetch {url} in {attempts} attempts: {error}. Check the network "
                        f"and call again: it goes on after the {_size(part):,} bytes in {part}"
                    ) from error
                sleep(min(2.0 ** (attempt - 1), 30.0))
    os.replace(part, target)
    sync_folder(target.parent)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _receive(url: str, part: Path, md5: str, progress: Progress) -> None:
    """Complete a part and verify it."""
    start = _size(part)
    with _open(url, start) as response:
        resumed = response.status == 206
        if resumed and not (response.headers["Content-Range"] or "").startswith(f"bytes {start}-"):
            part.unlink(missing_ok=True)
            raise _Broken("the server sent another part than was asked for")
        if response.status not in (200, 206):
            raise _Broken(f"the server answers {response.status} {response.reason}")
        size = start if resumed else 0
        length = response.headers["Content-Length"] or ""
        total = size + int(length) if re.fullmatch("[0-9]{1,18}", length) else None
        if total is not None and total - size > shutil.disk_usage(part.parent).free:
            missing = f"{total - size:,} bytes of {url} are missing, more than is free"
            raise OSError(errno.ENOSPC, f"{missing}. Make room and call again", str(part))
        with part.open("ab" if resumed else "wb") as file:
            while data := _next(response):
                try:
                    file.write(data)
                    file.flush()  # what has arrived is on disk if the process is killed
                except OSError as error:
                    raise OSError(
                        error.errno,
                        f"cannot store {url}: {error.strerror}. Make room and call again: it goes "
                        f"on after the {_size(part):,} bytes so far",
                        str(part),
                    ) from error
                size += len(data)
                progress.resize(max(1, (total or size) >> 20))
                progress.update(size >> 20, "")
            os.fsync(file.fileno())
    if total is not None and size < total:
        raise _Broken(f"the connection broke after {size:,} of {total:,} bytes")
    if (found := digest_of(part, "md5")) == md5.lower():
        return
    part.unlink()
    if resumed:
        raise _Broken("the file has changed on the server")
    raise ValueError(
        f"what came from {url} is not the file that was expected: its md5 is {found} and should be "
        f"{md5} ({size:,} bytes). It was removed. Try again; if it happens again, the file at that "
        f"address is another one now"
    )


def _next(response: Any) -> Any:
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"the connection broke: {str(error) or type(error).__name__}") from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but neither to other schemes nor from https back to http."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme != "https" and (req.type, scheme) != ("http", "http"):
            raise urllib.error.HTTPError(newurl, code, f"leads to {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str, start: int) -> Any:
    """Return the answer to a request for the bytes from `start` on."""
    # Compressed on the way, it would have neither the size nor the ranges of the file.
    headers = {"Accept-Encoding": "identity", "User-Agent": f"metamirror/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        opener = urllib.request.build_opener(_Redirects)
        return opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return _open(url, 0)
        if error.code in _PASSING:
            raise _Broken(f"the server answers {error.code} {error.reason}") from error
        raise ValueError(
            f"{url} cannot be fetched: the server answers {error.code} {error.reason}. "
            f"If the address has changed, download the file by hand and give it with --from"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise ValueError(
                f"{url} cannot be fetched: the server's certificate is not valid "
                f"({reason.verify_message}). Check the clock and the proxy of this machine"
            ) from error
        raise _Broken(f"no connection: {str(reason) or type(reason).__name__}") from error
