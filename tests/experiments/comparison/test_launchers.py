"""What every launcher promises: jobs are files, a lost worker costs nothing, folders are shared."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from metamirror.cli.main import main
from metamirror.core.extras import import_extra
from metamirror.core.files import write_json
from metamirror.experiments.comparison import commands
from metamirror.experiments.comparison.jobs import Job
from metamirror.experiments.comparison.launchers import carried
from metamirror.experiments.comparison.launchers.registry import open_launcher
from metamirror.experiments.comparison.launchers.slurm import minutes
from metamirror.training.logs.registry import TRACKERS, read_trackers
from tests.experiments.comparison.test_compare import (
    GRID,
    begun,
    rows_of,
    table_of,
    wait_for,
    worker_at,
)
from tests.refusals import assert_command_refused, assert_refused

DEADLY = """
import os, signal
from dataclasses import replace

import metamirror as mm


def build(model, options, settings):
    # Not where the comparison itself builds every method, without values, to count its parameters.
    if next(model.parameters()).device.type != "meta":
        os.kill(os.getpid(), signal.SIGKILL)
    return mm.METHODS["maml"].build(model, options, settings)


mm.METHODS["own"] = replace(mm.METHODS["maml"], key="own", title="Deadly", build=build)
"""


@pytest.mark.slow
def test_a_job_that_is_lost_every_time_fails(own_method: str, capsys):
    """Tried as often as a job may be lost; the others go on."""
    Path("own_module.py").write_text(DEADLY)
    words = (*GRID, "--iterations", "3", "--seeds", "1", "--methods", f"maml,{own_method}")
    assert main([*words, "--import", "own_module", "--out", "out"]) == 0
    rows = rows_of(Path("out"))
    assert (rows["maml"]["status"], rows["own"]["status"]) == ("done", "failed")
    assert "was killed by SIGKILL" in rows["own"]["reason"]
    assert capsys.readouterr().err.count("it is run again from its last checkpoint") == 4


@pytest.mark.slow
def test_cells_are_added_while_others_run(tmp_path: Path, capsys):
    """The second command takes what is free, waits for the rest, and writes the table."""
    out, alone = tmp_path / "out", tmp_path / "alone"
    more = (*GRID, "--iterations", "30")
    first = begun(*more, "--methods", "maml", "--seeds", "1", "--out", str(out))
    worker = worker_at(out, "maml-3shot-seed0")
    # On a busy machine the first would be done before the second has begun.
    os.kill(worker, signal.SIGSTOP)
    try:
        second = begun(*more, "--out", str(out))
        wait_for(lambda: len(commands.working(out)) == 2)
        assert main(["compare", "--status", str(out), "--json"]) == 0
    finally:
        os.kill(worker, signal.SIGCONT)
    seen = json.loads(capsys.readouterr().out)
    assert {command["pid"] for command in seen["commands"]} == {first.pid, second.pid}
    for process in (first, second):
        process.join(150)
        assert process.exitcode == 0
    assert main([*more, "--out", str(alone)]) == 0
    assert table_of(out, times=False) == table_of(alone, times=False)
    assert not list((out / "commands").iterdir())


@pytest.mark.slow
def test_stopped_from_elsewhere_it_saves_and_goes_on(tmp_path: Path, capsys):
    out = tmp_path / "out"
    words = (*GRID, "--seeds", "1", "--iterations", "400", "--out", str(out))
    process = begun(*words)
    worker_at(out, "maml-3shot-seed0")
    assert main(["compare", "--status", str(out), "--json"]) == 0
    jobs = {job["job"]: job for job in json.loads(capsys.readouterr().out)["jobs"]}
    assert jobs["maml-3shot-seed0"]["state"] == "running"
    assert os.uname().nodename in jobs["maml-3shot-seed0"]["where"]
    assert jobs["metasgd-3shot-seed0"]["state"] == "waiting"
    assert main(["compare", "--stop", str(out)]) == 0
    process.join(30)
    assert process.exitcode == 128 + signal.SIGTERM
    assert list((out / "cells" / "maml-3shot-seed0" / "checkpoints").iterdir())
    assert (out / "table.json").is_file()
    capsys.readouterr()
    assert main(["compare", "--status", str(out)]) == 0
    assert "the same compare command goes on" in capsys.readouterr().out
    assert_command_refused(capsys, main(["compare", "--stop", str(out)]), "nothing to stop")


def written(out: Path, *statuses: str) -> None:
    write_json(out / "table.json", {"rows": [{"status": status} for status in statuses]})


def test_a_table_of_a_later_command_is_left_alone(tmp_path: Path):
    """Also when that command has ended by then; half a table, of one that was stopped, is not."""
    written(tmp_path, "done")
    with commands.Command(tmp_path) as command:
        assert command.newest, "what was there before is older"
        written(tmp_path, "done", "missing")
        assert command.newest
        written(tmp_path, "done", "failed")
        assert not command.newest


@pytest.mark.slow
def test_a_method_that_was_added_and_is_done_first_stays_in_the_table(tmp_path: Path):
    words = (*GRID, "--seeds", "1", "--iterations", "400", "--out", str(tmp_path), "--methods")
    first = begun(*words, "maml")
    worker = worker_at(tmp_path, "maml-3shot-seed0")
    os.kill(worker, signal.SIGSTOP)
    try:
        assert main([*words, "metasgd"]) == 0
        assert first.is_alive()
    finally:
        os.kill(worker, signal.SIGCONT)
    first.join(150)
    assert first.exitcode == 0
    assert list(rows_of(tmp_path)) == ["metasgd"]


def test_who_may_only_read_the_folder_sees_what_runs(tmp_path: Path, monkeypatch):
    def refuse(file: Path) -> None:
        raise PermissionError(file)

    with commands.Command(tmp_path) as command:
        command.show({"a": "here"})
        monkeypatch.setattr(commands, "try_lock", refuse)
        assert [seen.running for seen in commands.working(tmp_path)] == [{"a": "here"}]
    killed = tmp_path / "commands" / "killed.json"
    killed.write_text("{}")
    killed.with_suffix(".lock").touch()
    assert commands.working(tmp_path) == []
    assert killed.exists(), "nothing is cleared away"


def test_a_folder_without_a_comparison_has_no_status(tmp_path: Path, capsys):
    code = main(["compare", "--status", str(tmp_path)])
    assert_command_refused(capsys, code, "holds no comparison", "--out")


MISTAKES = {
    "no such launcher": ("pbs", "launcher is 'pbs'; choose from local, ray, slurm"),
    "no such option": ("local:cpus=2", "local has no option 'cpus'.*jobs"),
    "half an option": ("local:jobs", "'jobs' should read option=value"),
    "no number": ("local:jobs=two", "jobs is 'two'; give a number"),
    "no jobs": ("local:jobs=0", "jobs is 0; it must be at least 1"),
    "no cores": ("ray:cpus=0", "^cpus is 0; it must be at least 1$"),
    "no jobs in a queue": ("slurm:jobs=0", "^jobs is 0; it must be at least 1$"),
    "no number of GPUs": ("ray:gpus=nan", "gpus is nan"),
    "less than no GPU": ("slurm:gpus=-1", "gpus is -1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistaken_launcher_is_named(mistake: str):
    words, message = MISTAKES[mistake]
    assert_refused(lambda: open_launcher(words), message)


def test_jobs_and_launcher_are_not_both_given(tmp_path: Path, capsys):
    words = [*GRID, "--jobs", "2", "--launcher", "ray", "--out", str(tmp_path / "out")]
    assert_command_refused(capsys, main(words), "jobs is 2 and launcher ray", "one of them")


def test_a_missing_extra_is_one_line_with_the_command():
    assert_refused(
        lambda: import_extra("surely_not_there", "ray"),
        r"surely_not_there is not installed: pip install 'metamirror\[ray\]'",
    )


def test_a_folder_is_not_taken_for_an_extra(tmp_path: Path, monkeypatch):
    """W&B leaves a folder `wandb` where it was used, which Python would import."""
    (tmp_path / "surely_not_there").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert_refused(lambda: import_extra("surely_not_there", "ray"), "is not installed: pip")
    monkeypatch.setitem(TRACKERS, "own", ("surely_not_there", "own"))
    assert_refused(lambda: read_trackers("own"), "is not installed: pip")


def test_without_slurms_controller_there_is_one_line(tmp_path: Path, monkeypatch, capfd):
    pytest.importorskip("submitit", reason="pip install 'metamirror[slurm]'")
    if shutil.which("sbatch") is None:
        pytest.skip("sbatch is not installed: apt-get install slurm-wlm")
    # For one that is not there, sbatch would wait a minute.
    (tmp_path / "empty.conf").touch()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "empty.conf"))
    job = Job("a", "run", "cells/a", {}, out=str(tmp_path))
    with open_launcher("slurm:partition=gpu") as launcher:
        assert_refused(lambda: launcher.submit(job), r"^Slurm takes no job \(sbatch: [^\n]*$")
    assert capfd.readouterr() == ("", ""), "it is said once, by the command"


@pytest.mark.parametrize(
    ("words", "expected"),
    [("30", 30), ("08:00:00", 480), ("1:30", 2), ("2-12", 3600), ("1-00:30:00", 1470)],
)
def test_times_are_slurms(words: str, expected: int):
    assert minutes(words) == expected


@pytest.mark.parametrize("words", ["noon", "-5", "0", "00:00:00", "1:2:3:4"])
def test_a_time_that_is_none_is_named(words: str):
    assert_refused(lambda: minutes(words), f"time is '{words}'; give")


def test_files_come_back_as_they_were_and_nowhere_else(tmp_path: Path):
    there, here = tmp_path / "there", tmp_path / "here"
    run = there / "cells" / "a"
    (run / "checkpoints").mkdir(parents=True)
    for step in range(4):
        (run / "checkpoints" / f"step-{step:08d}.safetensors").write_bytes(bytes([step]))
    (run / "owner.json").write_text("{}")
    job = Job("a", "run", "cells/a", {}, out=str(here))
    carried.take_in(job, carried.send(replace(job, out=str(there))))
    names = sorted(str(f.relative_to(here)) for f in here.rglob("*") if f.is_file())
    assert names == [f"cells/a/checkpoints/step-{step:08d}.safetensors" for step in (2, 3)]
    forged, out = io.BytesIO(), tmp_path / "out" / "deep"
    out.mkdir(parents=True)
    with tarfile.open(fileobj=forged, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../evil"), io.BytesIO())
    assert_refused(lambda: carried.unpack(forged.getvalue(), out), "evil is no file of")
    assert not (tmp_path / "out" / "evil").exists()


def test_only_what_changed_is_sent_again(tmp_path: Path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("1")
    seen = carried.state_of(tmp_path)
    (tmp_path / "b").write_text("22")
    assert carried.changed(tmp_path, seen) == [tmp_path / "b"]
    assert carried.changed(tmp_path, seen) == []
