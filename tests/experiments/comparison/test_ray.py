"""A comparison on a real Ray cluster of three nodes, one of which is killed in the middle."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from metamirror.cli.main import main
from metamirror.experiments.comparison import commands
from ray_nodes import NODES, RayNodes
from tests.experiments.comparison.test_compare import GRID, begun, table_of, wait_for

pytestmark = pytest.mark.slow
TWELVE = (*GRID, "--methods", "maml,metasgd,gradnet,anil", "--seeds", "3", "--iterations", "20")
TWELVE = (*TWELVE, "--checkpoint-every", "5", "--log-every", "1", "--validate-every", "10")


@pytest.fixture
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
    assert main([*words, "--out", str(here)]) == 0
    process.join(120)
    assert process.exitcode == 0
    assert table_of(out, times=False) == table_of(here, times=False)
    assert not [row for row in table_of(out)["rows"] if row["status"] != "done"]
