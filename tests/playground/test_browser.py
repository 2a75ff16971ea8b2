"""The page in a real browser, at a desk and on a phone."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from selenium.webdriver.common.keys import Keys

import metamirror as mm
from serving import served
from tests.playground.browsing import DESK, PHONE, chromium
from tests.playground.drawings import draw

pytestmark = pytest.mark.slow

SIGNS = ("ring", "zigzag", "bar")
SCREENSHOTS = os.environ.get("METAMIRROR_SCREENSHOTS")


@pytest.fixture(scope="module")
def browser():
    with served() as server, chromium(server.url) as browser:
        yield browser


@pytest.fixture(autouse=True)
def _nothing_to_complain_about(request):
    names = {"browser", "photo_browser"} & set(request.fixturenames)
    browser = request.getfixturevalue(names.pop())
    browser.complaints()
    browser.requests()
    yield
    assert browser.complaints() == []
    asked = browser.requests()
    assert asked, "the browser tells what it asked for"
    assert [url for url in asked if not url.startswith(f"{browser.url}/")] == []


def name_class(browser, i: int, name: str) -> None:
    field = browser.all(".card .name")[i]
    field.clear()
    field.send_keys(name)


def draw_classes(browser, signs=SIGNS) -> None:
    for i, sign in enumerate(signs):
        if i == len(browser.all(".card")):
            browser.click("#add-class")
        name_class(browser, i, sign)
        browser.draw(browser.all(".card")[i].find_element("css selector", ".pad"), draw(sign, i))


def adapt(browser) -> None:
    browser.click("#adapt")
    browser.until(lambda: browser.one("#result").is_displayed())
    browser.until(lambda: browser.one("#adapt").get_attribute("aria-busy") is None)


def fits(browser) -> bool:
    return browser.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=lambda screen: screen.name)
def test_signs_are_drawn_adapted_to_and_recognised(browser, screen):
    browser.open(screen)
    assert fits(browser)
    draw_classes(browser)
    adapt(browser)
    browser.until(lambda: browser.points() == [6, 6])
    legend = [item.text for item in browser.all("#legend li")]
    assert len(legend) == 2
    assert "plain gradient descent" in legend[1]
    assert all(" ms" in line for line in legend)
    for sign in SIGNS:
        browser.draw(browser.one("#question"), draw(sign, 50))
        browser.until(lambda sign=sign: browser.likeliest() == sign)
        assert "Most likely" in browser.one("#verdict").text
        browser.click("#clear")
        browser.until(lambda: browser.likeliest() is None)
    assert fits(browser)


def test_a_pen_draws_as_well(browser):
    browser.open(DESK)
    browser.pointer = "pen"
    draw_classes(browser, SIGNS[:2])
    adapt(browser)
    browser.draw(browser.one("#question"), draw("zigzag", 51))
    browser.until(lambda: browser.likeliest() == "zigzag")


def test_another_method_number_of_steps_or_step_size_is_adapted_to_at_once(browser):
    browser.open(DESK)
    draw_classes(browser)
    adapt(browser)
    browser.until(lambda: browser.points() == [6, 6])
    browser.one("#steps").send_keys(Keys.ARROW_RIGHT * 3)
    browser.until(lambda: browser.points() == [9, 9])
    browser.one("#start").send_keys("MAML")
    browser.until(lambda: browser.points() == [9])
    browser.one("#lr").send_keys(Keys.CONTROL, "a")
    browser.one("#lr").send_keys("99")
    browser.until(lambda: "step size" in browser.one("#problem").text)
    browser.click("#reset")
    assert len(browser.all(".card")) == 2
    assert not browser.one("#result").is_displayed()
    assert not browser.one("#problem").is_displayed()
    browser.click("#adapt")
    assert browser.one("#problem").text == "Class A has no example yet."


def test_the_keyboard_alone_is_enough(browser):
    browser.open(DESK)
    browser.press(Keys.TAB)
    assert browser.focused.get_attribute("id") == "letters"
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.likeliest() is not None)
    seen = []
    for _ in range(60):
        browser.press(Keys.TAB)
        element = browser.focused
        if element.tag_name == "body":
            break
        assert element.accessible_name, element.get_attribute("outerHTML")
        seen.append(element.get_attribute("id") or element.accessible_name)
    wanted = ["reset", "Example 1 of ayb: an image", "start", "steps", "lr", "adapt"]
    wanted += ["question", "clear", "question-file", "shoot", "next", "download", "onnx"]
    places = [seen.index(name) for name in wanted]
    assert places == sorted(places), seen
    browser.run("document.getElementById('clear').focus()")
    browser.press(Keys.ENTER)
    assert browser.focused.get_attribute("id") == "question"
    browser.press(*[Keys.ARROW_UP] * 6, Keys.SPACE, *[Keys.ARROW_DOWN] * 12)
    browser.until(lambda: browser.likeliest() is not None)
    middle = "return arguments[0].getContext('2d').getImageData(280, 280, 1, 1).data[3]"
    assert browser.run(middle, browser.one("#question")) > 0
    browser.press(Keys.DELETE)
    browser.until(lambda: browser.likeliest() is None)


def test_a_second_finger_and_a_cleared_pad_do_no_harm(browser):
    browser.open(PHONE)
    pad = browser.one(".pad")
    touch = """
      const [pad, kind, id, x, y] = arguments;
      const box = pad.getBoundingClientRect();
      pad.setPointerCapture = () => {};
      pad.dispatchEvent(new PointerEvent(kind, { pointerId: id, pointerType: "touch", button: 0,
        bubbles: true, clientX: box.left + x * box.width, clientY: box.top + y * box.height }));
    """
    # A line to the right above, while a palm rests below.
    browser.run(touch, pad, "pointerdown", 11, 0.1, 0.1)
    browser.run(touch, pad, "pointerdown", 12, 0.5, 0.9)
    browser.run(touch, pad, "pointermove", 11, 0.9, 0.1)
    middle = "return [...arguments[0].getContext('2d').getImageData(112, 0, 1, 224).data]"
    ink = browser.run(middle, pad)[3::4]
    assert ink[22] > 0
    assert ink[112] == ink[200] == 0
    pad.send_keys(Keys.DELETE)
    browser.run(touch, pad, "pointermove", 11, 0.1, 0.9)
    browser.run(touch, pad, "pointerup", 11, 0.1, 0.9)
    assert "empty" in pad.get_attribute("aria-label")
    browser.run(touch, pad, "pointerdown", 12, 0.5, 0.1)
    browser.run(touch, pad, "pointerup", 12, 0.5, 0.1)
    assert "a drawing" in pad.get_attribute("aria-label")


def test_starting_over_while_letters_are_on_their_way_leaves_an_empty_page(browser):
    browser.open(DESK)
    for pause in (0, 100):
        browser.run("document.getElementById('letters').click()")
        browser.run(
            "setTimeout(() => document.getElementById('reset').click(), arguments[0])", pause
        )
        time.sleep(1.5)
        assert len(browser.all(".card")) == 2
        assert not browser.one("#problem").is_displayed()
        assert not browser.one("#next").is_displayed()
        assert browser.one("#adapt").get_attribute("aria-busy") is None


def test_letters_do_not_replace_ones_own_images_unasked(browser, tmp_path):
    browser.open(DESK)
    browser.one(".card input[type=file]").send_keys(str(photo(tmp_path / "ring.png", "ring")))
    browser.until(lambda: "an image" in browser.one(".pad").get_attribute("aria-label"))
    browser.click("#letters")
    browser.driver.switch_to.alert.dismiss()
    assert "an image" in browser.one(".pad").get_attribute("aria-label")
    assert len(browser.all(".card")) == 2


def photo(path: Path, sign: str) -> Path:
    """Dark ink on grey paper, away from the middle."""
    image = Image.new("RGB", (400, 300), "#c8c4ba")
    for stroke in draw(sign, 3)["strokes"]:
        ImageDraw.Draw(image).line([(40 + 250 * x, 20 + 250 * y) for x, y in stroke], "#222266", 14)
    image.save(path)
    return path


PASS_ON = """
const [target, kind, content] = arguments;
const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], "photo.png", {type: "image/png"}));
target.dispatchEvent(kind === "drop"
  ? new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true})
  : new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true, cancelable: true}));
