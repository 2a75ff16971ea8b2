"""What the server answers to requests that are in order."""

from __future__ import annotations

import base64
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

import metamirror as mm
from metamirror.core.files import write_json
from metamirror.core.normalisation import recorded_statistics
from metamirror.data.glyphs.alphabet import letters
from metamirror.estimators import starts
from metamirror.estimators.backbones import our_runs
from metamirror.estimators.fitting import named_statistics
from metamirror.estimators.inputs.images import Images
from metamirror.playground.app import Workers, make_app
from metamirror.playground.images import SETS, prepare
from metamirror.playground.models import OWN, ModelStore, on_offer
from metamirror.storage import tensor_file
from tests.playground.drawings import SHAPES, draw, pixels, request

STARTS = on_offer(None)
LETTERS = {key: start for key, start in STARTS.items() if start.reader.ink}


def client_of(choices, **parts) -> TestClient:
    return TestClient(make_app(choices, "127.0.0.1", **parts), base_url="http://127.0.0.1:7860")


@pytest.fixture(scope="module")
def client():
    with client_of(STARTS) as client:
        yield client


def adapted(client, **asked):
    answer = client.post("/api/adapt", json=request(**asked))
    assert answer.status_code == 200, answer.text
    return answer.json()


def ask(client, model, image):
    answer = client.post(f"/api/models/{model}/predict", json={"image": image})
    assert answer.status_code == 200, answer.text
    return answer.json()["probabilities"]


# The page


