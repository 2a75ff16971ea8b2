"""Networks that look up whole numbers as backbones: tokens go in as they are."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.cli.main import main
from metamirror.estimators.backbones.opening import open_backbone
from metamirror.estimators.export import export
from tests.estimators.test_backbones import pictures
from tests.refusals import assert_command_refused, assert_refused

TOKENS = np.array([[1, 2, 0], [7, 8, 0], [2, 1, 2], [8, 8, 7], [1, 1, 2], [7, 8, 8]])
LABELS = list("ababab")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "home"))


class Text(nn.Module):
    """The mean of the embeddings of its tokens; counts how many texts it has seen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.seen = nn.Embedding(10, 6), 0

    def forward(self, tokens):
        assert tokens.dtype == torch.int64
        self.seen += len(tokens)
        return self.words(tokens).mean(1)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, torch.tensor, np.ndarray.tolist])
def test_whole_numbers_of_any_kind_are_looked_up(kind):
    text = Text()
    clf = mm.FewShotClassifier(backbone=text).fit(kind(TOKENS), LABELS)
    expected = text.words.weight[torch.tensor(TOKENS)].mean(1)
    torch.testing.assert_close(clf.support_.x, expected.detach())
    assert clf.predict(kind(TOKENS)).tolist() == LABELS
    assert text.seen == len(TOKENS), "features are computed once"


def test_texts_of_another_length_are_others():
    text = Text()
    clf = mm.FewShotClassifier(backbone=text).fit(TOKENS, LABELS)
    assert clf.predict([[8, 7], [2, 1]]).tolist() == ["b", "a"]
    assert clf.partial_fit([[4, 4, 4, 4]], ["c"]).predict([[4, 4]]).tolist() == ["c"]
    flat, nested = open_backbone(nn.EmbeddingBag(10, 2)), [[1, 2, 3, 4]]
    flat.read(nested)
    assert_refused(lambda: flat.read([[[1, 2], [3, 4]]]), r"whole numbers of shape \(1, 2, 2\)")


def test_a_classifier_is_saved_copied_and_pickled(tmp_path: Path):
    text = Text()
    clf = mm.FewShotClassifier(backbone=text).fit(TOKENS, LABELS)
    expected = clf.predict_proba(TOKENS)
    for again in (copy.deepcopy(clf), pickle.loads(pickle.dumps(clf))):
        assert np.array_equal(again.predict_proba(TOKENS), expected)
    clf.save(tmp_path / "m")
    load = mm.FewShotClassifier.load
    assert np.array_equal(load(tmp_path / "m", backbone=text).predict_proba(TOKENS), expected)
    assert_refused(lambda: load(tmp_path / "m"), "made with the backbone Text: pass backbone")
    with torch.no_grad():
        text.words.weight.mul_(2)
    assert_refused(lambda: load(tmp_path / "m", backbone=text), "another one, or it has changed")


def test_what_is_exported_says_that_it_takes_features(tmp_path: Path, capsys):
    clf = mm.FewShotClassifier(backbone=Text()).fit(TOKENS, LABELS)
    export(clf, tmp_path / "m.pt2", "torch")
    assert "takes features of Text, and no tokens" in capsys.readouterr().err
    module = torch.export.load(tmp_path / "m.pt2").module()
    np.testing.assert_allclose(module(clf.support_.x), clf.predict_proba(TOKENS), atol=1e-5)


def test_what_is_no_token_is_refused(tmp_path: Path, capsys):
    text = open_backbone(Text())
    for given, words in [
        (TOKENS / 2, "X does not hold whole numbers"),
        (TOKENS + 5, "does not take whole numbers.* from 5 to 13: index out of range"),
        (["a.png"], "does not consist of numbers"),
    ]:
        assert_refused(lambda given=given: text.read(given), words)
    by_batch = nn.Sequential(nn.EmbeddingBag(10, 4), nn.BatchNorm1d(4, track_running_stats=False))
    assert_refused(lambda: open_backbone(by_batch), "by the batch in 1")
    mm.FewShotClassifier(backbone=text).fit(TOKENS, LABELS).save(tmp_path / "m")
    words = ["predict", str(tmp_path / "m"), "a.png", "--backbone", f"{__name__}:text"]
    assert_command_refused(capsys, main(words), "does not take images")


text = Text()


def test_a_network_that_convolves_images_first_takes_images():
    class Patches(nn.Module):
        """Looks up the places of patches, as vision transformers do."""

        def __init__(self):
            super().__init__()
            self.patches, self.places = nn.Conv2d(3, 4, 14, 14), nn.Embedding(256, 4)

        def forward(self, x):
            return (self.patches(x).flatten(2).mT + self.places(torch.arange(256))).mean(1)

    assert open_backbone(Patches()).read(pictures(2)).shape == (2, 4)
