"""One run on two nodes, each in a network namespace of its own, joined by a virtual link."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs import results
from tests.training.test_ranks import ENVIRONMENT, RUN, done, torchrun

# Torch is imported ten times: half a minute on a free machine, minutes on a busy one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ADDRESSES = ("10.77.0.1", "10.77.0.2")
LONG = (*RUN, "--method", "mtnet", "--iterations", "60")


class Node:
    """A node of the rehearsal; the first one is where they meet."""

    def __init__(self, number: int, folder: Path):
        self.number, self.folder = number, folder
        self.name = f"metamirror-{os.getpid()}-{number}"
        self.log = folder / f"node-{number}.log"

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", "-n", self.name, *words], check=True)

    def start(self) -> subprocess.Popen[bytes]:
        own = [
            *("ip", "netns", "exec", self.name, sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3"),
            *("--monitor-interval", "0.2", "--rdzv-backend", "c10d", "--rdzv-id", "rehearsal"),
            *("--rdzv-endpoint", f"{ADDRESSES[0]}:29500", "--local-addr", ADDRESSES[self.number]),
            # The machine's name is that of neither address: say which node is meant.
            *("--rdzv-conf", f"is_host={1 - self.number},keep_alive_interval=1"),
            *("-m", "metamirror", *LONG, "--resume", "--out", str(self.folder / "run")),
        ]
        environment = ENVIRONMENT | {
            "GLOO_SOCKET_IFNAME": "wire",
            # Otherwise torchrun does not tell a node that comes back where the others meet.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        with self.log.open("ab") as log:
            return subprocess.Popen(own, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """Kill everything that runs on the node."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    first, second = nodes = (Node(0, tmp_path), Node(1, tmp_path))
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed: apt-get install iproute2")
    try:
        for node in nodes:
            words = ["ip", "netns", "add", node.name]
            made = subprocess.run(words, capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"no network namespaces without root: {made.stderr.strip()}")
        veth = ("type", "veth", "peer", "name", "wire", "netns", second.name)
        first.ip("link", "add", "wire", *veth)
        for node, address in zip(nodes, ADDRESSES, strict=True):
            node.ip("link", "set", "lo", "up")
            node.ip("addr", "add", f"{address}/24", "dev", "wire")
            node.ip("link", "set", "wire", "up")
        yield nodes
    finally:
        for node in nodes:
            node.kill()
            subprocess.run(["ip", "netns", "delete", node.name], capture_output=True)


def test_a_node_that_is_cut_off_and_comes_back_costs_nothing(nodes: tuple[Node, Node]):
    first, second = nodes
    run, metrics = first.folder / "run", first.folder / "run" / "metrics.jsonl"
    processes = [node.start() for node in nodes]

    def lines() -> int:
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def wait_for_lines(count: int) -> None:
        deadline = time.monotonic() + 150
        while lines() < count:
            logs = [node.log.read_text()[-3000:] for node in nodes]
            assert processes[0].poll() is None, logs[0]
            assert time.monotonic() < deadline, logs
            time.sleep(0.01)

    wait_for_lines(6)
    second.ip("link", "set", "wire", "down")
    time.sleep(1.0)
    before = lines()
    time.sleep(1.0)
    assert lines() == before < 50, "no rank goes on alone"
    # A short cut is bridged by TCP.
    second.ip("link", "set", "wire", "up")
    wait_for_lines(before + 1)
    # A long one ends the node; it is started again when the link is back.
    second.ip("link", "set", "wire", "down")
    second.kill()
    processes[1].wait()
    second.ip("link", "set", "wire", "up")
    processes[1] = second.start()
    for node, process in zip(nodes, processes, strict=True):
        assert process.wait(150) == 0, node.log.read_text()[-3000:]
    undisturbed = first.folder / "undisturbed"
    ended = done(torchrun(*LONG, "--out", str(undisturbed)))
    assert ended.returncode == 0, ended.stderr
    assert results(run) == results(undisturbed)
    steps = [json.loads(line)["step"] for line in (run / "timing.jsonl").read_text().splitlines()]
    assert steps.count(1) == 1, "it should have gone on from a checkpoint, not begun again"
