"""A Ray cluster on this machine: one head and two nodes, each with an address of its own.

    python benchmarks/ray_nodes.py FOLDER

starts it, prints its address, and ends it with Ctrl-C. All addresses are the loopback's; the ports
of Ray's own servers are open on every interface nevertheless, as Ray has it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HEAD = "127.0.0.2"
NODES = ("127.0.0.3", "127.0.0.4")
PORT = 6399
QUICK = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives way to everything else on a machine unless told otherwise.
    "RAY_worker_niceness": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class RayNodes:
    """Starts the nodes, each in a process group of its own; `kill` ends one without a word."""

    def __init__(self, folder: Path):
        self.folder, self.address = folder, f"{HEAD}:{PORT}"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> RayNodes:
        try:
            for node in (HEAD, *NODES):
                self.start(node)
                self.wait(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, node: str) -> None:
        """Start a node, and return before it is up."""
        words = ["--address", self.address, "--num-cpus", "1"]
        if node == HEAD:
            words = ["--head", "--port", str(PORT), "--include-dashboard=false"]
            words += ["--num-cpus", "0", "--temp-dir", str(self.folder)]
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", *words]
        command += ["--node-ip-address", node, "--num-gpus", "0", "--disable-usage-stats"]
        command += ["--object-store-memory", "100000000"]
        with Path(f"{self.folder}-{node}.log").open("wb") as log:
            self.nodes[node] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **QUICK},
            )

    def wait(self, node: str) -> None:
        """Wait until a node says that it is up."""
        deadline = time.monotonic() + 90
        process, log = self.nodes[node], Path(f"{self.folder}-{node}.log")
        while b"Ray runtime started" not in log.read_bytes():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)

    def kill(self, node: str) -> None:
        """Kill a node: all processes that descend from its `ray start`, at once."""
        process = self.nodes.pop(node)
        for pid in [*_descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def __exit__(self, *error: object) -> None:
        for node in reversed(list(self.nodes)):
            self.kill(node)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


if __name__ == "__main__":
    with RayNodes(Path(sys.argv[1])) as cluster:
        print(cluster.address, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
