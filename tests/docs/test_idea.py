"""The figure of docs/idea.md in a real browser, from the disk, against the library's own paths."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.keys import Keys

import gallery
import metamirror as mm
from metamirror.core.files import read_json
from metamirror.core.geometry import GradientDescent
from metamirror.testing import check_mirror_map
from tests.docs.test_site import ROOT, build
from tests.playground.browsing import DESK, PHONE, chromium

NUMBERS = read_json(gallery.RESULTS / "idea.json")
MINIMUM = (0.4, 1.1)


@pytest.fixture(scope="module")
def parts():
    """The classes of the script that learned the map, with what it learned."""
    before = torch.get_default_dtype()
    space: dict[str, object] = {}
    for cell in gallery.cells((gallery.SCRIPTS / "own_geometry.py").read_text()):
        if cell.is_code and "for lr in" not in cell.text:
            exec(cell.text, space)
        if "class Mirror(" in cell.text:
            break
    numbers = {name: torch.tensor(value) for name, value in NUMBERS.items()}
    maps = {"constant": space["Ridges"](0), "mirror": space["Ridges"](len(numbers["b"]))}
    with torch.no_grad():
        floor = 0.01 * torch.eye(2)
        maps["constant"].root.copy_(torch.linalg.cholesky(numbers["P"] - floor))
        maps["mirror"].root.copy_(torch.linalg.cholesky(numbers["A"] - floor))
        maps["mirror"].u.copy_(numbers["u"])
        maps["mirror"].b.copy_(numbers["b"])
        maps["mirror"].log_w.copy_(numbers["w"].log())
    yield space, maps
    torch.set_default_dtype(before)


def test_what_was_learned_is_a_mirror_map(parts):
    _, maps = parts
    for g in maps.values():
        check_mirror_map(g, {"phi": torch.tensor([0.3, -1.2])})


def path_of(space, geometry, start, lr, steps):
    learner = mm.Learner(
        space["Rates"](),
        geometry=geometry,
        steps=steps,
        lr=lr,
        loss=torch.nn.functional.poisson_nll_loss,
    )
    learner.model.phi.data = torch.tensor(start)
    times = space["times"]
    counts = torch.exp(MINIMUM[0] + MINIMUM[1] * times)
    adapted = learner.adaptations(mm.Batch(times, counts), steps=steps)
    return torch.stack([one.params["phi"].detach() for one in adapted])


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """The page as the site has it, opened from the disk."""
    folder = tmp_path_factory.mktemp("idea") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return Path(folder, "idea.html").as_uri()


@pytest.fixture(scope="module")
def browser(page):
    with chromium(page) as browser:
        yield browser


def shown(browser, name: str) -> str:
    return browser.one(f'#idea [data-part="{name}"]').text


def ring(browser) -> str:
    return browser.one('#idea [data-part="start"]').get_attribute("aria-label")


@pytest.mark.slow
@pytest.mark.parametrize("start", [(-1.9, 1.4), (1.8, -0.3), (0.2, 1.9)])
def test_its_paths_are_those_of_the_library(browser, parts, start):
    browser.look(browser.url, DESK)
    space, maps = parts
    script = "return document.getElementById('idea').paths(...arguments)"
    found = browser.run(script, list(start), list(MINIMUM), NUMBERS["lr"], 10)
    geometries = {"gradient": GradientDescent()}
    geometries |= {name: space["Mirror"](g) for name, g in maps.items()}
    for name, geometry in geometries.items():
        right = path_of(space, geometry, start, NUMBERS["lr"], 10)
        torch.testing.assert_close(torch.tensor(found[name]), right, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", [DESK, PHONE], ids=lambda screen: screen.name)
def test_a_reader_moves_it(browser, screen, dark):
    browser.complaints()
    browser.look(browser.url, screen, dark, still=True)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    before = ring(browser), shown(browser, "mirror-loss")
    handle = browser.one('#idea [data-part="start"]')
    browser.run("arguments[0].scrollIntoView({block: 'center'})", handle)
    box = browser.run("return arguments[0].getBoundingClientRect().toJSON()", handle)
    drag(browser, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, 60, 40)
    dragged = ring(browser), shown(browser, "mirror-loss")
    assert dragged[0] != before[0]
    assert dragged[1] != before[1]
    browser.run("arguments[0].focus()", handle)
    browser.press(Keys.ARROW_RIGHT)
    assert ring(browser) != dragged[0]
    browser.run(
        "const steps = document.querySelector('#idea [data-part=steps]');"
        "steps.value = 3; steps.dispatchEvent(new Event('input'))"
    )
    assert shown(browser, "steps-shown") == "3"
    assert len(browser.all("#idea .mirror path[transform]")) == 3
    browser.click('#idea [data-part="reset"]')
    assert (ring(browser), shown(browser, "mirror-loss")) == before
    # The theme's search is the one thing that needs a server.
    assert [words for words in browser.complaints() if "/search/search_index" not in words] == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []


def drag(browser, x: float, y: float, right: int, down: int) -> None:
    """Hold at a place, move, let go, with the screen's pointer."""
    pointer = PointerInput(browser.pointer, browser.pointer)
    actions = ActionBuilder(browser.driver, mouse=pointer, duration=20)
    actions.pointer_action.move_to_location(round(x), round(y))
    actions.pointer_action.pointer_down()
    actions.pointer_action.move_to_location(round(x) + right // 2, round(y) + down // 2)
    actions.pointer_action.move_to_location(round(x) + right, round(y) + down)
    actions.pointer_action.pointer_up()
    actions.perform()