"""


def test_images_are_chosen_dropped_and_pasted(browser, tmp_path):
    browser.open(DESK)
    files = {sign: photo(tmp_path / f"{sign}.png", sign) for sign in SIGNS}
    content = {sign: base64.b64encode(path.read_bytes()).decode() for sign, path in files.items()}
    browser.click("#add-class")
    cards = browser.all(".card")
    cards[0].find_element("css selector", "input[type=file]").send_keys(str(files["ring"]))
    browser.run(PASS_ON, cards[1], "drop", content["zigzag"])
    cards[2].find_element("css selector", ".pad").click()
    cards[2].find_element("css selector", ".remove").click()
    cards[2].find_element("css selector", ".pad").send_keys("")
    browser.run(PASS_ON, cards[2], "paste", content["bar"])
    browser.until(lambda: len([b for b in browser.all(".slot .remove") if b.is_enabled()]) == 3)
    adapt(browser)
    for sign, name in zip(SIGNS, "ABC", strict=True):
        browser.draw(browser.one("#question"), draw(sign, 52))
        browser.until(lambda name=name: browser.likeliest() == name)
        browser.click("#clear")
    browser.one("#question-file").send_keys(str(files["bar"]))
    browser.until(lambda: browser.likeliest() == "C")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    browser.one("#question-file").send_keys(str(broken))
    browser.until(lambda: "broken.png is not an image" in browser.one("#problem").text)


COLOURS = {"sky": (90, 150, 220), "grass": (70, 160, 60), "brick": (170, 70, 50)}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Three of each kind, wide ones: the edges, which are black, are not looked at."""
    folder = tmp_path_factory.mktemp("photographs")
    for name, colour in COLOURS.items():
        for i in range(3):
            image = Image.new("RGB", (300, 180))
            random = np.random.default_rng([i, *colour])
            noise = random.normal(scale=15, size=(180, 180, 3)) + np.array(colour)
            image.paste(Image.fromarray(noise.clip(0, 255).astype(np.uint8)), (60, 0))
            image.save(folder / f"{name}{i}.jpg")
    return folder


