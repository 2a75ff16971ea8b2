"""Which rows a comparison has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from metamirror.experiments.comparison.plan import recipe, run_job, trained_rows
from metamirror.experiments.comparison.spec import Spec, read_methods, read_per_row
from metamirror.experiments.comparison.table import Row
from metamirror.methods import METHODS
from metamirror.training.config import RunConfig, difference, load_config

CONFIGS = Path(__file__).parents[3] / "configs"


def rows_of(*methods: str, iterations: int = 60_000, **options) -> list[Row]:
    base = RunConfig(method="maml", iterations=iterations)
    return trained_rows(Spec(base, methods, [1], **options))


def labels(*methods: str, **options) -> list[str]:
    return [row.method for row in rows_of(*methods, **options)]


@pytest.mark.parametrize("shots", [1, 5])
def test_the_recipe_is_that_of_the_preset(shots: int):
    """The authors' settings stand in two places, and are the same."""
    common = load_config(CONFIGS / f"mini-imagenet-{shots}shot.toml")
    theirs = load_config(CONFIGS / f"mini-imagenet-{shots}shot-blockiaf.toml")
    changed = replace(common, method="blockiaf", **recipe(METHODS["blockiaf"], common.iterations))
    assert difference(changed, theirs) == []


def test_a_recipe_is_stretched_to_the_iterations():
    assert recipe(METHODS["blockiaf"], 3_000)["decay_every"] == 1_000
    assert recipe(METHODS["maml"], 3_000) == {}


def test_all_is_the_registry():
    assert read_methods("all") == list(METHODS)
    assert labels(*METHODS) == [*METHODS, "metasgd-as-blockiaf"]


def test_an_adjoint_with_its_numbers_may_follow_a_method():
    found = read_methods("maml:adjoint=implicit:cg=5,damping=0,metasgd:adjoint=first,maml")
    implicit = "maml:adjoint=implicit:cg=5:damping=0"
    assert found == [implicit, "metasgd:adjoint=first", "maml"]
    assert read_per_row("lr", f"0.1,{implicit}=0.2", 0.05, found)[implicit] == 0.2
    with pytest.raises(ValueError, match="adjoint implicit:cg is 0"):
        read_methods("maml:adjoint=implicit:cg=0")
    with pytest.raises(ValueError, match="adjoint is 'implicitly'; choose from"):
        read_methods("maml:adjoint=implicitly")


def test_controls_come_last_and_can_be_left_out():
    assert labels("anil", "maml") == ["maml", "anil"]
    assert labels("maml", "blockiaf", controls=False) == ["maml", "blockiaf"]
    assert labels("maml", "blockiaf") == ["maml", "blockiaf", "anil", "metasgd-as-blockiaf"]


def test_what_would_be_trained_twice_is_trained_once():
    """Where one optimiser serves all, MetaSGD trained as blockIAF is MetaSGD."""
    for recipes, twin in (("common", "metasgd"), ("authors", None)):
        rows = rows_of("metasgd", "blockiaf", recipes=recipes)
        assert rows[-1].runs == (twin or rows[-1].method)
        assert rows[-1].recipe == rows[1].recipe
        assert rows[0].recipe == {}
    (*_, alone) = rows_of("blockiaf")
    assert alone.runs == alone.method == "metasgd-as-blockiaf"


def test_variants_of_a_method_are_rows_of_their_own():
    (row, *_) = rows_of("blockiaf:variant=released", iterations=9, recipes="authors")
    assert row.title == "blockIAF mirror descent (variant=released)"
    assert row.recipe["optimizer"] == "sgd"
    config = RunConfig(method=row.spec, shots=5, seed=2)
    job = run_job(Spec(config, [], []), row.runs, config)
    assert job.folder == "cells/blockiaf-variant-released-5shot-seed2"


def test_values_for_some_rows():
    rows = ["maml", "blockiaf:variant=released"]
    found = read_per_row("lr", "0.1,blockiaf:variant=released=0.5", 0.01, rows)
    assert [found[row] for row in rows] == [0.1, 0.5]
    assert read_per_row("seeds", "maml=3", 1, rows)["maml"] == 3


@pytest.mark.parametrize("words", ["0,1,2", "0.1,0.1", "1,maml=2,maml=3"])
def test_a_second_value_is_not_taken_in_place_of_the_first(words: str):
    with pytest.raises(ValueError, match="given twice"):
        read_per_row("lr", words, 0.01, ["maml", "metasgd"])
