"""Comparisons on a real Ray cluster of three nodes: one is killed in the middle, one stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from metamirror.cli.main import main
from metamirror.experiments.comparison import commands
from metamirror.storage import checkpoint
from ray_nodes import HEAD, NODES, RayNodes
from tests.experiments.comparison.test_compare import (
    ENDLESS,
    GRID,
    alive,
    begun,
    table_of,
    wait_for,
    worker_at,
)

# Not for what it takes, but for machines that have other things to do.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TWELVE = (*GRID, "--methods", "maml,metasgd,gradnet,anil", "--seeds", "3", "--iterations", "20")
TWELVE = (*TWELVE, "--checkpoint-every", "5", "--log-every", "1", "--validate-every", "10")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    pytest.importorskip("ray", reason="pip install 'metamirror[ray]'")
    # The names of its sockets are too long below pytest's own folder.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, RayNodes(Path(folder, "r")) as nodes:
        yield nodes


@pytest.mark.parametrize("shared", ["true", "false"])
def test_with_a_node_killed_the_table_is_the_one_of_this_machine(
    shared: str, cluster: RayNodes, tmp_path: Path
):
    out, here = tmp_path / "out", tmp_path / "here"
    few = ("--methods", "maml,metasgd", "--seeds", "1", "--iterations", "600")
    words = TWELVE if shared == "true" else (*TWELVE, *few)
    launcher = f"ray:address={cluster.address},shared={shared}"
    log = tmp_path / "log"
    process = begun(*words, "--launcher", launcher, "--out", str(out), log=log)

    def runs_on(node: str) -> bool:
        places = [p for c in commands.working(out) for p in c.running.values()]
        return any(place.startswith(node) for place in places)

    wait_for(lambda: runs_on(NODES[1]))
    cluster.kill(NODES[1])
    cluster.start(NODES[1])
    assert main([*words, "--out", str(here)]) == 0
    process.join(300)
    assert process.exitcode == 0
    assert "run again from its last checkpoint" in log.read_text()
    assert table_of(out, times=False) == table_of(here, times=False)
    assert not [row for row in table_of(out)["rows"] if row["status"] != "done"]


@pytest.mark.parametrize("shared", ["true", "false"])
def test_convergence_is_measured_wherever_the_run_is(
    shared: str, cluster: RayNodes, tmp_path: Path
):
    run = tmp_path / "run"
    words = ("--data", "sinusoid", "--method", "maml", "--shots", "3", "--queries", "3")
    assert main(["train", *words, "--iterations", "2", "--out", str(run)]) == 0
    launcher = f"ray:address={cluster.address},shared={shared}"
    found = []
    for options in ((), ("--launcher", launcher)):
        out = tmp_path / f"figure-{len(options)}"
        words = ("convergence", str(run), "--tasks", "3", "--steps", "2")
        # In a process of its own: one that has used Ray must not be forked later.
        process = begun(*words, *options, "--out", str(out))
        process.join(120)
        assert process.exitcode == 0
        found.append((out / "convergence.csv").read_bytes())
    assert found[0] == found[1]


def test_a_job_that_no_node_can_hold_is_announced(cluster: RayNodes):
    module = "metamirror.experiments.comparison.launchers.registry"
    program = f"""from {module} import open_launcher
with open_launcher("ray:address={cluster.address},cpus=64"):
    pass"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "no node of the cluster has the 64 CPUs" in done.stderr


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("auto", "Connection refused"),
        ("ray://127.0.0.1:1", "streams no results"),
    ],
)
def test_an_address_of_no_cluster_is_refused_at_once(given: str, reason: str, tmp_path: Path):
    pytest.importorskip("ray", reason="pip install 'metamirror[ray]'")
    environment = os.environ | {"RAY_ADDRESS": "127.0.0.1:1"}
    words = ["compare", "--data", "sinusoid", "--launcher", f"ray:address={given}"]
    command = [sys.executable, "-m", "metamirror", *words, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith(f"metamirror: there is no Ray cluster at '{given}'")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_stopped_from_elsewhere_its_workers_save_and_end(cluster: RayNodes, tmp_path: Path):
    out, run = tmp_path / "out", tmp_path / "out" / "cells" / "maml-3shot-seed0"
    launcher = ("--launcher", f"ray:address={cluster.address}")
    process = begun(*ENDLESS, *launcher, "--out", str(out))
    worker = worker_at(out, "maml-3shot-seed0")
    assert main(["compare", "--stop", str(out)]) == 0
    process.join(120)
    assert process.exitcode == 128 + signal.SIGTERM
    assert not alive(worker)
    assert checkpoint.step_of(checkpoint.files(run)[-1]) > 0, "it should have saved"
    assert (out / "table.json").is_file()


def test_without_its_head_the_command_ends_and_says_so(cluster: RayNodes, tmp_path: Path):
    """Here last: the cluster ends with its head."""
    launcher = ("--launcher", f"ray:address={cluster.address}", "--out", str(tmp_path))
    command = [sys.executable, "-m", "metamirror", *ENDLESS, *launcher]
    # Ray ends the process by itself after twice the time that we wait.
    environment = os.environ | {"RAY_gcs_rpc_server_reconnect_timeout_s": "40"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        worker_at(tmp_path, "maml-3shot-seed0")
        cluster.kill(HEAD)
        last = process.communicate(timeout=100)[1].splitlines()[-1]
    finally:
        process.kill()
    assert process.returncode == 2
    assert last.startswith(f"metamirror: the head of the Ray cluster, {cluster.address}, has not")
    assert last.endswith("give the same command again, which keeps what is finished")
