"""Downloads from a server that breaks lines, forgets ranges, changes its mind and lies."""

from __future__ import annotations

import errno
import hashlib
import http.server
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metamirror.console import Progress
from metamirror.data.readers import download
from metamirror.data.readers.download import fetch

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server:
    """Serves one file; a test replaces `answer` or the fields."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.ranges, self.length = True, True
        self.breaks: list[int] = []
        """After how many bytes to break the next lines."""
        self.before: Callable[[http.server.BaseHTTPRequestHandler], bool] | None = None
        """Answers in place of the rest if it returns True."""
        self.requests: list[dict[str, str]] = []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/data.zip"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        self.requests.append(dict(request.headers))
        request.close_connection = True
        if self.before is not None and self.before(request):
            return
        start, status = 0, 200
        if self.ranges and "Range" in request.headers:
            start, status = int(request.headers["Range"].removeprefix("bytes=").rstrip("-")), 206
        if start and start >= len(self.content):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.content)}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        body = self.content[start:]
        request.send_response(status)
        if self.length:
            request.send_header("Content-Length", str(len(body)))
        if status == 206:
            last = len(self.content) - 1
            request.send_header("Content-Range", f"bytes {start}-{last}/{len(self.content)}")
        request.end_headers()
        request.wfile.write(body[: self.breaks.pop(0)] if self.breaks else body)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "data.zip"


def get(server: Server, target: Path, **options) -> list[float]:
    """Fetches and returns the pauses."""
    pauses: list[float] = []
    fetch(server.url, target, **{"md5": MD5, "sleep": pauses.append, **options})
    return pauses


def part(target: Path) -> Path:
    return target.with_name("data.zip.part")


def only(target: Path) -> bool:
    return os.listdir(target.parent) == ["data.zip"]


def test_a_file_arrives_whole_and_alone(server: Server, target: Path):
    assert get(server, target) == []
    assert target.read_bytes() == CONTENT
    assert only(target)


def test_a_checksum_may_be_written_in_capitals(server: Server, target: Path):
    get(server, target, md5=MD5.upper())
    assert target.read_bytes() == CONTENT


def test_a_broken_connection_is_taken_up_where_it_broke(server: Server, target: Path):
    server.breaks = [300_000, 100_000]
    pauses = get(server, target)
    assert target.read_bytes() == CONTENT
    assert only(target)
    assert [r.get("Range") for r in server.requests] == [None, "bytes=300000-", "bytes=400000-"]
    assert pauses == sorted(pauses)
    assert len(set(pauses)) == 2, "the pauses grow"


def test_the_next_call_goes_on_where_the_last_gave_up(server: Server, target: Path):
    server.breaks = [300_000, 0, 0]
    with pytest.raises(ConnectionError, match=r"3 attempts.*300,000") as caught:
        get(server, target, attempts=3)
    assert server.url in str(caught.value)
    assert part(target).read_bytes() == CONTENT[:300_000]
    assert not target.exists()
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == "bytes=300000-"


def test_a_server_that_ignores_ranges_sends_all_again(server: Server, target: Path):
    server.ranges = False
    server.breaks = [300_000]
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert "Range" in server.requests[1]
    assert len(server.requests) == 2


@pytest.mark.parametrize("length", [1, 2], ids=["as long", "longer"])
def test_a_file_that_changed_is_fetched_from_its_beginning(server: Server, target: Path, length):
    """The checksum tells that the two halves do not belong together."""
    server.breaks = [300_000, 0]
    with pytest.raises(ConnectionError):
        get(server, target, attempts=2)
    server.content = CONTENT[::-1] * length
    get(server, target, md5=hashlib.md5(server.content).hexdigest())
    assert target.read_bytes() == server.content
    assert only(target)


@pytest.mark.parametrize("content", [b"something else", CONTENT[::-1], CONTENT * 2, CONTENT])
def test_a_part_of_unknown_origin_does_no_harm(server: Server, target: Path, content: bytes):
    target.parent.mkdir()
    part(target).write_bytes(content)
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert only(target)


def test_an_interrupted_download_of_unknown_length_is_completed(
    server: Server, target: Path, monkeypatch
):
    server.length = False
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", lambda *_: interrupt(part(target).stat().st_size > 3e5))
        with pytest.raises(KeyboardInterrupt):
            get(server, target)
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert "Range" in server.requests[-1]


def interrupt(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


def test_a_wrong_checksum_removes_the_part_and_shows_both(server: Server, target: Path):
    with pytest.raises(ValueError, match=r"0{32}.*removed") as caught:
        get(server, target, md5="0" * 32)
    assert MD5 in str(caught.value)
    assert os.listdir(target.parent) == []
    assert len(server.requests) == 1, "fetching it again would not help"


def test_an_old_file_stays_until_the_new_one_is_verified(server: Server, target: Path):
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(ValueError, match="md5"):
        get(server, target, md5="0" * 32)
    assert target.read_bytes() == b"old"
    get(server, target)
    assert target.read_bytes() == CONTENT


def raw(text: str, body: bytes = b"") -> Callable[[http.server.BaseHTTPRequestHandler], bool]:
    def answer(request: http.server.BaseHTTPRequestHandler) -> bool:
        request.wfile.write(text.replace("\n", "\r\n").encode() + body)
        return True

    return answer


def stall(server: Server, after: int) -> threading.Event:
    """The first answer falls silent after some bytes, until the event."""
    wait = threading.Event()

    def answer(request: http.server.BaseHTTPRequestHandler) -> bool:
        if len(server.requests) > 1:
            return False
        head = f"HTTP/1.1 200 OK\nContent-Length: {len(CONTENT)}\n\n"
        raw(head, CONTENT[:after])(request)
        return wait.wait(30) or True

    server.before = answer
    return wait


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 451, 501])
def test_an_address_that_is_gone_is_not_tried_again(server: Server, target: Path, code: int):
    server.before = raw(f"HTTP/1.1 {code} Gone Fishing\nContent-Length: 0\n\n")
    with pytest.raises(ValueError, match=rf"{code} Gone Fishing.*by hand") as caught:
        get(server, target)
    assert server.url in str(caught.value)
    assert len(server.requests) == 1
    assert os.listdir(target.parent) == []


@pytest.mark.parametrize("code", [202, 204, 408, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(server: Server, target: Path, code: int):
    busy = raw(f"HTTP/1.1 {code} Busy\nContent-Length: 0\n\n")
    server.before = lambda request: len(server.requests) < 3 and busy(request)
    assert len(get(server, target)) == 2
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "answer",
    [
        raw(""),
        raw("nonsense\n\n"),
        raw("HTTP/1.1 200 OK\nContent-Length: 99999999\n\n", CONTENT),
        raw("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\nffff\n", CONTENT[:500]),
        raw("HTTP/1.1 206 Partial\nContent-Range: bytes 7-9/10\nContent-Length: 3\n\nabc"),
        raw("HTTP/1.1 206 Partial\nContent-Length: 3\n\nabc"),
        raw("HTTP/1.1 416 Range\nContent-Length: 0\n\n"),
        raw("HTTP/1.1 416 Range\nContent-Range: bytes */x\nContent-Length: 0\n\n"),
    ],
)
def test_nonsense_is_tried_again_and_then_named(server: Server, target: Path, answer):
    server.before = answer
    with pytest.raises(ConnectionError, match="3 attempts") as caught:
        get(server, target, attempts=3)
    assert server.url in str(caught.value)
    assert not target.exists()


def test_more_bytes_than_a_range_announced_are_not_kept(server: Server, target: Path):
    server.breaks = [300_000]
    rest = raw(
        f"HTTP/1.1 206 Partial\nContent-Range: bytes 300000-300001/{len(CONTENT)}\n\n", CONTENT
    )
    server.before = lambda request: len(server.requests) == 2 and rest(request)
    get(server, target)
    assert target.read_bytes() == CONTENT


def test_a_shorter_length_than_the_file_is_caught_by_the_checksum(server: Server, target: Path):
    server.before = raw("HTTP/1.1 200 OK\nContent-Length: 100\n\n", CONTENT)
    with pytest.raises(ValueError, match=MD5):
        get(server, target)
    assert os.listdir(target.parent) == []


def test_an_unknown_length_is_no_hindrance(server: Server, target: Path):
    server.length = False
    get(server, target)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("length", [True, False])
def test_progress_is_told_in_megabytes(server: Server, target: Path, length: bool, monkeypatch):
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(Progress, "update", lambda self, done, _: seen.append((done, self.total)))
    server.content, server.length = bytes(3 << 20), length
    get(server, target, md5=hashlib.md5(server.content).hexdigest())
    assert seen == sorted(seen)
    assert seen[-1] == (3, 3)
    assert seen[0][1] == (3 if length else 1)


def test_redirects_are_followed_with_the_range(server: Server, target: Path):
    def redirect(request: http.server.BaseHTTPRequestHandler) -> bool:
        if request.path == "/elsewhere":
            return False
        return raw("HTTP/1.1 302 Found\nLocation: /elsewhere\nContent-Length: 0\n\n")(request)

    server.before, server.breaks = redirect, [300_000]
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == "bytes=300000-"


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_to_other_schemes_are_refused(server: Server, target: Path, place, code):
    server.before = raw(f"HTTP/1.1 {code} Moved\nLocation: {place}\nContent-Length: 0\n\n")
    with pytest.raises(ValueError, match=str(code)) as caught:
        get(server, target)
    assert place in str(caught.value)
    assert len(server.requests) == 1
    assert os.listdir(target.parent) == []


def test_a_redirect_from_https_to_http_is_refused():
    request = download.urllib.request.Request("https://example.org/a")
    with pytest.raises(download.urllib.error.HTTPError, match="http://example"):
        download._Redirects().redirect_request(
            request, None, 302, "Found", {}, "http://example.org/a"
        )


def test_a_circle_of_redirects_ends(server: Server, target: Path):
    server.before = raw("HTTP/1.1 302 Found\nLocation: /again\nContent-Length: 0\n\n")
    with pytest.raises(ValueError, match="302"):
        get(server, target)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://host/a",
        "data:,abc",
        "/etc/passwd",
        "",
    ],
)
def test_what_is_no_web_address_is_refused(tmp_path: Path, url: str):
    with pytest.raises(ValueError, match="no web address") as caught:
        fetch(url, tmp_path / "a", md5=MD5)
    assert repr(url) in str(caught.value)


def test_no_network_is_named(tmp_path: Path):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{busy.getsockname()[1]}/a.zip"
        pauses: list[float] = []
        with pytest.raises(ConnectionError, match="Check the network") as caught:
            fetch(url, tmp_path / "a.zip", md5=MD5, sleep=pauses.append)
    assert url in str(caught.value)
    assert len(pauses) == 4


def test_a_silent_server_is_given_up(server: Server, target: Path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    wait = threading.Event()
    server.before = lambda _: wait.wait(5)
    with pytest.raises(ConnectionError, match="timed out"):
        get(server, target, attempts=2)
    wait.set()


def test_a_server_that_falls_silent_is_resumed(server: Server, target: Path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    wait = stall(server, 5000)
    get(server, target)
    wait.set()
    assert target.read_bytes() == CONTENT
    assert server.requests[1]["Range"] == "bytes=5000-"


def test_too_small_a_disk_is_noticed_before_it_is_full(server: Server, target: Path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 0, 10))
    with pytest.raises(OSError, match="Make room") as caught:
        get(server, target)
    assert server.url in str(caught.value)
    assert len(server.requests) == 1


def test_a_disk_that_fills_up_is_named_and_the_part_kept(server: Server, target: Path, monkeypatch):
    class Small(io.FileIO):
        def write(self, data):
            if self.tell() > 300_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(Path, "open", lambda self, mode, **_: Small(str(self), mode))
    with pytest.raises(OSError, match="Make room") as caught:
        get(server, target)
    assert caught.value.errno == errno.ENOSPC
    assert server.url in str(caught.value)
    kept = part(target).stat().st_size
    assert kept > 300_000
    monkeypatch.undo()
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == f"bytes={kept}-"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_killed_download_is_resumed(server: Server, target: Path):
    wait = stall(server, 1000)
    script = (
        "import sys; from pathlib import Path; from metamirror.data.readers.download import fetch\n"
        "fetch(sys.argv[1], Path(sys.argv[2]), md5=sys.argv[3])"
    )
    with subprocess.Popen([sys.executable, "-c", script, server.url, str(target), MD5]) as child:
        try:
            deadline = time.monotonic() + 60
            while not part(target).exists() or part(target).stat().st_size < 1000:
                assert time.monotonic() < deadline, "what has arrived is not on disk"
                assert child.poll() is None
                time.sleep(0.02)
        finally:
            child.kill()
    wait.set()
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == "bytes=1000-"
