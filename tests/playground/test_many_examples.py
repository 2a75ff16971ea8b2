"""What the page is told of unfamiliar examples, and how many it may send."""

from __future__ import annotations

import json

import numpy as np
import pytest

from metamirror.data.image_ranges import SEEN
from metamirror.estimators.starts import SHIPPED
from metamirror.playground import limits
from metamirror.playground.images import sample
from metamirror.playground.models import OWN, on_offer
from tests.estimators.test_familiarity import clouds
from tests.playground.drawings import pixels, request
from tests.playground.test_api import client_of


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """With a run of one's own: a shipped start under another name."""
    run = tmp_path_factory.mktemp("runs") / "mine"
    run.mkdir()
    for file in (SHIPPED / "glyphs-maml").iterdir():
        (run / file.name).write_bytes(file.read_bytes())
    assert (run / SEEN).is_file()
    with client_of(on_offer(run)) as client:
        yield client


def asked(start: str, classes: list, steps: int = 1) -> dict:
    return {"start": start, "steps": steps, "lr": None, "classes": classes}


def photographs(classes: int, each: int, size: int = 84) -> list[dict]:
    images = [clouds(each, seed)[:, :size, :size] for seed in range(classes)]
    wide = [np.pad(own, ((0, 0), (0, size - 60), (0, size - 60), (0, 0)), "wrap") for own in images]
    return [
        {"name": f"class {i}", "examples": [pixels(one) for one in own]}
        for i, own in enumerate(wide)
    ]


@pytest.mark.parametrize(("start", "name"), [("glyphs-maml", "glyphs-maml"), (OWN, "mine")])
def test_the_answer_says_when_examples_are_unfamiliar(client, start, name):
    noise = np.random.default_rng(0).integers(0, 256, (2, 60, 60, 3), dtype=np.uint8)
    classes = [{"name": str(i), "examples": [pixels(image)]} for i, image in enumerate(noise)]
    found = client.post("/api/adapt", json=asked(start, classes)).json()
    assert found["note"].startswith(f"the examples do not look like what {name} was trained on")
    found = client.post("/api/adapt", json=asked(start, sample(0)["classes"])).json()
    assert found["note"] is None


def test_photographs_are_familiar_to_the_start_for_them_and_drawings_are_not(client):
    few = client.post("/api/adapt", json=asked("photos", photographs(2, 1), 0)).json()
    assert few["note"] is None
    drawn = client.post("/api/adapt", json=request("photos", 0)).json()
    assert "what photos was trained on" in drawn["note"]


def test_twenty_photographs_of_twenty_classes_are_one_request(client):
    wanted = asked("photos", photographs(20, 20), 0)
    assert 10_000_000 < len(json.dumps(wanted)) < limits.BODY_BYTES
    found = client.post("/api/adapt", json=wanted)
    assert found.status_code == 200, found.text
    assert found.json()["plain"] is None, "which would take as long again"
    assert found.json()["chosen"]["milliseconds"] > 0


def test_examples_times_steps_are_bounded(client):
    wanted = request(steps=20, shots=20)
    assert client.post("/api/adapt", json=wanted).status_code == 200
    many = asked("photos", photographs(7, 20, 60), 15)
    answer = client.post("/api/adapt", json=many)
    assert answer.status_code == 422
    assert "140 examples times 15 steps are 2,100" in answer.json()["error"]
