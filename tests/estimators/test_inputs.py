"""Examples in every form that users have them in, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import metamirror as mm
from metamirror.estimators.inputs.images import Images
from tests.estimators.stripes import fitted, start, stripes

GREY = Images(channels=1, size=28, invert=False)
COLOUR = Images(channels=3, size=32, invert=False)

images, _ = stripes(classes=3, each=1)
expected = torch.from_numpy(images).float().unsqueeze(1) / 255


def files(folder, suffix: str = "png") -> list:
    paths = []
    for i, image in enumerate(images):
        paths.append(folder / f"{i}.{suffix}")
        Image.fromarray(image).save(paths[-1])
    return paths


def objects(items: list) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


class Column:
    """As a data frame has one: no array, and yet it can become one."""

    def __init__(self, items: list):
        self.items = items

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return objects(self.items)


FORMS = {
    "bytes": lambda _: images,
    "bytes, channels first": lambda _: images[:, None],
    "bytes, channels last": lambda _: images[..., None],
    "a tensor of bytes": lambda _: torch.from_numpy(images),
    "floats": lambda _: images / 255,
    "a tensor of floats": lambda _: torch.from_numpy(images / 255)[:, None],
    "a list of arrays": lambda _: list(images),
    "a list of tensors": lambda _: [torch.from_numpy(p)[None] for p in images],
    "lists of numbers": lambda _: (images / 255).tolist(),
    "PIL": lambda _: [Image.fromarray(p) for p in images],
    "PIL in colour": lambda _: [Image.fromarray(p).convert("RGB") for p in images],
    "PIL with alpha": lambda _: [Image.fromarray(p).convert("RGBA") for p in images],
    "PIL in floats": lambda _: [Image.fromarray((p / 255).astype(np.float32)) for p in images],
    "an array of objects": lambda _: objects([Image.fromarray(p) for p in images]),
    "files": files,
    "files as words": lambda folder: [str(path) for path in files(folder)],
    "an array of words": lambda folder: np.array([str(path) for path in files(folder)]),
    "a column of files": lambda folder: Column([str(path) for path in files(folder)]),
    "a column of arrays": lambda _: Column(list(images)),
    "bmp": lambda folder: files(folder, "bmp"),
    "some of each": lambda folder: [files(folder)[0], images[1], Image.fromarray(images[2])],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images(form: str, tmp_path):
    found = GREY.read(FORMS[form](tmp_path))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_images_of_the_right_size_keep_every_bit():
    exact = np.random.default_rng(0).random((2, 28, 28), np.float32)
    assert torch.equal(GREY.read(exact)[:, 0], torch.from_numpy(exact))


def test_dark_and_light_change_places():
    inverted = Images(1, 28, invert=True).read(255 - images)
    torch.testing.assert_close(inverted, expected, rtol=0, atol=1e-6)


def test_sizes_and_colours_are_brought_to_the_networks(tmp_path):
    random = np.random.default_rng(0)
    photograph = random.integers(0, 256, (50, 80, 3), dtype=np.uint8)
    Image.fromarray(photograph).save(tmp_path / "photograph.png")
    forms = [
        photograph[None],
        photograph[None] / 255,
        np.moveaxis(photograph, 2, 0)[None],
        [Image.fromarray(photograph)],
        [tmp_path / "photograph.png"],
    ]
    for reader in (GREY, COLOUR):
        found = [reader.read(form) for form in forms]
        assert found[0].shape == (1, reader.channels, reader.size, reader.size)
        assert all(torch.equal(found[0], other) for other in found[1:])
        assert 0.3 < float(found[0].mean()) < 0.7
    cut_out, whole = (COLOUR.read([p])[..., 4:-4] for p in (photograph[:, 15:65], photograph))
    assert torch.equal(cut_out, whole), "not the middle square"


def test_grey_images_serve_a_network_for_colours():
    found = COLOUR.read(np.full((2, 10, 10), 51, np.uint8))
    torch.testing.assert_close(found, torch.full((2, 3, 32, 32), 0.2))


def test_each_image_is_scaled_by_itself():
    large = np.random.default_rng(0).integers(0, 256, (4, 40, 60), dtype=np.uint8)
    together = GREY.read(large)
    assert torch.equal(together, torch.cat([GREY.read(row[None]) for row in large]))


def test_a_files_name_may_hold_braces(tmp_path):
    Image.new("L", (50, 40)).save(tmp_path / "cat{1}.png")
    assert GREY.read([tmp_path / "cat{1}.png"]).shape == (1, 1, 28, 28)


def test_the_camera_was_held_upright(tmp_path):
    turned = Image.fromarray(images[0].T)
    exif = turned.getexif()
    exif[0x0112] = 5  # transposed
    turned.save(tmp_path / "turned.png", exif=exif)
    assert torch.equal(GREY.read([tmp_path / "turned.png"]), expected[:1])
    assert torch.equal(GREY.read([Image.open(tmp_path / "turned.png")]), expected[:1])


def a_bomb() -> Image.Image:
    return Image.new("1", (10_000, 10_000))


nan, inf = float("nan"), float("inf")
REFUSED = {
    "one path": ("letter.png", r"'letter\.png'; give a list of images, even of one"),
    "one PIL image": (Image.new("L", (28, 28)), "give a list of images"),
    "one image in colour": (np.zeros((40, 50, 3), np.uint8), r"\(40, 50, 3\), which is one im"),
    "PIL's floats up to 255": (
        [Image.fromarray(images[0].astype(np.float32))],
        r"X\[0\] holds floats from 0 to 249",
    ),
    "a folder": ([Path(__file__).parent], "is a folder: give the images in it"),
    "no file": (["nowhere.png"], r"there is no image nowhere\.png"),
    "not an image": ([__file__], "test_inputs.py is empty, damaged, or neither png"),
    "NaN": (np.full((2, 28, 28), nan), r"holds NaN or inf, first nan at index \(0, 0, 0\)"),
    "infinity": (np.full((2, 28, 28), -inf), "holds NaN or inf, first -inf"),
    "floats up to 255": (images.astype(float), r"floats from 0 to 255.*in 0\.\.1.*divide"),
    "negative floats": (-(images / 255), "floats from -1 to -?0"),
    "whole numbers": (images.astype(int), r"int64; images are bytes in 0\.\.255 \(uint8\)"),
    "complex": (images * 1j, "Complex data not supported"),
    "two channels": (np.zeros((2, 2, 28, 28)), r"\(2, 2, 28, 28\); images are \(examples, he"),
    "five axes": (np.zeros((1, 1, 1, 28, 28)), r"\(1, 1, 1, 28, 28\)"),
    "rows": (np.zeros((2, 784)), r"rows of 784 values.*as X\.reshape\(-1, 28, 28\) does, or for"),
    "embeddings": (np.zeros((2, 1024)), "rows of 1024 values.*shape, or for embeddings choose a"),
    "no images": (np.zeros((0, 28, 28)), r"\(0, 28, 28\); give at least one image"),
    "an empty list": ([], "give at least one image"),
    "no pixels": (np.zeros((3, 0, 28)), r"\(3, 0, 28\)"),
    "ragged lists": ([[0.0], [0.0, 1.0]], "X does not make an array"),
    "something else": (object(), "give at least one image"),
    "too many pixels": ([a_bomb()], r"X\[0\] claims too many pixels \(10,000 x 10,000 pixels\)"),
    "a wrong one in a list": ([images[0], np.zeros((28, 28), int)], r"X\[1\] holds int64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_image_is_refused(case: str):
    wrong, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        GREY.read(wrong)
    with pytest.raises(ValueError, match=words):
        fitted().predict(wrong)


MISTAKES = {
    "no labels": ({}, None, "y is None"),
    "too few labels": ({}, ["a", "b"], "X has 3 examples and y has 2 labels"),
    "one word": ({}, "abc", "y is 'abc'; give a list"),
    "two axes": ({}, np.zeros((3, 2)), r"y has shape \(3, 2\)"),
    "no hash": ({}, [["a"], ["b"], ["c"]], r"y\[0\] is \['a'\], which has no hash"),
    "NaN as a label": ({}, [nan, 1.0, 2.0], r"y\[0\] is NaN or inf"),
    "one class": ({}, ["a", "a", "a"], "one class, 'a': at least 2"),
    "unknown start": ({"start": "glyphs-magic"}, list("abc"), "glyphs-magic.*glyphs-blockiaf"),
    "start of no kind": ({"start": 3}, list("abc"), "start is '3'.*metamirror.Learner"),
    "folder without learner": ({"start": "."}, list("abc"), "holds no learner"),
    "negative steps": ({"steps": -1}, list("abc"), "steps is -1"),
    "lr": ({"lr": nan}, list("abc"), "lr is nan"),
    "wild lr": ({"lr": 1e30}, list("abc"), "left the finite numbers.*lower lr, which is 1e\\+30"),
    "tol": ({"tol": 2}, list("abc"), "tol is 2"),
    "tol in words": ({"tol": "small"}, list("abc"), "tol is 'small'"),
    "no tol": ({"tol": None}, list("abc"), "tol is None"),
    "early_stopping": ({"early_stopping": "yes"}, list("abc"), "early_stopping is 'yes'"),
    "calibrate": ({"calibrate": "yes"}, list("abc"), "calibrate is 'yes'; give True or False"),
    "invert": ({"invert": "auto"}, list("abc"), "invert is 'auto'"),
    "ink": ({"ink": 1}, list("abc"), "ink is 1; give True or False"),
    "ink and invert": ({"ink": True, "invert": True}, list("abc"), "ink finds out by itself"),
    "tensors of several numbers": (
        {},
        [torch.arange(2), torch.arange(2), torch.arange(2)],
        r"y\[0\] is a tensor of shape \(2,\)",
    ),
    "device": ({"device": "abacus"}, list("abc"), "device is 'abacus'"),
    "random_state": ({"random_state": "x"}, list("abc"), "random_state is 'x'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named(case: str):
    params, labels, words = MISTAKES[case]
    clf = mm.FewShotClassifier(**{"start": start(), **params})
    with pytest.raises(ValueError, match=words):
        clf.fit(images, labels)


def test_too_many_classes_are_refused_with_the_ways_out():
    many, labels = stripes(classes=6, each=1)
    with pytest.raises(ValueError, match=r"6 classes.*at most 5.*--ways 6.*FewShotRegressor"):
        mm.FewShotClassifier(start()).fit(many, labels)


@pytest.mark.parametrize("ask", ["predict", "predict_proba", "save"])
def test_before_fit_nothing_can_be_asked(ask: str, tmp_path):
    with pytest.raises(ValueError, match="not fitted yet"):
        getattr(mm.FewShotClassifier(), ask)(tmp_path if ask == "save" else images)


def test_a_network_of_ones_own_says_that_it_takes_images_or_gets_numbers():
    torch.manual_seed(0)
    learner = mm.make_learner("maml", mm.models.MLP(inputs=5, outputs=3), lr=0.1)
    x = np.random.default_rng(0).normal(size=(6, 5)) * 100
    clf = mm.FewShotClassifier(learner, steps=0).fit(x, [0, 1, 2] * 2)
    assert clf.n_features_in_ == 5
    with pytest.raises(ValueError, match="X has 4 features, but FewShotClassifier is expecting 5"):
        clf.predict(x[:, :4])
    with pytest.raises(ValueError, match=r"X holds NaN or inf, first nan at index \(0, 0\)"):
        clf.predict(x * nan)
    with pytest.raises(ValueError, match="invert is for images"):
        mm.FewShotClassifier(learner, invert=True).fit(x, [0, 1, 2] * 2)
    with pytest.raises(ValueError, match="ink is for images"):
        mm.FewShotClassifier(learner, ink=True).fit(x, [0, 1, 2] * 2)
    with pytest.raises(ValueError, match="X does not consist of numbers"):
        clf.predict([Path("a.png")])