def test_the_page_and_all_its_parts_are_served(client):
    page = client.get("/").text
    parts = set(re.findall(r'(?:src|href)="([^"#]+)"', page))
    scripts = ["main.js"]
    for name in scripts:
        scripts += re.findall(r'from "./(\w+\.js)"', client.get(f"/{name}").text)
    parts |= set(scripts)
    shipped = {file.name for file in files("metamirror.playground").joinpath("page").iterdir()}
    assert parts | {"index.html"} >= shipped
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for name in parts:
        answer = client.get(f"/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])


def test_no_part_of_the_page_names_another_host():
    for file in files("metamirror.playground").joinpath("page").iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//\w+\.\w", text), file.name


def test_the_starts_are_listed_with_what_the_page_needs(client):
    found = client.get("/api/starts").json()
    assert [start["key"] for start in found["starts"]] == list(STARTS)
    assert "glyphs-maml" in STARTS
    assert found["first"] in STARTS
    for start in found["starts"]:
        photos = start["key"] == "photos"
        assert start["most_classes"] == (20 if photos else 5)
        assert 0 < start["lr"] < 10
        assert (0 if photos else 1) <= start["steps"] <= 20


# Adapting and asking


@pytest.mark.parametrize("start", LETTERS)
def test_new_drawings_of_five_signs_are_recognised_from_one_example_each(client, start):
    found = adapted(client, start=start)
    right = 0
    for seed in range(1, 4):
        for i, shape in enumerate(SHAPES):
            chances = ask(client, found["model"], draw(shape, 1000 + seed))
            assert sum(chances) == pytest.approx(1)
            right += int(np.argmax(chances)) == i
    assert right >= 12


@pytest.mark.parametrize("start", LETTERS)
def test_the_losses_are_those_of_the_estimator_on_the_same_images(client, start):
    asked = request(start=start, steps=3, shots=2)
    found = adapted(client, start=start, steps=3, shots=2)
    x, y = [], []
    for entry in asked["classes"]:
        for example in entry["examples"]:
            lines = [np.float32(line) for line in example["strokes"]]
            x.append(prepare(lines, Images(1, 28, ink=True)))
            y.append(entry["name"])
    fitted = mm.FewShotClassifier(start, steps=3).fit(np.stack(x), y)
    assert found["chosen"]["losses"] == pytest.approx(fitted.losses_, rel=1e-4)
    assert len(found["chosen"]["losses"]) == 4
    assert found["chosen"]["losses"][-1] < found["chosen"]["losses"][0]
    assert found["chosen"]["milliseconds"] > 0


def test_gradient_descent_stands_beside_every_other_geometry(client):
    alone = adapted(client, start="glyphs-maml")
    assert alone["plain"] is None
    for start in set(LETTERS) - {"glyphs-maml"}:
        beside = adapted(client, start=start)["plain"]
        assert beside["losses"] == pytest.approx(alone["chosen"]["losses"], rel=1e-4)


def test_a_step_size_is_for_both_and_none_is_each_ones_own(client):
    start = next(key for key in LETTERS if key != "glyphs-maml")
    own = adapted(client, start=start)
    assert (own["chosen"]["lr"], own["plain"]["lr"]) == (STARTS[start].lr, STARTS["glyphs-maml"].lr)
    given = adapted(client, start=start, lr=0.02)
    assert (given["chosen"]["lr"], given["plain"]["lr"]) == (0.02, 0.02)
    assert given["chosen"]["losses"][1:] != own["chosen"]["losses"][1:]


def test_probabilities_come_in_the_order_of_the_page(client):
    shapes = ("zigzag", "bar", "ring")  # not the order of the alphabet
    found = adapted(client, shapes=shapes, shots=3)
    for i, shape in enumerate(shapes):
        assert int(np.argmax(ask(client, found["model"], draw(shape, 77)))) == i


def test_a_prediction_depends_on_nothing_but_its_image(client):
    found = adapted(client)
    alone = ask(client, found["model"], draw("ring", 5))
    for shape in SHAPES:
        ask(client, found["model"], draw(shape, 6))
    assert ask(client, found["model"], draw("ring", 5)) == alone


def test_images_and_drawings_may_be_mixed(client):
    asked = request(shapes=("ring", "cross"))
    photo = np.full((60, 40, 3), 250, np.uint8)
    photo[10:50, 18:22] = 20
    asked["classes"].append({"name": "bar", "examples": [pixels(photo)]})
    found = client.post("/api/adapt", json=asked).json()
    assert int(np.argmax(ask(client, found["model"], draw("bar", 3)))) == 2


@pytest.mark.parametrize("start", LETTERS)
def test_the_download_is_the_adapted_model(client, start, tmp_path):
    found = adapted(client, start=start)
    answer = client.get(f"/api/models/{found['model']}/file")
    assert re.fullmatch(
        r'attachment; filename="[\w-]+\.safetensors"', answer.headers["content-disposition"]
    )
    (tmp_path / "model.safetensors").write_bytes(answer.content)
    model = mm.FewShotClassifier.load(tmp_path / "model.safetensors")
    assert sorted(model.classes_) == sorted(SHAPES)
    # Dark ink on light paper, in a corner: the file treats it as the page does.
    photo = np.full((100, 80, 3), 220, np.uint8)
    photo[10:60, 20:26] = 40
    photo[54:60, 20:60] = 40
    Image.fromarray(photo).save(tmp_path / "photo.png")
    chances = model.predict_proba([tmp_path / "photo.png"])[0]
    by_name = dict(zip(model.classes_, chances, strict=True))
    assert ask(client, found["model"], pixels(photo)) == pytest.approx(
        [by_name[shape] for shape in SHAPES], abs=1e-6
    )
    assert max(by_name, key=by_name.get) == "corner"


def test_too_long_steps_of_gradient_descent_leave_the_chosen_geometry_its_answer(
    client, monkeypatch
):
    from metamirror.playground import app

    def only_the_chosen(choice, wanted, adapt=app.adapt):
        if choice.key == "glyphs-maml":
            raise ValueError("adaptation left the finite numbers")
        return adapt(choice, wanted)

    monkeypatch.setattr(app, "adapt", only_the_chosen)
    found = adapted(client, start=next(key for key in LETTERS if key != "glyphs-maml"))
    assert found["plain"]["losses"] is None
    assert "finite" in found["plain"]["error"]
    assert found["chosen"]["losses"]


def test_a_model_that_had_to_go_is_adapted_again(client):
    with client_of(STARTS, store=ModelStore(most=1)) as small:
        gone, kept = (adapted(small, steps=1)["model"] for _ in range(2))
        answer = small.post(f"/api/models/{gone}/predict", json={"image": draw("ring")})
        assert answer.status_code == 404
        assert "Adapt again" in answer.json()["error"]
        assert ask(small, kept, draw("ring"))


def test_a_server_with_too_much_to_do_says_when_to_come_back():
    gate = threading.Event()
    workers = Workers(threads=1, most_waiting=0)
    with client_of(STARTS, workers=workers) as busy:
        workers.submit(gate.wait)
        answer = busy.post("/api/adapt", json=request(steps=1))
        gate.set()
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]


