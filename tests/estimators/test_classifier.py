"""What a few-shot classifier promises: what it adapts, and what a prediction depends on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import metamirror as mm
from metamirror.estimators.export import AdaptedModule
from metamirror.estimators.model_file import pack
from tests.estimators.stripes import fitted, start, stripes

methods = pytest.mark.parametrize("method", mm.METHODS)


@methods
def test_it_adapts_as_the_learner_does(method: str):
    images, labels = stripes(classes=5, each=2)
    learner = start(method, norm="inductive")
    clf = mm.FewShotClassifier(learner, random_state=7, calibrate=False).fit(images, labels)
    x = torch.from_numpy(images).float().unsqueeze(1) / 255
    y = torch.arange(5).repeat_interleave(2)
    adapted = learner.adapt(mm.Batch(x, y), seed=7)
    new, _ = stripes(classes=5, each=3, seed=1)
    logits = adapted(torch.from_numpy(new).float().unsqueeze(1) / 255)
    np.testing.assert_allclose(clf.predict_proba(new), logits.double().softmax(1), atol=2e-5)
    torch.testing.assert_close(clf.losses_[:-1], adapted.path.losses.tolist())


@methods
def test_a_prediction_depends_on_its_own_image_alone(method: str):
    clf = fitted(method)
    new, _ = stripes(classes=3, each=7, seed=1)
    together = clf.predict_proba(new)
    order = np.random.default_rng(0).permutation(len(new))
    np.testing.assert_array_equal(clf.predict_proba(new[order]), together[order])
    one_by_one = np.concatenate([clf.predict_proba(row[None]) for row in new])
    np.testing.assert_array_equal(one_by_one, together)


def test_it_learns():
    new, labels = stripes(classes=3, each=5, seed=1)
    assert fitted(each=5, steps=20).score(new, labels) > 0.9


@pytest.mark.parametrize("method", ["maml", "metasgd", "anil", "blockiaf"])
def test_outputs_without_a_class_have_no_say(method: str):
    images, labels = stripes(classes=3, each=2)
    learner = start(method)
    expected = mm.FewShotClassifier(learner).fit(images, labels).predict_proba(images)
    with torch.no_grad():
        learner.model.head.bias[3:] += 5.0
        learner.model.head.bias[3:] *= 7.0
    found = mm.FewShotClassifier(learner).fit(images, labels)
    # blockIAF's map lets no other parameter depend on the last layer's bias.
    np.testing.assert_allclose(found.predict_proba(images), expected, atol=1e-6)
    assert found.predict_proba(images).shape == (6, 3)


def test_losses_are_those_before_each_step_and_after_the_last():
    images, labels = stripes(classes=3, each=2)
    longer = mm.FewShotClassifier(start(), steps=4, calibrate=False).fit(images, labels)
    shorter = mm.FewShotClassifier(start(), steps=3).fit(images, labels)
    assert (longer.n_steps_, shorter.n_steps_) == (4, 3)
    assert len(longer.losses_) == 5
    torch.testing.assert_close(longer.losses_[:4], shorter.losses_, rtol=1e-4, atol=1e-5)
    by_hand = -np.log(longer.predict_proba(images)[np.arange(6), np.arange(6) // 2]).mean()
    assert longer.losses_[-1] == pytest.approx(by_hand, abs=1e-5)
    assert longer.adaptation_seconds_ > 0


def test_no_step_leaves_the_start():
    clf = fitted(steps=0)
    assert (clf.n_steps_, len(clf.losses_)) == (0, 1)
    for name, p in clf.learner_.theta().items():
        assert torch.equal(clf.adapted_.params[name], p)


def test_the_step_size_can_be_changed():
    assert fitted(lr=0.0).losses_[0] == pytest.approx(fitted(lr=0.0).losses_[-1], abs=1e-5)
    assert fitted(lr=0.01).losses_[-1] > fitted(lr=0.1).losses_[-1]


@pytest.mark.parametrize(
    ("labels", "classes", "kind"),
    [
        (["b", "a", "b"], ["a", "b"], "U"),
        ([10, 2, 10], [2, 10], "i"),
        ([2.5, 0.5, 2.5], [0.5, 2.5], "f"),
        ([True, False, True], [False, True], "b"),
        ([("x", 1), ("x", 0), ("x", 1)], [("x", 0), ("x", 1)], "O"),
        (["one", 1, "one"], ["one", 1], "O"),
        ([None, "some", None], [None, "some"], "O"),
        (np.array(["b", "a", "b"], dtype=object), ["a", "b"], "U"),
        (torch.tensor([4, 3, 4]), [3, 4], "i"),
        ([torch.tensor(4), torch.tensor(3), torch.tensor(4)], [3, 4], "i"),
    ],
    ids=str,
)
def test_labels_are_anything_that_can_be_hashed(labels, classes, kind):
    images, _ = stripes(classes=3, each=1)
    clf = mm.FewShotClassifier(start(), steps=30).fit(images, labels)
    assert clf.classes_.tolist() == classes
    assert clf.classes_.dtype.kind == kind
    given = labels.tolist() if hasattr(labels, "tolist") else labels
    assert clf.predict(images).tolist() == given
    assert clf.score(images, labels) == 1.0


def test_names_of_classes_decide_nothing_but_their_order():
    images, _ = stripes(classes=3, each=1)
    named = mm.FewShotClassifier(start()).fit(images, ["x", "y", "z"])
    numbered = mm.FewShotClassifier(start()).fit(images, [0, 1, 2])
    np.testing.assert_array_equal(named.predict_proba(images), numbered.predict_proba(images))


def test_shots_may_be_unequal():
    images, labels = stripes(classes=2, each=4)
    clf = mm.FewShotClassifier(start()).fit(images[:6], labels[:6])
    assert clf.predict_proba(images).shape == (8, 2)


def test_partial_fit_adapts_again_to_all_examples():
    images, labels = stripes(classes=4, each=2)
    at_once = mm.FewShotClassifier(start()).fit(images, labels)
    bit_by_bit = mm.FewShotClassifier(start())
    for rows in (slice(0, 4), slice(4, 7), slice(7, 8)):
        # The fourth class comes late.
        bit_by_bit.partial_fit(images[rows], labels[rows])
    assert bit_by_bit.classes_.tolist() == at_once.classes_.tolist()
    np.testing.assert_array_equal(bit_by_bit.predict_proba(images), at_once.predict_proba(images))


def test_a_failed_partial_fit_changes_nothing():
    clf = fitted()
    images, _ = stripes(classes=3, each=1, seed=2)
    before = clf.predict_proba(images)
    with pytest.raises(ValueError, match="6 classes"):
        clf.partial_fit(images, ["new", "newer", "newest"])
    np.testing.assert_array_equal(clf.predict_proba(images), before)
    assert len(clf.support_.x) == 6
    clf.partial_fit(images, ["class 0", "class 1", "class 2"])
    assert len(clf.support_.x) == 9


def test_partial_fit_refuses_labels_that_were_not_announced():
    images, labels = stripes(classes=3, each=1)
    with pytest.raises(ValueError, match="'class 2', which is not in classes"):
        mm.FewShotClassifier(start()).partial_fit(images, labels, classes=labels[:2])


@pytest.mark.parametrize("names", [["one", 1, "two"], [("x", 0), ("x", 1), "y"]], ids=str)
def test_labels_of_any_kind_can_be_announced(names):
    images, _ = stripes(classes=3, each=1)
    clf = mm.FewShotClassifier(start()).partial_fit(images, names, classes=names)
    assert set(clf.classes_) == set(names)


def test_parameters_that_are_set_count_at_the_next_fit(tmp_path):
    images, labels = stripes(classes=3, each=2)
    clf = fitted()
    before = clf.predict_proba(images)
    clf.set_params(invert=True)
    np.testing.assert_array_equal(clf.predict_proba(images), before)
    np.testing.assert_allclose(
        AdaptedModule(clf.fitted_)(torch.from_numpy(np.repeat(images[..., None], 3, 3))),
        before,
        atol=1e-5,
    )
    clf.save(tmp_path / "model")
    again = mm.FewShotClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(images), before)
    clf.partial_fit(images, labels)
    assert torch.equal(clf.support_.x[:6], clf.support_.x[6:])
    clf.fit(images, labels)
    torch.testing.assert_close(clf.support_.x, 1 - again.support_.x)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_adapts_where_gradients_are_switched_off(mode):
    images, labels = stripes(classes=3, each=2)
    expected = fitted().partial_fit(images, labels).predict_proba(images)
    with mode():
        found = fitted().partial_fit(torch.from_numpy(images), labels).predict_proba(images)
    np.testing.assert_array_equal(found, expected)


def test_several_threads_may_ask_and_save_one_model(tmp_path):
    clf = fitted(steps=20)
    images, _ = stripes(classes=3, each=4, seed=1)
    expected, content = clf.predict_proba(images), pack(clf.fitted_, clf.get_params())

    def use(i: int) -> bool:
        if i % 4 == 0:
            return pack(clf.fitted_, clf.get_params()) == content
        return np.array_equal(clf.predict_proba(images), expected)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(80)))


def test_a_learner_that_is_handed_in_stays_as_it_was():
    learner = start()
    assert learner.norm == "transductive"
    before = {name: p.clone() for name, p in learner.named_parameters()}
    mm.FewShotClassifier(learner).fit(*stripes(classes=3, each=1))
    assert (learner.norm, learner.settings.loss, learner.training) == ("transductive", None, True)
    assert all(torch.equal(p, before[name]) for name, p in learner.named_parameters())


def test_early_stopping_ends_where_steps_gain_little():
    patient = fitted(steps=40, early_stopping=True, tol=0.02, calibrate=False)
    assert 1 < patient.n_steps_ < 40
    falls = -np.diff(patient.losses_)
    assert (falls[:-1] >= 0.02 * patient.losses_[0]).all()
    assert 0 <= falls[-1] < 0.02 * patient.losses_[0]
    exact = fitted(steps=patient.n_steps_, calibrate=False)
    new, _ = stripes(classes=3, each=2, seed=1)
    np.testing.assert_allclose(patient.predict_proba(new), exact.predict_proba(new), atol=1e-5)


def test_early_stopping_takes_back_a_step_that_hurts():
    wild = {"lr": 30.0, "steps": 5}
    images, labels = stripes(classes=3, each=2)
    losses = mm.FewShotClassifier(start(), **wild).fit(images, labels).losses_
    rise = next(k for k, change in enumerate(np.diff(losses)) if change > 0)
    careful = mm.FewShotClassifier(start(), early_stopping=True, tol=0.0, **wild)
    assert careful.fit(images, labels).n_steps_ == rise
    np.testing.assert_allclose(careful.losses_, losses[: rise + 1], rtol=1e-4)


def test_noise_of_a_method_has_a_seed():
    new, _ = stripes(classes=3, each=1, seed=1)
    first, again, other = (
        fitted("mtnet:mask_logit=0", random_state=seed).predict_proba(new) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert abs(first - other).max() > 1e-4


def test_a_loss_of_ones_own_sees_the_classes_alone():
    seen = []

    def loss(output, target):
        seen.append(output.shape[1])
        return F.cross_entropy(output, target)

    own = mm.FewShotClassifier(start(loss=loss)).fit(*stripes(classes=3, each=2))
    assert set(seen) == {3}
    np.testing.assert_allclose(own.losses_, fitted().losses_, rtol=1e-6)


def test_loading_a_start_draws_no_random_number():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    letters = mm.tasks("glyphs", split="test", batch=1)[0].support
    mm.FewShotClassifier("glyphs-maml").fit(letters.x[0], letters.y[0])
    assert torch.equal(torch.rand(2), expected)
