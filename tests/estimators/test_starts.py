"""The starts that ship with the package."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

import metamirror as mm
from metamirror.cli.main import parse
from metamirror.data.image_ranges import SEEN
from metamirror.estimators.backbones.our_runs import STATISTICS
from metamirror.estimators.starts import SHIPPED, open_start, shipped_names
from metamirror.storage.learner_file import CONFIG, TENSORS
from metamirror.training.factory import resolved

GLYPHS = [f"glyphs-{method}" for method in ("blockiaf", "gradnet", "maml", "metasgd")]
names = pytest.mark.parametrize("name", shipped_names())


def test_which_there_are():
    assert shipped_names() == [*GLYPHS, "photos", "sinusoid-metasgd"]


@names
def test_a_start_is_small_and_says_how_it_was_made(name: str):
    folder = SHIPPED / name
    own = {"photos": {SEEN, "backbone"}, "sinusoid-metasgd": set()}.get(name, {SEEN, STATISTICS})
    assert {p.name for p in folder.iterdir()} == {CONFIG, TENSORS, "start.json", *own}
    assert (folder / TENSORS).stat().st_size < 2_000_000
    about = json.loads((folder / "start.json").read_text())
    program, *words = shlex.split(about["command"])
    # The words are understood, and mean the learner that is there.
    settings = resolved(parse(words).keywords["settings"])
    learner = mm.load(folder)
    assert program == "metamirror"
    key, _, _ = settings.method.partition(":")
    assert name in (f"{settings.data}-{key}", "photos")
    assert (learner.steps, learner.lr, learner.norm) == (settings.steps, settings.lr, "inductive")
    assert 0 < about["step"] <= settings.iterations


def test_a_start_is_not_changed_by_those_who_use_it():
    before = {n: p.clone() for n, p in open_start("glyphs-maml").named_parameters()}
    mm.FewShotClassifier("glyphs-maml").fit(np.eye(28)[None].repeat(2, 0), [0, 1])
    after = dict(open_start("glyphs-maml").named_parameters())
    assert all((after[n] == p).all() for n, p in before.items())


def test_five_letters_of_an_unknown_script_from_one_example_each():
    tasks = mm.tasks("glyphs", split="test", ways=5, shots=1, queries=15, batch=1)
    scores = []
    for step in range(100):
        support, query = tasks[step]
        clf = mm.FewShotClassifier().fit(support.x[0], support.y[0])
        scores.append(clf.score(query.x[0], query.y[0]))
    assert np.mean(scores) >= 0.90
