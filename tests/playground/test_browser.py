"""The page in a real browser, at a desk and on a phone."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from selenium.webdriver.common.keys import Keys

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
def _nothing_to_complain_about(browser):
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
    wanted += ["question", "clear", "question-file", "next", "download"]
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
