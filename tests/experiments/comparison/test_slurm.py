"""A comparison under a real Slurm of two nodes, started on this machine."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metamirror.cli.main import main
from metamirror.storage import checkpoint
from tests.experiments.comparison.test_compare import ENDLESS, GRID, lines_in, table_of, wait_for

# Not for what it takes, but for machines that have other things to do.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("slurm.sh")
APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Slurm signals whole process groups, as root: nothing of it may reach the rest of the machine."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    pytest.importorskip("submitit", reason="pip install 'metamirror[slurm]'")
    if missing := [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]:
        pytest.skip(f"{missing[0]} is not installed: apt-get install slurm-wlm munge")
    if subprocess.run([*APART, "true"], capture_output=True).returncode:
        pytest.skip("Slurm needs root and a process namespace of its own (unshare --pid)")
    folder = tmp_path_factory.mktemp("slurm")
    environment = pytest.MonkeyPatch()
    environment.setenv("SLURM_CONF", str(folder / "slurm.conf"))
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
        environment.undo()
        started.kill()
        started.wait()


def begun(request: pytest.FixtureRequest, *words: str) -> subprocess.Popen[bytes]:
    """A command under Slurm: not forked, since it needs the environment of this test."""
    launcher = ("--launcher", "slurm:partition=all,time=00:30:00")
    process = subprocess.Popen([sys.executable, "-m", "metamirror", *words, *launcher])
    request.addfinalizer(process.kill)
    return process


def test_a_job_that_slurm_kills_ends_in_the_same_table(
    slurm: None, tmp_path: Path, request, capsys
):
    out, here = tmp_path / "out", tmp_path / "here"
    words = (*GRID, "--seeds", "1")
    process = begun(request, *words, "--out", str(out))
    assert main([*words, "--out", str(here)]) == 0
    wait_for(lambda: lines_in(out, "maml-3shot-seed0") > 0)
    number = (out / "jobs" / "maml-3shot-seed0.slurm").read_text()
    subprocess.run(["scancel", "--signal=KILL", number], check=True)
    assert process.wait(200) == 0
    assert table_of(out, times=False) == table_of(here, times=False)
    sent = next((out / "jobs" / "slurm").glob("*_submission.sh")).read_text()
    for flag in ("--partition=all", "--time=30", "--cpus-per-task=1"):
        assert f"#SBATCH {flag}\n" in sent
    wrong = [*words, "--launcher", "slurm:partition=none", "--out", str(tmp_path / "wrong")]
    capsys.readouterr()
    assert main(wrong) == 2
    *others, last = capsys.readouterr().err.splitlines()
    assert last.startswith("metamirror: Slurm takes no job (sbatch: error: invalid partition")
    assert not [line for line in others if line.startswith("sbatch")]


def test_at_its_time_limit_a_job_saves_and_is_sent_again_until_it_is_stopped(
    slurm: None, tmp_path: Path, request
):
    out, run = tmp_path / "out", tmp_path / "out" / "cells" / "maml-3shot-seed0"
    number = out / "jobs" / "maml-3shot-seed0.slurm"
    process = begun(request, *ENDLESS, "--out", str(out))
    wait_for(lambda: lines_in(out, run.name) > 0)
    first = number.read_text()
    # Ninety seconds before that is now. Slurm looks at its limits every half a minute.
    subprocess.run(["scontrol", "update", f"JobId={first}", "TimeLimit=1"], check=True)
    wait_for(lambda: number.read_text() != first)
    saved = checkpoint.step_of(checkpoint.files(run)[-1])
    assert saved > 0, "it should have saved when its time was up"
    before = lines_in(out, run.name)
    wait_for(lambda: lines_in(out, run.name) > before)
    assert main(["compare", "--stop", str(out)]) == 0
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout
    assert checkpoint.step_of(checkpoint.files(run)[-1]) > saved
    # Unlike metrics.jsonl, this is not cut back to the checkpoint from which a run goes on.
    steps = [json.loads(line)["step"] for line in (run / "timing.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)), "it should have gone on from what it saved"
