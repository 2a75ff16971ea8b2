"""One run over several processes, under torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import metamirror as mm
from metamirror.cli.main import main
from metamirror.storage import tensor_file

pytestmark = pytest.mark.slow

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(mm.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}
RUN = (
    *("train", "--data", "sinusoid", "--shots", "3", "--queries", "5", "--steps", "2"),
    *("--tasks-per-step", "5", "--iterations", "20", "--dtype", "float64", "--log-every", "1"),
    *("--validate-every", "10", "--val-tasks", "7", "--checkpoint-every", "4"),
)


def torchrun(*words: str, restarts: int = 0) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "2", "--max-restarts", str(restarts)),
        *("--monitor-interval", "0.2", "-m", "metamirror", *words),
    ]


def done(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=240)


def assert_close(run: Path, other: Path, tolerance: float = 1e-10) -> None:
    """The same learners and the same metrics, but for the order of sums."""
    for which in (w for w in ("best", "last") if (run / w).exists()):
        ours, theirs = (tensor_file.read(r / which / "learner.safetensors") for r in (run, other))
        assert ours[1] == theirs[1]
        for name, tensor in ours[0].items():
            assert (tensor - theirs[0][name]).abs().max() <= tolerance
    ours, theirs = (
        [json.loads(line) for line in (r / "metrics.jsonl").read_text().splitlines()]
        for r in (run, other)
    )
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, abs=1e-9)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ranks") / "alone"
    assert main([*RUN, "--method", "mtnet", "--out", str(out)]) == 0
    return out


def test_two_ranks_train_the_learner_of_one(alone: Path, tmp_path: Path):
    """Five tasks a step, of which one rank has three."""
    words = (*RUN, "--method", "mtnet", "--out", str(tmp_path / "run"))
    ended = done(torchrun(*words))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done: ") == 1
    assert_close(tmp_path / "run", alone)


@pytest.mark.parametrize("method", ["maml", "gradnet", "mamlpp"])
def test_two_ranks_train_the_convolutions_of_one(method: str, tmp_path: Path):
    words = (*RUN, "--data", "glyphs", "--shots", "1", "--width", "4", "--method", method)
    words += ("--validate-every", "0")
    assert main([*words, "--out", str(tmp_path / "alone")]) == 0
    ended = done(torchrun(*words, "--out", str(tmp_path / "run")))
    assert ended.returncode == 0, ended.stderr
    assert_close(tmp_path / "run", tmp_path / "alone")


def test_a_rank_may_have_no_task(tmp_path: Path):
    words = (*RUN, "--method", "metasgd", "--iterations", "4", "--tasks-per-step", "1")
    assert main([*words, "--out", str(tmp_path / "alone")]) == 0
    ended = done(torchrun(*words, "--out", str(tmp_path / "run")))
    assert ended.returncode == 0, ended.stderr
    assert_close(tmp_path / "run", tmp_path / "alone")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_is_started_again(victim: int, alone: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = (*RUN, "--method", "mtnet", "--out", str(run))
    process = subprocess.Popen(
        torchrun(*words, restarts=3),
        env={**ENVIRONMENT, "TORCH_CPP_LOG_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        metrics, deadline = run / "metrics.jsonl", time.monotonic() + 120
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 5):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(rank_of(process.pid, victim), signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
    finally:
        # Asked to end, torchrun ends its ranks too.
        process.terminate()
        process.wait(60)
    assert process.returncode == 0, output
    assert "done: " in output
    assert_close(run, alone)
    steps = [json.loads(line)["step"] for line in (run / "timing.jsonl").read_text().splitlines()]
    assert steps.count(1) == 1, "it should have gone on from a checkpoint, not begun again"


def rank_of(parent: int, rank: int) -> int:
    """The process of a rank, among the children of torchrun."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"PPid:\t{parent}\n" in status and f"RANK={rank}".encode() in environment:
            return int(folder.name)
    raise AssertionError(f"no rank {rank} under {parent}")


def test_evaluation_is_shared_out(alone: Path, tmp_path: Path, capsys):
    capsys.readouterr()
    words = ("evaluate", str(alone), "--tasks", "7", "--steps", "3", "--json")
    assert main(words) == 0
    expected = json.loads(capsys.readouterr().out)
    ended = done(torchrun(*words))
    assert ended.returncode == 0, ended.stderr
    # Each task is adapted to alone: not a bit depends on who does it.
    assert json.loads(ended.stdout) == expected


def test_a_mistake_is_named_by_the_ranks(tmp_path: Path):
    ended = done(torchrun(*RUN, "--method", "mamml", "--out", str(tmp_path / "run")))
    assert ended.returncode != 0
    assert re.search(r"metamirror: rank \d: no method is called 'mamml'", ended.stderr)
    assert not (tmp_path / "run").exists()


def test_a_folder_in_use_does_not_leave_ranks_behind(alone: Path):
    ended = done(torchrun(*RUN, "--method", "mtnet", "--out", str(alone)))
    assert ended.returncode != 0
    assert "rank 0" in ended.stderr
    assert "is not empty" in ended.stderr
