"""Who is let in: the page itself, from this machine, in small pieces; and what everyone is told."""

from __future__ import annotations

import asyncio
import threading

import pytest
from drawings import request
from starlette.testclient import TestClient

from metamirror.playground import limits
from metamirror.playground.app import make_app
from metamirror.playground.choices import on_offer
from metamirror.playground.guard import HEADERS, Guard, Hosts
from metamirror.playground.refusal import Refusal
from metamirror.playground.shelf import Shelf
from metamirror.playground.workers import Workers

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
    assert Hosts(bound).allow(host) == allowed


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
    asyncio.run(Guard(app, Hosts("127.0.0.1"))(scope, receive, send))
    assert sent[0]["status"] == 408


# What is kept and what waits


class Small:
    def bytes_taken(self):
        return 10


def test_the_shelf_keeps_the_models_that_were_used_last():
    shelf = Shelf(most=3, most_bytes=1000)
    names = [shelf.put(Small()) for _ in range(3)]
    shelf.get(names[0])
    names.append(shelf.put(Small()))
    assert len(shelf) == 3
    with pytest.raises(Refusal, match="Adapt again"):
        shelf.get(names[1])
    assert shelf.get(names[0]) is not shelf.get(names[3])


def test_the_shelf_is_bounded_in_bytes_and_holds_one_in_any_case():
    shelf = Shelf(most=100, most_bytes=25)
    for _ in range(5):
        last = shelf.put(Small())
    assert len(shelf) == 2
    tiny = Shelf(most_bytes=1)
    last = tiny.put(Small())
    assert tiny.get(last)


def test_names_of_models_cannot_be_guessed():
    shelf = Shelf()
    names = {shelf.put(Small()) for _ in range(50)}
    assert len(names) == 50
    assert min(map(len, names)) >= 20


def test_the_queue_has_an_end_and_empties():
    workers = Workers(threads=1, most_waiting=1)
    gate = threading.Event()
    waiting = [workers.submit(gate.wait) for _ in range(2)]
    with pytest.raises(Refusal) as refused:
        workers.submit(print)
    assert refused.value.status == 503
    gate.set()
    for one in waiting:
        one.result()
    assert workers.submit(int, "7").result() == 7
    workers.close()