# Letters to try it with


def test_the_letters_are_of_scripts_that_no_start_has_seen():
    unseen = {letter.character for letter in letters() if letter.split == "test"}
    assert set("".join(SETS)) <= unseen
    assert len(set("".join(SETS))) == 5 * len(SETS)


def test_the_letters_can_be_adapted_to_and_most_others_are_recognised(client):
    right = total = 0
    for number in range(len(SETS)):
        given = client.get(f"/api/samples/{number}").json()
        names = [entry["name"] for entry in given["classes"]]
        assert len(set(names)) == 5
        asked = {"start": "glyphs-maml", "steps": 5, "lr": None, "classes": given["classes"]}
        model = client.post("/api/adapt", json=asked).json()["model"]
        for one in given["tries"]:
            chances = ask(client, model, one["image"])
            right += names[int(np.argmax(chances))] == one["name"]
            total += 1
    assert right / total > 0.6


# A run of one's own


def test_a_run_of_ones_own_is_offered_and_works_with_its_colours_and_size(tmp_path):
    torch.manual_seed(0)
    model = mm.models.Conv4(ways=3, channels=3, image_size=32, width=8)
    mm.save(mm.make_learner("metasgd", model, steps=2, lr=0.05), tmp_path / "mine")
    choices = on_offer(tmp_path / "mine")
    with client_of(choices) as client:
        listed = client.get("/api/starts")
        assert str(tmp_path) not in listed.text
        mine = next(s for s in listed.json()["starts"] if s["key"] == OWN)
        assert mine["title"].startswith("mine")
        assert (mine["most_classes"], mine["channels"], mine["lr"]) == (3, 3, 0.05)
        photos = np.random.default_rng(0).integers(0, 255, (3, 40, 56, 3), dtype=np.uint8)
        classes = [{"name": str(i), "examples": [pixels(p)]} for i, p in enumerate(photos)]
        asked = {"start": OWN, "steps": 20, "lr": None, "classes": classes}
        found = client.post("/api/adapt", json=asked)
        assert found.status_code == 200, found.text
        assert found.json()["plain"]["losses"], "gradient descent sees the same images in grey"
        for i, photo in enumerate(photos):
            assert int(np.argmax(ask(client, found.json()["model"], pixels(photo)))) == i
        file = client.get(f"/api/models/{found.json()['model']}/file").content
        assert str(tmp_path).encode() not in file, "a download tells nothing of the machine"
        too_many = client.post("/api/adapt", json=request(start=OWN))
        assert too_many.status_code == 422
        assert "3" in too_many.json()["error"]


# Photographs


