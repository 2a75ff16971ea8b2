"""A method costs one file, one line and one row: every command knows it without another edit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.report.styles import style_of
from tests.docs.listings import listings

pytestmark = pytest.mark.slow

# The example of CONTRIBUTING.md, and the line that registers it.
EXAMPLE = listings(Path(__file__).parents[1] / "CONTRIBUTING.md")[0]
REGISTERED = "\nfrom metamirror.methods import METHODS\n\nMETHODS[METHOD.key] = METHOD\n"
TINY = ("--shots", "3", "--queries", "3", "--steps", "1", "--width", "8", "--tasks-per-step", "2")
FEW = ("--iterations", "3", "--val-tasks", "2", "--validate-every", "3")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch) -> tuple[str, str]:
    (tmp_path / "toy_method.py").write_text(EXAMPLE + REGISTERED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "--import", "toy_method"
    mm.METHODS.pop("layerwise", None)
    sys.modules.pop("toy_method", None)


def test_a_method_that_is_registered_works_everywhere(toy, capsys):
    def printed(*words: str) -> dict:
        assert main([*words, "--json", *toy]) == 0
        return json.loads(capsys.readouterr().out)

    assert "layerwise" in json.dumps(printed("methods"))

    grid = ("compare", "--data", "sinusoid", "--methods", "maml,layerwise", "--no-controls")
    sizes = (*TINY, *FEW, "--seeds", "1", "--test-tasks", "4")
    table = printed(*grid, *sizes, "--out", "study")
    assert [row["method"] for row in table["rows"]] == ["maml", "layerwise"]
    runs = [seed["run"] for row in table["rows"] for seed in row["seeds"]]

    folders = [f"study/{run}" for run in runs]
    curves = printed("convergence", *folders, "--tasks", "2", "--out", "study")
    assert "layerwise" in json.dumps(curves)

    size = "--shape 1x16x16 --ways 2 --shots 1 --width 4 --steps 1 --tasks 1 --rounds 3 --threads 1"
    costs = printed("cost", *size.split(), "--methods", "layerwise")
    assert [row["method"] for row in costs["rows"]] == ["maml", "layerwise"]

    assert main(["report", "study"]) == 0
    assert "Layerwise rates" in Path("study/report.html").read_text()

    x = torch.linspace(-5, 5, 8).reshape(-1, 1)
    fitted = mm.FewShotRegressor(folders[-1]).fit(x.numpy(), x.sin().flatten().numpy())
    assert fitted.predict(x.numpy()).shape == (8,)


def test_its_colour_and_marker_are_its_own(toy):
    assert main(["methods", *toy]) == 0
    styles = {method: style_of(method) for method in mm.METHODS}
    own = styles.pop("layerwise")
    assert own.colours not in {style.colours for style in styles.values()}
    assert own.marker not in {style.marker for style in styles.values()}
