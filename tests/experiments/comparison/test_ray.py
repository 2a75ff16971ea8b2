"""Comparisons on a real Ray cluster of three nodes: one is killed in the middle, one stopped."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from metamirror.cli.main import main
from metamirror.experiments.comparison import commands
from metamirror.storage import checkpoint
from ray_nodes import NODES, RayNodes
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
    words = TWELVE if shared == "true" else (*TWELVE, "--methods", "maml,metasgd", "--seeds", "1")
    launcher = f"ray:address={cluster.address},shared={shared}"
    process = begun(*words, "--launcher", launcher, "--out", str(out))

    def runs_on(node: str) -> bool:
        places = [p for c in commands.working(out) for p in c.running.values()]
        return any(place.startswith(node) for place in places)

    wait_for(lambda: runs_on(NODES[1]))
    cluster.kill(NODES[1])
    cluster.start(NODES[1])
    assert main([*words, "--out", str(here)]) == 0
    process.join(300)
    assert process.exitcode == 0
    assert table_of(out, times=False) == table_of(here, times=False)
    assert not [row for row in table_of(out)["rows"] if row["status"] != "done"]


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