@pytest.fixture(scope="module")
def photo_browser(tmp_path_factory):
    """A page with a start for photographs, which is chosen."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("starts") / "photos"
    mm.save(mm.make_learner("protonet", mm.models.Conv4(5, 3, 32, 8)), folder)
    with served(str(folder)) as server, chromium(server.url) as browser:
        yield browser


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", [DESK, PHONE], ids=lambda screen: screen.name)
def test_photographs_are_told_apart_and_examples_ranked(photo_browser, photographs, screen, dark):
    browser = photo_browser
    browser.open(screen, dark, still=True)
    browser.one("#start").send_keys("photos")
    assert "middle square, 32 x 32" in browser.one("#geometry").text
    for i, name in enumerate(COLOURS):
        if i == len(browser.all(".card")):
            browser.click("#add-class")
        name_class(browser, i, name)
        files = "\n".join(str(photographs / f"{name}{k}.jpg") for k in range(2))
        browser.all(".card")[i].find_element("css selector", "input[type=file]").send_keys(files)
    browser.until(lambda: len([b for b in browser.all(".slot .remove") if b.is_enabled()]) == 6)
    adapt(browser)
    assert sorted(browser.points()) == [1, 6], "no step, beside five of gradient descent"
    browser.one("#question-file").send_keys(str(photographs / "grass2.jpg"))
    browser.until(lambda: browser.likeliest() == "grass")
    seen = "return [...arguments[0].getContext('2d').getImageData(1, 16, 1, 1).data]"
    assert browser.run(seen, browser.one("#seen"))[1] > 100, "the middle, not the black edge"
    browser.click("#influence")
    browser.until(lambda: "speaks most" in browser.one("#influence-note").text)
    marks = [mark.text for mark in browser.all(".mark") if mark.is_displayed()]
    assert sorted(int(mark.partition(":")[0]) for mark in marks) == [1, 2, 3, 4, 5, 6]
    assert fits(browser)
    if SCREENSHOTS:
        browser.screenshot(Path(SCREENSHOTS) / f"photographs-{screen.name}{'-dark' * dark}.png")
    browser.click("#clear")
    assert not [mark for mark in browser.all(".mark") if mark.is_displayed()]
    assert not browser.one("#influence").is_displayed()
    assert browser.one("#onnx").get_attribute("href").endswith("/onnx")
    assert browser.complaints() == []


def test_the_camera_takes_examples_and_questions(photo_browser):
    browser = photo_browser
    browser.open(DESK)
    browser.one("#start").send_keys("photos")
    browser.click(".card .shoot")
    playing = "return document.getElementById('video').videoWidth > 0"
    for count in range(1, 21):
        browser.until(lambda: browser.run(playing))
        browser.click("#take")
        full = [b for b in browser.all(".card .remove") if b.is_enabled()]
        assert len(full) == count
    browser.until(lambda: not browser.one("#camera").is_displayed())
    assert browser.run("return document.getElementById('video').srcObject") is None
    assert not browser.one(".card .shoot").is_displayed(), "twenty are enough"
    browser.click("#shoot")
    browser.until(lambda: browser.run(playing))
    browser.click("#close-camera")
    assert not browser.one("#camera").is_displayed()


def test_unfamiliar_examples_are_named_until_others_are_adapted_to(browser, tmp_path):
    browser.open(DESK)
    for i, card in enumerate(browser.all(".card")):
        noise = np.random.default_rng(i).integers(0, 256, (60, 60, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{i}.png")
        card.find_element("css selector", "input[type=file]").send_keys(str(tmp_path / f"{i}.png"))
    browser.until(lambda: len([b for b in browser.all(".slot .remove") if b.is_enabled()]) == 2)
    adapt(browser)
    assert browser.one("#unfamiliar").text.startswith("The examples do not look like")
    if SCREENSHOTS:
        browser.screenshot(Path(SCREENSHOTS) / "unfamiliar.png")
    browser.click("#reset")
    assert not browser.one("#unfamiliar").is_displayed()


def test_twenty_classes_fit_on_the_page(photo_browser, photographs):
    browser = photo_browser
    files = "\n".join([str(photographs / "grass0.jpg")] * 20)
    for screen in (DESK, PHONE):
        browser.open(screen)
        browser.one("#start").send_keys("photos")
        for _ in range(18):
            browser.click("#add-class")
        names = [field.get_attribute("value") for field in browser.all(".card .name")]
        assert names == list("ABCDEFGHIJKLMNOPQRST")
        assert not browser.one("#add-class").is_displayed()
        card = browser.one(".card")
        card.find_element("css selector", "input[type=file]").send_keys(files)
        browser.until(lambda: len([b for b in browser.all(".remove") if b.is_enabled()]) == 20)
        assert card.size["height"] < screen.height, "many examples scroll"
        assert fits(browser)
        if SCREENSHOTS:
            browser.screenshot(Path(SCREENSHOTS) / f"twenty-{screen.name}.png")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", [DESK, PHONE], ids=lambda screen: screen.name)
def test_one_click_shows_a_newcomer_what_it_is_about(browser, screen, dark):
    browser.open(screen, dark, still=True)
    browser.click("#letters")
    browser.until(lambda: browser.likeliest() is not None)
    browser.until(lambda: browser.points() == [6, 6])
    assert len(browser.all(".card")) == 5
    assert fits(browser)
    assert browser.one("#download").get_attribute("href").startswith(f"{browser.url}/api/models/")
    # Else a model that is gone would take the page with it, and all that was drawn.
    assert browser.one("#download").get_dom_attribute("download") is not None
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") != dark
    browser.click("#next")
    browser.until(lambda: browser.one("#verdict").text.endswith("t is ben."))
    if SCREENSHOTS:
        name = "playground" if (screen, dark) == (DESK, False) else f"playground-{screen.name}"
        browser.screenshot(Path(SCREENSHOTS) / f"{name}{'-dark' * dark}.png")
