"""The playground's requests: as the application gets them, and as bytes on its socket."""

from __future__ import annotations

import asyncio
import json
import socket
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hypothesis import strategies as st

from metamirror.playground.app import Workers, make_app
from metamirror.playground.models import PLAIN, on_offer
from serving import Served
from tests.faults.damage import damaged_bytes, damaged_document, odd_values
from tests.faults.fuzzing import Target
from tests.faults.of_runs import as_json
from tests.playground.drawings import request

SOUND = {**request(steps=1), "start": PLAIN}
IMAGE = {"image": SOUND["classes"][0]["examples"][0]}
PATHS = st.one_of(
    st.sampled_from(
        [
            *("/", "/index.html", "/main.js", "/api/starts", "/api/samples/0", "/api/adapt"),
            *(
                "/api/samples/-1",
                "/api/samples/" + "9" * 5000,
                "/api/samples/1e9",
                "/api/samples/٣",
            ),
            *("/api/models/x/predict", "/api/models/x/file", "/../../etc/passwd", "//etc/passwd"),
            *("/page/../app.py", "/%2e%2e/app.py", "/api", "/api/", "/" + "a" * 3000, "/\0"),
        ]
    ),
    st.text(max_size=12).map(lambda word: f"/{word}"),
)
HEADERS = st.sampled_from(
    [
        *(("host", "127.0.0.1:7860"), ("host", "evil.example"), ("host", ""), ("host", "[::1")),
        *(("content-type", "application/json"), ("content-type", "text/plain"), ("origin", "null")),
        *(("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")),
        *(("content-length", "-1"), ("content-length", "9" * 30), ("content-length", "x")),
        *(("transfer-encoding", "chunked"), ("cookie", "a" * 3000), ("host", "\xff")),
    ]
)
USUAL = [("host", "127.0.0.1:7860"), ("content-type", "application/json")]
BODIES = st.one_of(
    damaged_document(SOUND).map(as_json),
    damaged_document(IMAGE).map(as_json),
    damaged_bytes(as_json(SOUND), as_json(IMAGE)),
    odd_values.map(as_json),
    st.integers(1, 3000).map(lambda n: b"[" * n),
)


def headers(choice: int) -> st.SearchStrategy[list[tuple[str, str]]]:
    """Mostly those of the page itself, with which a request gets further."""
    return st.lists(HEADERS, max_size=4) if choice == 0 else st.just(USUAL)


ASKED = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["POST"] * 9 + ["GET", "HEAD", "PUT", "OPTIONS", "X"]),
        "path": st.just("/api/adapt") | st.just("/api/models/MODEL/predict") | PATHS,
        "headers": st.integers(0, 9).flatmap(headers),
        "body": BODIES,
    }
)


@cache
def server() -> tuple[asyncio.AbstractEventLoop, Any, str]:
    """The application without a socket, and the name of a model that it has adapted."""
    loop = asyncio.new_event_loop()
    app = make_app({PLAIN: on_offer(None)[PLAIN]}, "127.0.0.1", workers=Workers(1))
    said = {"method": "POST", "path": "/api/adapt", "headers": USUAL, "body": as_json(SOUND)}
    status, content = loop.run_until_complete(answer(app, said))
    assert status == 200, content
    return loop, app, json.loads(content)["model"]


async def answer(app: Any, asked: dict[str, Any]) -> tuple[int, bytes]:
    """Status and content, by the protocol that servers and applications share."""
    headers = [(name.encode(), value.encode("latin-1")) for name, value in asked["headers"]]
    if not any(name == "content-length" for name, _ in asked["headers"]):
        headers.append((b"content-length", str(len(asked["body"])).encode()))
    path = asked["path"]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": asked["method"],
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(errors="replace"),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 7860),
    }
    waiting = [{"type": "http.request", "body": asked["body"], "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not waiting:
            # One who asks stays for the answer: the work of those who left is dropped.
            await asyncio.Event().wait()
        return waiting.pop()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def ask(folder: Path, asked: dict[str, Any]) -> str:
    loop, app, model = server()
    asked = {**asked, "path": asked["path"].replace("MODEL", model)}
    status, content = loop.run_until_complete(answer(app, asked))
    assert status < 500, (status, content)
    if status >= 400 and asked["method"] != "HEAD":
        assert json.loads(content)["error"]
    return f"status {status}"


RAW = (
    b"POST /api/adapt HTTP/1.1\r\nHost: 127.0.0.1:7860\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\nConnection: close\r\n\r\n{}",
    b"GET /api/starts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"POST /api/adapt HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\n{}\r\n0\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
)


def raw_target(served: Served) -> Target:
    """Bytes on the socket of a server in a process of its own."""
    host, port = urlsplit(served.url).netloc.split(":")

    def send(folder: Path, content: bytes) -> str:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            try:
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                said = connection.recv(100)
            except ConnectionError:
                return "connection closed"
        status = int(said.split()[1]) if said.startswith(b"HTTP/") else 0
        assert status < 500, said
        return f"status {status}" if status else "connection closed"

    return Target(
        "playground, bytes on the socket",
        damaged_bytes(*RAW) | st.binary(max_size=60),
        send,
        named=(),
        allowed=("socket.connect", "socket.getaddrinfo"),
        weight=0.3,
    )


TARGETS = [Target("playground, requests", ASKED, ask, named=(), weight=1.5)]
