"""A server in a process of its own, as users start it, and what it takes of the machine."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import metamirror as mm

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(mm.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Served:
    url: str
    process: subprocess.Popen[str]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=120)

    def ask(self, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and content of one answer."""
        connection = self.connect()
        try:
            if body is None:
                connection.request("GET", path)
            else:
                headers = {"content-type": "application/json", "origin": self.url}
                connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def megabytes(self) -> float:
        """What the process has of memory now."""
        words = Path(f"/proc/{self.process.pid}/status").read_text().split()
        return int(words[words.index("VmRSS:") + 1]) / 1024

    def processor_seconds(self) -> float:
        """What the process has had of processors: the same however busy the machine is."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(*words: str) -> Iterator[Served]:
    """A server that ends as all commands do when they are interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-m", "metamirror", "playground", "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        # Whoever starts the tests in the background may have them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), process.communicate(timeout=30)
        yield Served(line.split()[0], process)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, (process.returncode, errors)
    assert "Traceback" not in errors
