"""`data add NAME --download`, against a server on this machine that is not always kind."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from metamirror.cli import data
from metamirror.cli.main import main
from metamirror.data import BENCHMARKS
from metamirror.data.installing import install
from metamirror.data.store import Store
from tests.data import sources


class Handler(BaseHTTPRequestHandler):
    """Serves ranges, and hangs up after `cut` bytes as often as `cuts` says."""

    def do_GET(self):
        content, server = self.server.files[self.path[1:]], self.server
        self.server.asked.append((self.path[1:], self.headers.get("Range")))
        start = 0
        if header := self.headers.get("Range"):
            start = int(header.removeprefix("bytes=").rstrip("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        rest = content[start:]
        if server.cuts > 0:
            server.cuts -= 1
            self.wfile.write(rest[: len(rest) // 2])
            self.wfile.flush()
            self.connection.close()
            return
        self.wfile.write(rest)

    def log_message(self, *words):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    files = {
        f"images_{half}.zip": sources.write(
            tmp_path / f"{half}.zip", {k: v for k, v in sources.omniglot().items() if half in k}
        ).read_bytes()
        for half in ("background", "evaluation")
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.cuts, server.asked = files, 0, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/"
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    local = replace(BENCHMARKS["omniglot"], md5=md5, downloads=[address + name for name in files])
    monkeypatch.setitem(data.BENCHMARKS, "omniglot", local)
    monkeypatch.setattr(install, "fetch", partial(install.fetch, sleep=lambda seconds: None))
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "home"))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def home() -> Store:
    return Store(data.data_home())


def test_it_is_fetched_verified_installed_and_the_archives_removed(server, capsys):
    assert main(["data", "add", "omniglot", "--download"]) == 0
    assert home().check("omniglot")["shape"] == [40, 1, 28, 28]
    assert "not byte for byte" not in capsys.readouterr().err
    assert not list(home().root.glob("*.download"))
    assert [p.name for p in home().root.glob("*.json")] == ["omniglot.json"]


def test_a_broken_connection_is_resumed(server):
    server.cuts = 2
    assert main(["data", "add", "omniglot", "--download"]) == 0
    assert any(requested for _, requested in server.asked), "the rest was asked for, not the whole"
    home().check("omniglot")


def test_a_line_that_stays_broken_ends_with_2_and_the_next_call_goes_on(server, capsys):
    server.cuts = 1000
    assert main(["data", "add", "omniglot", "--download"]) == 2
    error = capsys.readouterr().err
    assert "images_background.zip" in error
    assert "Traceback" not in error
    server.cuts, server.asked = 0, []
    assert main(["data", "add", "omniglot", "--download"]) == 0
    assert server.asked[0][1] is not None, "what had arrived was not asked for again"
    home().check("omniglot")


def test_a_wrong_checksum_installs_nothing(server, capsys):
    server.files["images_evaluation.zip"] += b"x"
    assert main(["data", "add", "omniglot", "--download"]) == 2
    assert "images_evaluation.zip" in capsys.readouterr().err
    assert home().names() == []


def test_a_file_that_is_gone_is_named_with_the_way_out(server, monkeypatch, capsys):
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.send_error(404))
    assert main(["data", "add", "omniglot", "--download"]) == 2
    assert "images_background.zip cannot be fetched" in capsys.readouterr().err


def test_every_address_is_official_and_safe():
    for benchmark in BENCHMARKS.values():
        for address in benchmark.downloads:
            assert address.startswith("https://")
            assert Path(address).name in benchmark.md5
