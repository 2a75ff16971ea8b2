"""Who is let in: the page itself, from this machine, in small pieces; and what everyone is told."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from metamirror.playground import limits
from metamirror.playground.app import Playground, Workers, make_app
from metamirror.playground.guard import HEADERS, Guard, is_own_name
from metamirror.playground.models import ModelStore, on_offer
from metamirror.playground.server import TimeoutProtocol
from tests.playground.drawings import request

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client():
    app = make_app(on_offer(None), "127.0.0.1")
    with TestClient(app, base_url="http://127.0.0.1:7860", raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(
    ("bound", "host", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1:7860", True),
        ("127.0.0.1", "localhost:7860", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("::1", "[::1]:7860", True),
        ("localhost", "localhost:9000", True),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "evil.example:7860", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "192.168.0.7:7860", False),
        ("127.0.0.1", "", False),
        ("0.0.0.0", "192.168.0.7:7860", True),
        ("0.0.0.0", "evil.example:7860", False),
        ("lab.example", "lab.example:7860", True),
        ("lab.example", "evil.example:7860", False),
    ],
)
def test_only_names_that_nobody_else_can_own_are_answered(bound, host, allowed):
    assert is_own_name(host, bound) == allowed


@pytest.mark.parametrize("path", ["/", "/api/starts", "/nowhere"])
def test_a_name_that_was_made_to_point_here_is_refused(client, path):
    answer = client.get(path, headers={"host": "evil.example:7860"})
    assert answer.status_code == 421
    assert "evil.example" in answer.json()["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:7860"}, 200),
        ({"origin": "http://127.0.0.1:7860", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
    ],
)
def test_other_pages_cannot_send_requests(client, headers, status):
    answer = client.post("/api/adapt", json=request(steps=1), headers=headers)
    assert answer.status_code == status
    assert (status == 200) == ("model" in answer.json())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/api", 404),
        ("GET", "/page/index.html", 404),
        ("GET", "/api/adapt", 405),
        ("POST", "/", 405),
        ("DELETE", "/api/starts", 405),
        ("GET", "/api/models/x/file", 404),
        ("GET", "/api/samples/99", 404),
        ("GET", "/api/samples/-1", 404),
        ("GET", f"/api/samples/{'9' * 5000}", 404),
    ],
)
def test_every_answer_tells_the_browser_to_let_nothing_out(client, method, path, status):
    answer = client.request(method, path, headers=JSON)
    assert answer.status_code == status
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    if status != 200:
        assert answer.json()["error"]


def test_what_we_did_not_think_of_is_an_answer_without_details(client, monkeypatch):
    def broken(*_):
        raise RuntimeError("a secret path")

    monkeypatch.setattr("metamirror.playground.app.adapt", broken)
    answer = client.post("/api/adapt", json=request())
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    monkeypatch.undo()
    assert client.post("/api/adapt", json=request(steps=1)).status_code == 200


def test_a_body_that_never_comes_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05)
    sent = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        raise AssertionError("not reached")

    headers = [(b"host", b"localhost"), (b"content-length", b"100")]
    scope = {"type": "http", "method": "POST", "path": "/api/adapt", "headers": headers}
    asyncio.run(Guard(app, "127.0.0.1")(scope, receive, send))
    assert sent[0]["status"] == 408


# Who comes and says nothing, and who leaves


async def slow(scope, receive, send):
    await asyncio.sleep(0.6)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def talk(*turns):
    """What a server answers to pieces of a request, with a pause behind each, until it closes."""

    async def one():
        config = uvicorn.Config(slow, http=TimeoutProtocol, ws="none", lifespan="off")
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: TimeoutProtocol(config, state, {}), "127.0.0.1", 0
        )
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            answer = asyncio.create_task(reader.read())
            for piece in turns:
                if not answer.done():
                    writer.write(piece)
                    await asyncio.sleep(0.1)
            found = await asyncio.wait_for(answer, 20)
            writer.close()
            return found

    return asyncio.run(one())


HEAD = b"GET / HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    "pieces", [[], [b"GET"], [b"x"] * 30, [HEAD] + [b"a: b\r\n"] * 30], ids=len
)
def test_a_connection_that_does_not_come_to_the_point_is_ended(pieces, monkeypatch):
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.4)
    begun = time.monotonic()
    assert talk(*pieces) == b""
    assert time.monotonic() - begun < 2


def test_one_that_does_gets_its_answer_however_long_it_takes(monkeypatch):
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.4)
    assert talk(HEAD[:20], HEAD[20:] + b"connection: close\r\n\r\n").endswith(b"done\r\n0\r\n\r\n")


def test_the_next_request_has_to_come_to_the_point_as_well(monkeypatch):
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.4)
    assert talk(HEAD + b"\r\n", *[b""] * 7, *[b"x"] * 30).count(b"200 OK") == 1


def left_in_the_middle(app):
    """A request to adapt whose sender is gone as soon as it is read."""
    body = json.dumps(request()).encode()
    coming = [{"type": "http.disconnect"}, {"type": "http.request", "body": body}]
    headers = {**JSON, "host": "localhost", "content-length": str(len(body))}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/adapt",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive():
        return coming.pop()

    async def send(message):
        pass

    asyncio.run(app(scope, receive, send))


def test_what_nobody_waits_for_is_not_begun(monkeypatch):
    adapted = []
    monkeypatch.setattr("metamirror.playground.app.adapt", lambda *_: adapted.append(1))
    workers = Workers(threads=1, most_waiting=1)
    gate = threading.Event()
    workers.submit(gate.wait)
    left_in_the_middle(make_app(on_offer(None), "127.0.0.1", workers=workers))
    # There is room in the queue again.
    last = workers.submit(int, "7")
    gate.set()
    assert last.result() == 7
    assert not adapted
    workers.close()


def test_gradient_descent_is_left_out_for_someone_who_left():
    choices = on_offer(None)
    left = threading.Event()
    left.set()
    workers = Workers(threads=1)
    playground = Playground(choices, workers, ModelStore())
    asked = request(start="glyphs-metasgd", steps=1)
    assert playground._adapt(json.dumps(asked).encode(), left)[1] is None
    workers.close()


# What is kept and what waits


class Small:
    def nbytes(self):
        return 10


def test_the_store_keeps_the_models_that_were_used_last():
    store = ModelStore(most=3, most_bytes=1000)
    names = [store.put(Small()) for _ in range(3)]
    store.get(names[0])
    names.append(store.put(Small()))
    assert len(store) == 3
    with pytest.raises(HTTPException, match="Adapt again"):
        store.get(names[1])
    assert store.get(names[0]) is not store.get(names[3])


def test_the_store_is_bounded_in_bytes_and_holds_one_in_any_case():
    store = ModelStore(most=100, most_bytes=25)
    for _ in range(5):
        last = store.put(Small())
    assert len(store) == 2
    tiny = ModelStore(most_bytes=1)
    last = tiny.put(Small())
    assert tiny.get(last)


def test_names_of_models_cannot_be_guessed():
    store = ModelStore()
    names = {store.put(Small()) for _ in range(50)}
    assert len(names) == 50
    assert min(map(len, names)) >= 20


def test_the_queue_has_an_end_and_empties():
    workers = Workers(threads=1, most_waiting=1)
    gate = threading.Event()
    waiting = [workers.submit(gate.wait) for _ in range(2)]
    with pytest.raises(HTTPException) as refused:
        workers.submit(print)
    assert refused.value.status_code == 503
    gate.set()
    for one in waiting:
        one.result()
    assert workers.submit(int, "7").result() == 7
    workers.close()