def photographs(count: int, seed: int = 0) -> list[dict]:
    """Colours that differ from class to class more than within one."""
    random = np.random.default_rng(seed)
    colours = np.random.default_rng(5).integers(0, 256, (count, 1, 1, 3))
    noise = random.normal(scale=12, size=(count, 40, 56, 3))
    return [pixels(image) for image in (colours + noise).clip(0, 255).astype(np.uint8)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A page whose own start takes photographs, with a head that is computed."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("photos") / "like"
    mm.save(mm.make_learner("protonet", mm.models.Conv4(5, 3, 32, 8)), folder)
    with client_of(on_offer(folder)) as client:
        yield client


def taught(client, classes: int, shots: int = 2, start: str = OWN):
    images = [photographs(classes, seed) for seed in range(shots)]
    entries = [
        {"name": f"class {i:02d}", "examples": [own[i] for own in images]} for i in range(classes)
    ]
    asked = {"start": start, "steps": 0, "lr": None, "classes": entries}
    answer = client.post("/api/adapt", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_start_for_photographs_tells_twenty_classes_apart(photos):
    mine = next(s for s in photos.get("/api/starts").json()["starts"] if s["key"] == OWN)
    assert (mine["most_classes"], mine["size"], mine["channels"], mine["ink"]) == (20, 32, 3, False)
    found = taught(photos, 20)
    new = photographs(20, seed=9)
    right = sum(
        int(np.argmax(ask(photos, found["model"], image))) == i for i, image in enumerate(new)
    )
    assert right >= 15
    too_many = {"start": OWN, "steps": 0, "lr": None, "classes": []}
    too_many["classes"] = [{"name": str(i), "examples": new[:1]} for i in range(21)]
    assert photos.post("/api/adapt", json=too_many).status_code == 422


def test_beside_photographs_stands_gradient_descent_from_an_empty_head(photos):
    plain = taught(photos, 8)["plain"]
    assert plain["losses"][0] == pytest.approx(np.log(8), abs=1e-4)
    assert len(plain["losses"]) == 6, "though no step was asked for"
    assert plain["losses"][-1] < plain["losses"][0]
    assert len(taught(photos, 20, shots=5)["plain"]["losses"]) == 2, "the work has a limit"


def test_a_colour_run_that_is_gradient_descent_has_nothing_beside_it(tmp_path):
    mm.save(mm.make_learner("maml", mm.models.Conv4(5, 3, 32, 8), steps=2), tmp_path / "mine")
    with client_of(on_offer(tmp_path / "mine")) as client:
        assert taught(client, 3)["plain"] is None


def test_the_change_without_an_example_is_that_of_an_adaptation_without_it(photos, tmp_path):
    found = taught(photos, 3, shots=3)
    where, image = f"/api/models/{found['model']}", photographs(3, seed=4)[1]
    (tmp_path / "model").write_bytes(photos.get(f"{where}/file").content)
    model = mm.FewShotClassifier.load(tmp_path / "model")
    x, y = model.support_.x, model.classes_[model.support_.y.numpy()]
    seen = np.frombuffer(base64.b64decode(image["pixels"]), np.uint8).reshape(1, 40, 56, 3)
    probabilities = model.predict_proba(seen)[0]
    best = int(probabilities.argmax())
    for example in (0, 4, 8):
        kept = [i for i in range(9) if i != example]
        again = mm.FewShotClassifier(model.learner_, calibrate=False).fit(x[kept], y[kept])
        logits = torch.from_numpy(np.log(again.predict_proba(seen)[0])) / model.temperature_
        loss = -float(logits.log_softmax(0)[best])
        answer = photos.post(f"{where}/without", json={"example": example, "image": image})
        expected = loss + float(np.log(probabilities[best]))
        assert answer.json()["change"] == pytest.approx(expected, abs=1e-3)


def test_a_photograph_under_another_name_speaks_against_its_own_class(photos):
    # The third example of class 0 shows class 1.
    wrong, images = photographs(2, seed=6)[1], [photographs(2, seed) for seed in range(3)]
    entries = [
        {"name": "zero", "examples": [images[0][0], images[1][0], wrong]},
        {"name": "one", "examples": [own[1] for own in images]},
    ]
    asked = {"start": OWN, "steps": 0, "lr": None, "classes": entries}
    where = f"/api/models/{photos.post('/api/adapt', json=asked).json()['model']}/without"
    question = photographs(2, seed=8)[0]
    changes = [
        photos.post(where, json={"example": i, "image": question}).json()["change"]
        for i in range(3)
    ]
    assert min(changes) == changes[2] < 0


def test_the_onnx_file_predicts_what_the_page_does(photos):
    found = taught(photos, 7)
    answer = photos.get(f"/api/models/{found['model']}/onnx")
    assert answer.headers["content-disposition"].endswith('.onnx"')
    session = onnxruntime.InferenceSession(answer.content, providers=["CPUExecutionProvider"])
    for image in photographs(7, seed=3):
        raw = np.frombuffer(base64.b64decode(image["pixels"]), np.uint8).reshape(1, 40, 56, 3)
        shares, labels = session.run(None, {"images": raw})
        shown = ask(photos, found["model"], image)
        np.testing.assert_allclose(shares[0], shown, atol=2e-3)
        assert labels[0] == f"class {int(np.argmax(shown)):02d}"


def test_without_the_extra_the_page_says_how_to_get_it(photos, monkeypatch):
    assert photos.get("/api/starts").json()["no_onnx"] is None
    monkeypatch.setitem(sys.modules, "onnx", None)
    words = photos.get("/api/starts").json()["no_onnx"]
    assert "pip install 'metamirror[export]'" in words
    answer = photos.get(f"/api/models/{taught(photos, 2)['model']}/onnx")
    assert (answer.status_code, answer.json()["error"]) == (422, words)


def test_a_start_with_a_backbone_writes_nothing_to_disk(tmp_path, monkeypatch):
    torch.manual_seed(0)
    body = mm.make_learner("protonet", mm.models.Conv4(5, 3, 32, 8))
    with torch.no_grad(), recorded_statistics() as statistics:
        body.model(torch.rand(16, 3, 32, 32))
    place = tmp_path / "starts" / "photos"
    mm.save(mm.make_learner("protonet", mm.models.Linear(32, 5)), place)
    mm.save(body, place / "backbone")
    stored = tensor_file.pack(named_statistics(body.model, statistics), {})
    (place / "backbone" / our_runs.STATISTICS).write_bytes(stored)
    for module in (starts, our_runs):
        monkeypatch.setattr(module, "SHIPPED", place.parent)
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "home"))
    with client_of(on_offer(None)) as client:
        found = taught(client, 12, start="photos")
        assert found["plain"]["losses"][0] == pytest.approx(np.log(12), abs=1e-4)
        where, image = f"/api/models/{found['model']}", photographs(12, seed=9)[3]
        assert int(np.argmax(ask(client, found["model"], image))) == 3
        answer = client.post(f"{where}/without", json={"example": 6, "image": image})
        assert answer.status_code == 200, answer.text
        (tmp_path / "model").write_bytes(client.get(f"{where}/file").content)
    assert not (tmp_path / "home").exists()
    assert len(mm.FewShotClassifier.load(tmp_path / "model").classes_) == 12


