"""The server as a process: many clients at once, large bodies, memory, and how it ends."""

from __future__ import annotations

import functools
import json
import socket
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from metamirror.cli.main import main
from metamirror.playground import limits
from metamirror.playground.models import adapt, on_offer
from metamirror.playground.requests import read_adapt, read_predict
from serving import served
from tests.playground.drawings import SHAPES, draw, request

CLIENTS = 20
needs_proc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads what a process takes from /proc"
)


@pytest.fixture(scope="module")
def server():
    with served() as server:
        yield server


@functools.cache
def starts():
    return on_offer(None)


def asked_by(client: int) -> dict:
    """Five kinds of clients: other starts, signs, orders, shots and steps."""
    kind = client % 5
    names = list(SHAPES)[kind:] + list(SHAPES)[:kind]
    return request(
        start=list(starts())[kind % len(starts())],
        steps=3 + kind,
        shapes=names[: 3 + kind % 3],
        shots=1 + kind % 2,
        seed=kind,
    )


@functools.cache
def right_answer(kind: int) -> tuple[list[float], list[list[float]]]:
    """Losses, and the probabilities of one drawing of each shape, without a server."""
    wanted = read_adapt(json.dumps(asked_by(kind)).encode())
    model = adapt(starts()[wanted.start], wanted)
    images = [read_predict(json.dumps({"image": draw(s, 7)}).encode()) for s in SHAPES]
    return model.described()["losses"], [model.predict(image)[0] for image in images]


def one_client(server, client: int) -> tuple[list[float], list[list[float]]]:
    status, content = server.ask("/api/adapt", asked_by(client))
    assert status == 200, content
    found = json.loads(content)
    chances = []
    for shape in SHAPES:
        where = f"/api/models/{found['model']}/predict"
        status, content = server.ask(where, {"image": draw(shape, 7)})
        assert status == 200, content
        chances.append(json.loads(content)["probabilities"])
    return found["chosen"]["losses"], chances


@pytest.mark.slow
def test_twenty_clients_at_once_all_get_the_right_answers(server):
    expected = [right_answer(kind) for kind in range(5)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(functools.partial(one_client, server), range(CLIENTS)))
    assert len(found) == CLIENTS
    for client, (losses, chances) in enumerate(found):
        right_losses, right_chances = expected[client % 5]
        assert losses == pytest.approx(right_losses, rel=1e-3, abs=1e-4)
        for one, right in zip(chances, right_chances, strict=True):
            assert one == pytest.approx(right, abs=1e-3)


@pytest.mark.slow
@needs_proc
def test_an_answer_takes_less_than_half_a_second_of_a_processor(server):
    for start_name in starts():
        server.ask("/api/adapt", request(start=start_name))
        before = server.processor_seconds()
        waited = []
        for seed in range(5):
            begun = time.perf_counter()
            status, _ = server.ask("/api/adapt", request(start=start_name, seed=seed))
            waited.append(time.perf_counter() - begun)
            assert status == 200
        taken = (server.processor_seconds() - before) / 5
        print(f"{start_name}: {taken:.2f} s, waited {statistics.median(waited):.2f} s")
        assert taken < 0.5


@pytest.mark.slow
@needs_proc
def test_memory_does_not_grow_with_the_models_that_were_adapted(server):
    def many(seed: int) -> None:
        asked = request(steps=1, shapes=("ring", "bar"), seed=seed)
        assert server.ask("/api/adapt", asked)[0] == 200

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(many, range(limits.MOST_MODELS + 10)))
        before = server.megabytes()
        list(pool.map(many, range(limits.MOST_MODELS // 2)))
    assert server.megabytes() - before < 30


def pieces(count: int):
    for _ in range(count):
        yield b"[" * 1_000_000


@needs_proc
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("path", ["/api/adapt", "/api/models/x/predict", "/nowhere", "/"])
def test_fifty_megabytes_are_refused_with_a_reason_and_not_kept(server, told, path):
    before = server.megabytes()
    connection = server.connect()
    headers = {"content-type": "application/json"}
    if told:
        headers["content-length"] = str(50_000_000)
    connection.request("POST", path, pieces(50), headers, encode_chunked=not told)
    answer = connection.getresponse()
    assert answer.status == 413
    assert f"{limits.BODY_BYTES:,} bytes" in json.loads(answer.read())["error"]
    connection.close()
    assert server.megabytes() - before < 20
    assert server.ask("/api/starts")[0] == 200


def test_a_claim_of_a_terabyte_is_not_waited_for(server):
    connection = server.connect()
    connection.putrequest("POST", "/api/adapt")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(10**12))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_what_is_no_http_is_answered_and_forgotten(server):
    address = server.connect()
    for words in (b"\x16\x03\x01\x02\x00\x01\x00" * 10, b"GET\r\n\r\n", b"\0" * 1000):
        with socket.create_connection((address.host, address.port), timeout=30) as raw:
            raw.sendall(words)
            raw.shutdown(socket.SHUT_WR)
            raw.recv(1000)
    assert answer_to_endless_header(address) in ("", "400", "431")
    assert server.ask("/api/starts")[0] == 200


def answer_to_endless_header(address) -> str:
    """The status, or nothing where the connection was ended."""
    with socket.create_connection((address.host, address.port), timeout=30) as raw:
        try:
            raw.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 1_000_000)
            return raw.recv(100)[9:12].decode()
        except ConnectionError:
            return ""


def test_a_client_that_leaves_in_the_middle_harms_nobody(server):
    address = server.connect()
    for _ in range(5):
        with socket.create_connection((address.host, address.port)) as raw:
            raw.sendall(
                b"POST /api/adapt HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: 1000\r\n\r\n{"
            )
    assert server.ask("/api/adapt", request(steps=1))[0] == 200


# The command


def test_a_port_that_is_taken_is_the_users_to_change(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["playground", "--port", str(port)]) == 2
    assert f"port {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--port", "70000"], "65535"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--host", ""], "host is empty"),  # would mean every address of the machine
        (["no-such-run"], "no-such-run"),
    ],
)
def test_a_users_mistake_ends_with_2_and_a_reason(capsys, words, reason):
    assert main(["playground", *words]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_what_is_not_installed_is_said_with_the_way_to_install_it(capsys, monkeypatch, package):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    assert main(["playground"]) == 2
    assert "pip install 'metamirror[playground]'" in capsys.readouterr().err
