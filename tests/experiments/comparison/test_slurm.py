"""A comparison under a real Slurm of two nodes, started on this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metamirror.cli.main import main
from tests.experiments.comparison.test_compare import GRID, lines_in, table_of, wait_for

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("slurm.sh")
APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Slurm signals whole process groups, as root: nothing of it may reach the rest of the machine."""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("submitit", reason="pip install 'metamirror[slurm]'")
    if missing := [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]:
        pytest.skip(f"{missing[0]} is not installed: apt-get install slurm-wlm munge")
    if subprocess.run([*APART, "true"], capture_output=True).returncode:
        pytest.skip("Slurm needs root and a process namespace of its own (unshare --pid)")
    folder = tmp_path / "slurm"
    folder.mkdir()
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    started = subprocess.Popen([*APART, "sh", str(SCRIPT), str(folder)])
    try:
        deadline = time.monotonic() + 30
        asked = ["sinfo", "--noheader", "--Node", "--format", "%t"]
        while subprocess.run(asked, capture_output=True).stdout.split() != [b"idle", b"idle"]:
            assert started.poll() is None
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.3)
        yield
    finally:
        started.kill()
        started.wait()


def test_a_job_that_slurm_kills_ends_in_the_same_table(
    slurm: None, tmp_path: Path, request, capsys
):
    out, here = tmp_path / "out", tmp_path / "here"
    words = (*GRID, "--seeds", "1")
    launcher = ("--launcher", "slurm:partition=all,time=00:30:00")
    # Not forked, since it needs the environment of this test.
    command = [sys.executable, "-m", "metamirror", *words, *launcher, "--out", str(out)]
    process = subprocess.Popen(command)
    request.addfinalizer(process.kill)
    assert main([*words, "--out", str(here)]) == 0
    wait_for(lambda: lines_in(out, "maml-3shot-seed0") > 0)
    number = (out / "jobs" / "maml-3shot-seed0.slurm").read_text()
    subprocess.run(["scancel", "--signal=KILL", number], check=True)
    assert process.wait(90) == 0
    assert table_of(out, times=False) == table_of(here, times=False)
    sent = next((out / "jobs" / "slurm").glob("*_submission.sh")).read_text()
    for flag in ("--partition=all", "--time=30", "--cpus-per-task=1"):
        assert f"#SBATCH {flag}\n" in sent
    wrong = [*words, "--launcher", "slurm:partition=none", "--out", str(tmp_path / "wrong")]
    capsys.readouterr()
    assert main(wrong) == 2
    # sbatch has said it as well, before.
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("metamirror: Slurm takes no job (sbatch: error: invalid partition")