@pytest.mark.slow
def test_others_get_right_answers_while_a_model_is_exported(photos):
    found = taught(photos, 5)
    new = photographs(5, seed=3)
    right = [ask(photos, found["model"], image) for image in new]
    with ThreadPoolExecutor(3) as pool:
        files = [pool.submit(photos.get, f"/api/models/{found['model']}/onnx") for _ in range(2)]
        while not all(file.done() for file in files):
            again = taught(photos, 5)
            assert again["chosen"]["losses"] == pytest.approx(found["chosen"]["losses"], abs=1e-6)
            for image, shares in zip(new, right, strict=True):
                assert ask(photos, again["model"], image) == pytest.approx(shares, abs=1e-6)
    assert [file.result().status_code for file in files] == [200, 200]


@pytest.mark.parametrize(
    ("data", "ink"),
    [("omniglot", True), ("glyphs", True), ("folder:/photos", False), (None, False)],
)
def test_a_grey_run_is_shown_what_it_was_trained_on(tmp_path, data, ink):
    model = mm.models.Conv4(ways=3, channels=1, image_size=28, width=4)
    mm.save(mm.make_learner("maml", model, steps=2, lr=0.1), tmp_path / "mine" / "best")
    if data is not None:
        write_json(tmp_path / "mine" / "config.json", {"method": "maml", "data": data})
    photos = np.random.default_rng(0).integers(100, 140, (2, 28, 28, 1), dtype=np.uint8)
    photos[:, 10:12] = 20
    classes = [{"name": str(i), "examples": [pixels(p)]} for i, p in enumerate(photos)]
    with client_of(on_offer(tmp_path / "mine")) as client:
        asked = {"start": OWN, "steps": 1, "lr": None, "classes": classes}
        found = client.post("/api/adapt", json=asked).json()
        where = f"/api/models/{found['model']}"
        seen = client.post(f"{where}/predict", json={"image": pixels(photos[0])}).json()["seen"]
        assert (seen == pixels(photos[0])) != ink
        (tmp_path / "model").write_bytes(client.get(f"{where}/file").content)
    assert mm.FewShotClassifier.load(tmp_path / "model").ink == ink


def test_a_run_without_images_is_refused(tmp_path):
    mm.save(mm.make_learner("maml", mm.models.MLP(1, 1)), tmp_path / "sine")
    with pytest.raises(ValueError, match="takes no images"):
        on_offer(tmp_path / "sine")
