"""`metamirror playground FILE`: the page begins with a model that was saved before."""

from __future__ import annotations

import base64
import os
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

import metamirror as mm
from metamirror.cli.main import main
from metamirror.estimators.familiarity import UnfamiliarExamplesWarning
from metamirror.playground.app import make_app
from metamirror.playground.models import OWN, ModelStore, on_offer
from metamirror.playground.saved import SAVED, open_saved
from serving import served
from tests.estimators.test_backbones import Body, onnx_file
from tests.playground.browsing import DESK, PHONE, chromium
from tests.playground.drawings import draw, pixels, request

COLOURS = {"brick": (170, 70, 50), "grass": (70, 160, 60), "sky": (90, 150, 220)}
ASK = f"/api/models/{SAVED}/predict"


def photographs(seed: int, size: tuple[int, int] = (90, 140)) -> list[np.ndarray]:
    """One of each kind, wider than high, with a darker middle."""
    random = np.random.default_rng(seed)
    found = []
    for colour in COLOURS.values():
        image = random.normal(scale=15, size=(*size, 3)) + np.array(colour)
        image[size[0] // 3 : size[0] // 2, size[1] // 3 : size[1] // 2] -= 60
        found.append(image.clip(0, 255).astype(np.uint8))
    return found


def saved(path: Path, *start, **options) -> Path:
    examples = [Image.fromarray(image) for seed in range(2) for image in photographs(seed)]
    # Plain colours are no photographs, and the start says so.
    with warnings.catch_warnings(action="ignore", category=UnfamiliarExamplesWarning):
        classifier = mm.FewShotClassifier(*start, **options).fit(examples, 2 * list(COLOURS))
    classifier.save(path)
    return path


@pytest.fixture(scope="module")
def pets(tmp_path_factory) -> Path:
    """What README's first command leaves."""
    return saved(tmp_path_factory.mktemp("models") / "pets.safetensors", "photos")


@pytest.fixture(scope="module")
def body(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    return onnx_file(Body(), tmp_path_factory.mktemp("body") / "body.onnx")


def client_of(path: Path, backbone: str | None = None, **parts) -> TestClient:
    app = make_app(on_offer(None), "127.0.0.1", saved=open_saved(path, backbone), **parts)
    return TestClient(app, base_url="http://127.0.0.1:7860")


def answer_of(client, image) -> dict:
    answer = client.post(ASK, json={"image": image})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_page_is_told_the_model_and_its_classes_and_not_where_it_is(pets):
    with client_of(pets) as client:
        listed = client.get("/api/starts")
        found = listed.json()["saved"]
        assert (found["title"], found["names"]) == ("pets.safetensors", list(COLOURS))
        assert (found["size"], found["channels"], found["ink"]) == (84, 3, False)
        assert str(pets.parent) not in listed.text
    assert (
        TestClient(make_app(on_offer(None), "127.0.0.1"), base_url="http://127.0.0.1")
        .get("/api/starts")
        .json()["saved"]
        is None
    )


@pytest.mark.parametrize("kind", ["photos", "ink", "invert", "backbone"])
def test_answers_are_those_of_predict(kind, pets, body, tmp_path):
    path, backbone = tmp_path / "model.safetensors", None
    if kind == "photos":
        path = pets
    elif kind == "backbone":
        backbone = f"{body}:crop=0.6"
        saved(path, backbone=backbone)
    else:
        saved(path, "glyphs-blockiaf", **{kind: True})
    model = mm.FewShotClassifier.load(path, backbone=backbone)
    with client_of(path, backbone) as client:
        for image in photographs(9, size=(300, 400)):
            found = answer_of(client, pixels(image))
            right = model.predict_proba([Image.fromarray(image)])[0]
            assert found["probabilities"] == pytest.approx(right.tolist(), abs=1e-6)
            seen = np.frombuffer(base64.b64decode(found["seen"]["pixels"]), np.uint8)
            reader = getattr(model.fitted_.reader, "images", model.fitted_.reader)
            expected = reader.read([Image.fromarray(image)])[0].movedim(0, 2).flatten()
            np.testing.assert_allclose(seen / 255, expected, atol=1e-6)
        assert sum(answer_of(client, draw("ring"))["probabilities"]) == pytest.approx(1)


def test_a_model_of_the_page_goes_on_where_it_was(tmp_path):
    path = tmp_path / "signs.safetensors"
    with TestClient(make_app(on_offer(None), "127.0.0.1"), base_url="http://127.0.0.1") as client:
        model = client.post("/api/adapt", json=request()).json()["model"]
        path.write_bytes(client.get(f"/api/models/{model}/file").content)
        asked = {"image": draw("zigzag", 7)}
        before = client.post(f"/api/models/{model}/predict", json=asked).json()
        names = [entry["name"] for entry in request()["classes"]]
    with client_of(path) as client:
        after = client.post(ASK, json=asked).json()
        by_name = dict(
            zip(
                client.get("/api/starts").json()["saved"]["names"],
                after["probabilities"],
                strict=True,
            )
        )
    assert [by_name[name] for name in names] == pytest.approx(before["probabilities"], abs=1e-6)
    assert after["seen"] == before["seen"]


def test_it_stays_while_others_come_and_go_and_its_examples_are_not_given_away(pets):
    with client_of(pets, store=ModelStore(most=1)) as client:
        for seed in range(2):
            other = client.post("/api/adapt", json=request(steps=1, seed=seed)).json()["model"]
        assert answer_of(client, pixels(photographs(3)[1]))
        assert client.get(f"/api/models/{SAVED}/file").status_code == 404
        assert client.get(f"/api/models/{SAVED}/onnx").status_code == 404
        without = {"example": 0, "image": pixels(photographs(3)[1])}
        assert client.post(f"/api/models/{SAVED}/without", json=without).status_code == 404
        large = {"image": pixels(np.zeros((512, 512, 3), np.uint8))}
        assert client.post(ASK, json=large).status_code == 200
        assert client.post(f"/api/models/{other}/predict", json=large).status_code == 422
        too_large = {"image": pixels(np.zeros((513, 512, 3), np.uint8))}
        assert client.post(ASK, json=too_large).status_code == 422


def test_without_a_model_there_is_none_to_ask():
    with TestClient(make_app(on_offer(None), "127.0.0.1"), base_url="http://127.0.0.1") as client:
        assert client.post(ASK, json={"image": draw("ring")}).status_code == 404


# The command


def rows(images) -> np.ndarray:
    """A function of the user's own, from images to numbers."""
    return np.stack([np.asarray(image, np.float64).mean((0, 1)) for image in images])


def refused(capsys, *words: str) -> str:
    code = main(["playground", "--port", "0", *map(str, words)])
    errors = capsys.readouterr().err
    assert code == 2
    assert errors.count("\n") == 1, errors
    return errors


def test_what_is_no_model_is_refused_in_a_line(capsys, tmp_path):
    for content in (b"", b"no model", b"\x89PNG\r\n\x1a\n" + bytes(500)):
        (tmp_path / "photo.safetensors").write_bytes(content)
        assert "photo.safetensors" in refused(capsys, tmp_path / "photo.safetensors")
    assert "there is no" in refused(capsys, tmp_path / "nowhere.safetensors")


def test_a_model_that_takes_no_images_is_refused(capsys, tmp_path):
    path = tmp_path / "model.safetensors"
    mm.FewShotClassifier().fit(np.eye(4), list("abab")).save(path)
    assert "does not take images" in refused(capsys, path)
    mm.FewShotRegressor().fit(np.eye(4), [1.0, 2.0, 3.0, 4.0]).save(path)
    assert "FewShotRegressor" in refused(capsys, path)
    saved(path, backbone=rows)
    assert "metamirror predict" in refused(capsys, path, "--backbone", f"{__name__}:rows")


def test_a_backbone_is_that_of_the_model(capsys, body, tmp_path):
    saved(tmp_path / "model.safetensors", backbone=str(body))
    other = f"{body}:crop=0.5"
    assert "another one" in refused(capsys, tmp_path / "model.safetensors", "--backbone", other)
    saved(tmp_path / "model.safetensors", "glyphs-blockiaf")
    assert "without a backbone" in refused(
        capsys, tmp_path / "model.safetensors", "--backbone", body
    )
    assert "other things than images" in refused(capsys, "--backbone", f"{__name__}:rows")


def taught(backbone: str, run: Path | None = None) -> tuple[TestClient, str]:
    """A page with this network among the choices, and what it calls the model taught from it."""
    app = make_app(on_offer(run, backbone), "127.0.0.1")
    client = TestClient(app, base_url="http://127.0.0.1")
    shown = zip(COLOURS, photographs(0, (32, 32)), photographs(1, (32, 32)), strict=True)
    classes = [{"name": name, "examples": [*map(pixels, two)]} for name, *two in shown]
    asked = {"start": OWN, "steps": 0, "lr": None, "classes": classes}
    answer = client.post("/api/adapt", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["plain"]["losses"], "gradient descent on the same features"
    return client, answer.json()["model"]


@pytest.mark.parametrize("trained", [False, True], ids=["ridge", "a run on its features"])
def test_a_network_of_ones_own_can_be_chosen(trained, body, tmp_path, monkeypatch):
    run = tmp_path / "run" if trained else None
    width = len(mm.Backbone(Body(), size=24).features(torch.zeros(1, 3, 24, 24))[0])
    if run:
        mm.save(mm.make_learner("r2d2", mm.models.Linear(width, 5), steps=0), run)
    options = "size=24:crop=0.75:mean=0.1/0.2/0.3"
    client, name = taught(f"{body}:{options}", run)
    listed = client.get("/api/starts").json()["starts"][-1]
    assert listed["size"] == 32, "what the crop leaves has the network's size"
    assert listed["title"].startswith(f"body.onnx:{options} (")
    answers = [
        client.post(f"/api/models/{name}/predict", json={"image": pixels(image)}).json()
        for image in photographs(9, (32, 32))
    ]
    file = client.get(f"/api/models/{name}/file").content
    assert str(body.parent).encode() not in file
    (tmp_path / "model").write_bytes(file)
    monkeypatch.chdir(body.parent)
    model = mm.FewShotClassifier.load(tmp_path / "model")
    right = model.predict_proba([Image.fromarray(image) for image in photographs(9, (32, 32))])
    shares = np.array([answer["probabilities"] for answer in answers])
    np.testing.assert_allclose(shares, right, atol=1e-6)
    exported = onnxruntime.InferenceSession(client.get(f"/api/models/{name}/onnx").content)
    found = exported.run(["probabilities"], {"images": np.stack(photographs(9, (90, 140)))})[0]
    images = [Image.fromarray(image) for image in photographs(9, (90, 140))]
    np.testing.assert_allclose(found, model.predict_proba(images), atol=1e-3)


def test_a_network_and_a_run_on_images_are_one_too_many(body, tmp_path):
    mm.save(mm.make_learner("protonet", mm.models.Conv4(5, 3, 32, 8)), tmp_path / "run")
    with pytest.raises(ValueError, match="takes images, and the network gives numbers"):
        on_offer(tmp_path / "run", str(body))


# The page


def photo(path: Path, image: np.ndarray) -> Path:
    Image.fromarray(image).save(path)
    return path


DROP = """
const bytes = Uint8Array.from(atob(arguments[1]), (c) => c.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], "photo.png", {type: "image/png"}));
arguments[0].dispatchEvent(
  new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
"""


@pytest.mark.slow
@pytest.mark.parametrize("screen", [DESK, PHONE], ids=lambda screen: screen.name)
def test_photographs_are_recognised_at_once_and_another_model_can_be_taught(pets, tmp_path, screen):
    files = {
        name: photo(tmp_path / f"{name}.png", image)
        for name, image in zip(COLOURS, photographs(5, size=(600, 900)), strict=True)
    }
    with served(str(pets)) as server, chromium(server.url) as browser:
        browser.open(screen, still=True)
        assert browser.one("#try-title").text == "Try pets.safetensors"
        assert [bar.text for bar in browser.all("#bars .name")] == list(COLOURS)
        assert not browser.one("#examples").is_displayed()
        for name, file in files.items():
            content = base64.b64encode(file.read_bytes()).decode()
            browser.run(DROP, browser.one("h1"), content)
            browser.until(lambda name=name: browser.likeliest() == name)
        assert not browser.one("#files").is_displayed()
        assert browser.one("#seen").get_attribute("width") == "84"
        fits = "return document.documentElement.scrollWidth <= innerWidth"
        assert browser.run(fits)
        if folder := os.environ.get("METAMIRROR_SCREENSHOTS"):
            browser.screenshot(Path(folder) / f"saved-{screen.name}.png")
        (tmp_path / "broken.png").write_bytes(b"no image")
        browser.one("#question-file").send_keys(str(tmp_path / "broken.png"))
        browser.until(lambda: "broken.png is not an image" in browser.one("#problem").text)
        browser.click("#shoot")
        browser.until(lambda: browser.run("return document.getElementById('video').videoWidth > 0"))
        browser.click("#take")
        browser.until(lambda: "Most likely" in browser.one("#verdict").text)
        assert not browser.one("#problem").is_displayed(), "it was about another image"
        browser.click("#teach")
        assert browser.one("#examples").is_displayed()
        assert browser.one("#try-title").text.split() == ["3", "Try", "it"]
        browser.click("#letters")
        browser.until(lambda: browser.likeliest() is not None)
        assert browser.one("#files").is_displayed()
        browser.click("#reset")
        assert [bar.text for bar in browser.all("#bars .name")] == list(COLOURS)
        assert browser.likeliest() is None
        assert browser.complaints() == []
