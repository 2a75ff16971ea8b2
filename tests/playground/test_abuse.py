"""Requests that nobody's page sends: each is told what is wrong with it, and the server goes on."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from metamirror.playground import limits
from metamirror.playground.app import make_app
from metamirror.playground.models import on_offer
from metamirror.playground.requests import read_adapt, read_predict
from tests.playground.drawings import draw, pixels, request

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client():
    app = make_app(on_offer(None), "127.0.0.1")
    with TestClient(app, base_url="http://127.0.0.1:7860") as client:
        yield client


def changed(path, value):
    """A request that is in order but for one place."""
    asked = request(steps=1)
    at = asked
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return asked


def without(name):
    asked = request(steps=1)
    del asked[name]
    return asked


NAME = ("classes", 0, "name")
EXAMPLES = ("classes", 0, "examples")
IMAGE = ("classes", 0, "examples", 0)
STROKES = (*IMAGE, "strokes")
GREY = pixels(np.eye(28, dtype=np.uint8)[..., None] * 255)
MANY = [{"name": f"class {i}", "examples": [draw("ring", i)]} for i in range(1000)]

WRONG = {
    "a number for a request": 7,
    "nothing for a request": None,
    "a list for a request": [],
    "no start": without("start"),
    "no lr": without("lr"),
    "an unknown field": changed(("path",), "/etc/passwd"),
    "an unknown start": changed(("start",), "no-such-start"),
    "a start that is a path": changed(("start",), "../../../../etc/passwd"),
    "a start that is a folder": changed(("start",), "/tmp"),
    "a start that is no text": changed(("start",), {"a": 1}),
    "a long start": changed(("start",), "x" * 100_000),
    "negative steps": changed(("steps",), -1),
    "a million steps": changed(("steps",), 1_000_000),
    "half a step": changed(("steps",), 2.5),
    "steps that are text": changed(("steps",), "5"),
    "steps that are true": changed(("steps",), True),
    "steps beyond all numbers": changed(("steps",), 10**400),
    "a negative step size": changed(("lr",), -0.1),
    "a huge step size": changed(("lr",), 1e9),
    "a step size beyond all numbers": changed(("lr",), 10**400),
    "a step size in words": changed(("lr",), "NaN"),
    "one class": changed(("classes",), request()["classes"][:1]),
    "no classes": changed(("classes",), []),
    "six classes": changed(("classes",), MANY[:6]),
    "1,000 classes": changed(("classes",), MANY),
    "classes that are text": changed(("classes",), "abc"),
    "a class that is a number": changed(("classes", 1), 5),
    "an empty name": changed(NAME, ""),
    "a blank name": changed(NAME, " \t "),
    "a name twice": changed(NAME, "cross"),
    "a name twice, with blanks": changed(NAME, " cross "),
    "a long name": changed(NAME, "x" * 41),
    "a name that climbs": changed(NAME, "../../etc/passwd"),
    "a name that is the parent": changed(NAME, ".."),
    "a name with a backslash": changed(NAME, "..\\..\\boot.ini"),
    "a name with a zero": changed(NAME, "a\0b"),
    "a name with a line break": changed(NAME, "a\r\nset-cookie: b"),
    "half a letter for a name": changed(NAME, "\ud800"),
    "a name that turns the line around": changed(NAME, "a\u202eb"),
    "a name that is a number": changed(NAME, 5),
    "a name of nothing to be seen": changed(NAME, "\u200d\u200c"),
    "a parent with joiners": changed(NAME, ".\u200d."),
    "no examples": changed(EXAMPLES, []),
    "too many examples": changed(EXAMPLES, [draw("ring", i) for i in range(21)]),
    "an image that is text": changed(IMAGE, "data:image/png;base64,AAAA"),
    "an image that is a path": changed(IMAGE, {"path": "/etc/passwd"}),
    "both kinds of image": changed(IMAGE, {**GREY, **draw("ring")}),
    "no strokes": changed(STROKES, []),
    "an empty stroke": changed(STROKES, [[]]),
    "a point with one number": changed(STROKES, [[[0.5]]]),
    "a point with three numbers": changed(STROKES, [[[0.5, 0.5, 0.5]]]),
    "a point outside": changed(STROKES, [[[0.5, 1.5]]]),
    "a point that is text": changed(STROKES, [["ab"]]),
    "a point that is true": changed(STROKES, [[[True, False]]]),
    "too many strokes": changed(STROKES, [[[0.5, 0.5]]] * 101),
    "too many points": changed(STROKES, [[[0.5, 0.5]] * 100] * 50),
    "a width of zero": changed(IMAGE, {**GREY, "width": 0}),
    "a negative height": changed(IMAGE, {**GREY, "height": -28}),
    "an image of a gigapixel": changed(IMAGE, {**GREY, "width": 32768, "height": 32768}),
    "two channels": changed(IMAGE, {**GREY, "channels": 2}),
    "channels that are true": changed(IMAGE, {**GREY, "channels": True}),
    "too few pixels": changed(IMAGE, {**GREY, "height": 29}),
    "too many pixels": changed(IMAGE, {**GREY, "height": 27}),
    "pixels that are no base64": changed(IMAGE, {**GREY, "pixels": "*" * 1048}),
    "pixels that are not ascii": changed(IMAGE, {**GREY, "pixels": "é" * 1048}),
    "pixels that are numbers": changed(IMAGE, {**GREY, "pixels": [0.5] * 784}),
    "a blank image": changed(IMAGE, {**GREY, "pixels": base64.b64encode(bytes(784)).decode()}),
}

MALFORMED = {
    "nothing": b"",
    "half a document": json.dumps(request()).encode()[:-20],
    "two documents": b"{}{}",
    "no text": b"\xff\xfe\x00\x01" * 10,
    "half a letter": b'{"start": "\xc3"}',
    "a zero": b"\0",
    "brackets": b"[" * 500_000,
    "objects in objects": b'{"a":' * 200_000,
    "NaN for a number": json.dumps(changed(("lr",), float("nan"))).encode(),
    "infinity for a number": json.dumps(changed(("lr",), float("inf"))).encode(),
    "NaN in a drawing": json.dumps(changed(STROKES, [[[float("nan"), 0.5]]])).encode(),
    "NaN for pixels": json.dumps(changed(IMAGE, {**GREY, "pixels": [float("nan")] * 784})).encode(),
    "a number of a million digits": b'{"steps": ' + b"9" * 1_000_000 + b"}",
}


def refused(answer, *statuses):
    assert answer.status_code in statuses, answer.text
    reason = answer.json()["error"]
    assert 10 < len(reason) < 400
    assert "Traceback" not in reason
    return reason


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(client, case):
    body = json.dumps(WRONG[case]).encode()
    refused(client.post("/api/adapt", content=body, headers=JSON), 422)


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_no_json_is_refused(client, case):
    refused(client.post("/api/adapt", content=MALFORMED[case], headers=JSON), 400)


def test_the_reason_names_the_place_the_value_and_the_rule(client):
    answer = client.post("/api/adapt", json=changed(("steps",), -3))
    assert refused(answer, 422) == "steps is -3; it must be a whole number from 0 to 20"
    answer = client.post("/api/adapt", json=changed((*EXAMPLES[:1], 2, "examples", 0), 7))
    assert "classes[2].examples[0] is 7" in refused(answer, 422)


def test_steps_into_infinity_are_a_reason_and_not_a_model(client):
    asked = request(steps=20, lr=limits.LARGEST_LR)
    answer = client.post("/api/adapt", json=asked)
    # Batch normalisation may keep even such steps finite.
    if answer.status_code != 200:
        assert "lr" in refused(answer, 422)
    else:
        assert all(loss is not None for loss in answer.json()["chosen"]["losses"])


def test_questions_to_a_model_are_read_as_strictly(client):
    model = client.post("/api/adapt", json=request(steps=1)).json()["model"]
    where = f"/api/models/{model}/predict"
    for wrong in (None, {}, {"image": None}, {"image": GREY, "path": "x"}, {"images": []}):
        refused(client.post(where, content=json.dumps(wrong), headers=JSON), 422)
    blank = {**GREY, "pixels": base64.b64encode(bytes(784)).decode()}
    assert "blank" in refused(client.post(where, json={"image": blank}), 422)
    assert client.post(where, json={"image": draw("ring")}).status_code == 200


def test_questions_about_an_example_are_read_as_strictly(client):
    asked = request(steps=1, shapes=("ring", "bar"), shots=2)
    asked["classes"][1]["examples"].pop()
    model = client.post("/api/adapt", json=asked).json()["model"]
    where, image = f"/api/models/{model}/without", draw("ring")
    wrong = (
        None,
        {},
        {"example": 0},
        {"example": 0, "image": None},
        {"example": -1, "image": image},
    )
    for asked in (*wrong, {"example": 100, "image": image}, {"example": 0.5, "image": image}):
        refused(client.post(where, content=json.dumps(asked), headers=JSON), 422)
    for example in (2, 3):  # alone in its class; not there
        reason = refused(client.post(where, json={"example": example, "image": image}), 422)
        assert "one of 3, of a class with another one" in reason
    assert client.post(where, json={"example": 1, "image": image}).status_code == 200


@pytest.mark.parametrize(
    "name",
    ["x", "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "a" * 5000, "run", "glyphs-maml", "é"],
)
def test_models_are_found_by_their_name_alone(client, name):
    refused(client.get(f"/api/models/{name}/file"), 404)
    refused(client.get(f"/api/models/{name}/onnx"), 404)
    refused(client.post(f"/api/models/{name}/without", json={"example": 0, "image": GREY}), 404)
    refused(client.post(f"/api/models/{name}/predict", json={"image": GREY}), 404)


@pytest.mark.parametrize("number", ["5", "-1", "x", "1e3", "9" * 5000, "00"])
def test_sets_of_letters_are_counted_from_nothing(client, number):
    refused(client.get(f"/api/samples/{number}"), 404)


@pytest.mark.parametrize(
    "path",
    [
        "/..%2fapp.py",
        "/%2e%2e/app.py",
        "/../../../../etc/passwd",
        "/..%5capp.py",
        "//etc/passwd",
        "/index.html%00.js",
        "/main.js/",
        "/__init__.py",
        "/page/",
    ],
)
def test_no_address_reaches_the_file_system(client, path):
    refused(client.get(path), 404)


def test_class_names_of_any_language_are_fine(client):
    for name in ("ბან", "日本", "<script>alert(1)</script>", "a.b", "می\u200cخواهم", "👩\u200d🔬"):
        answer = client.post("/api/adapt", json=changed(NAME, name.replace("/", "")))
        assert answer.status_code == 200, answer.text


def test_after_all_that_the_server_still_learns(client):
    for wrong in [*WRONG.values()][::7]:
        client.post("/api/adapt", content=json.dumps(wrong), headers=JSON)
    model = client.post("/api/adapt", json=request(shapes=("ring", "bar"))).json()["model"]
    answer = client.post(f"/api/models/{model}/predict", json={"image": draw("bar", 4)})
    assert np.argmax(answer.json()["probabilities"]) == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["start", "steps", "lr", "classes", "name", "examples", "strokes"])
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(anything, st.sampled_from(["start", "steps", "lr", "classes", None]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_sent_is_read_or_refused(value, field):
    body = json.dumps(value if field is None else changed((field,), value)).encode()
    for read in (read_adapt, read_predict):
        refusal = None
        try:
            read(body)
        except HTTPException as error:
            refusal = error
        assert refusal is None or refusal.status_code in (400, 422)
