"""Learners that earlier versions wrote."""

import json
from dataclasses import replace

import pytest
import torch

import metamirror as mm
from metamirror.training.config import RunConfig
from metamirror.training.train import train

OLD_FLOW = "blockiaf:parametrisation=standard:scale=bounded"


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return mm.models.MLP(3, 2, hidden=(4,))


def written_as_format_2(method: str, folder, change) -> mm.Learner:
    """A learner on disk whose description is brought back to the words of format 2."""
    learner = mm.make_learner(method, model(), steps=2)
    with torch.no_grad():
        for p in learner.parameters():
            p.add_(0.01 * torch.randn_like(p))
    mm.save(learner, folder)
    file = folder / "learner.json"
    description = json.loads(file.read_text())
    description["format"] = 2
    del description["start"]
    change(description["options"])
    file.write_text(json.dumps(description))
    return learner


def outputs(learner: mm.Learner) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, generator=random)
    return learner.adapt(mm.Batch(x, torch.tensor([0, 1, 0, 1])))(x)


@pytest.mark.parametrize("start", ["primal", "dual"])
def test_a_flow_comes_back_with_its_start_and_its_parametrisation(tmp_path, start):
    def change(options):
        for new in ("parametrisation", "mixing", "flows"):
            del options[new]
        options |= {"scale": None, "anchored": start == "primal"}

    learner = written_as_format_2(f"{OLD_FLOW}:start={start}", tmp_path, change)
    loaded = mm.load(tmp_path)
    assert loaded.geometry.start == start
    assert torch.equal(outputs(loaded), outputs(learner))


def test_the_published_variants_come_back(tmp_path):
    def change(options):
        for new in ("parametrisation", "mixing", "flows"):
            del options[new]
        options["anchored"] = False

    learner = written_as_format_2("blockiaf:variant=paper", tmp_path, change)
    assert torch.equal(outputs(mm.load(tmp_path)), outputs(learner))


def test_other_options_that_changed_their_name_come_back(tmp_path):
    def renamed(options):
        options["start"] = options.pop("start_rule")

    written_as_format_2("warpgrad:start_rule=maml", tmp_path / "warps", renamed)
    assert mm.load(tmp_path / "warps").config["options"]["start_rule"] == "maml"
    written_as_format_2("ecml", tmp_path / "ecml", lambda options: options.pop("floor"))
    assert mm.load(tmp_path / "ecml").config["options"]["floor"] == 0


def test_a_gradient_network_of_an_earlier_version_is_refused(tmp_path):
    written_as_format_2("gradnet", tmp_path, lambda options: None)
    with pytest.raises(ValueError, match="parametrised differently: train it again"):
        mm.load(tmp_path)


def test_a_run_whose_method_meant_something_else_is_not_continued(tmp_path):
    config = RunConfig(method="ecml", data="sinusoid", iterations=1, validate_every=0)
    train(config, tmp_path / "run", device="cpu")
    file = tmp_path / "run" / "last" / "learner.json"
    file.write_text(file.read_text().replace('"format": 3', '"format": 2'))
    with pytest.raises(ValueError, match="begun with an earlier version, whose ecml was another"):
        train(replace(config, iterations=2), tmp_path / "run", resume=True, device="cpu")


def test_buffers_that_are_not_stored_have_the_type_of_the_file(tmp_path):
    learner = mm.make_learner("gradnet", mm.models.MLP(3, 1, hidden=(1,)).double())
    mm.save(learner, tmp_path)
    loaded = mm.load(tmp_path)
    assert all(b.dtype == torch.float64 for b in loaded.buffers())
    x = torch.ones(2, 3, dtype=torch.float64)
    loaded.adapt(mm.Batch(x, torch.ones(2, 1, dtype=torch.float64)))(x)
