"""A headless Chromium on the playground: what a person does, and what the browser noticed."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI is root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    # Chromium itself calls home unless it is told not to.
    "--no-first-run",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A camera that shows a turning disc, and a person who lets the page use it.
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)


@dataclass(frozen=True)
class Screen:
    """What a page is looked at on, and drawn on with."""

    name: str
    width: int
    height: int
    pointer: str
    scale: int = 1


DESK = Screen("desk", 1280, 900, "mouse")
PHONE = Screen("phone", 390, 844, "touch", scale=2)


@contextmanager
def chromium(url: str) -> Iterator[Browser]:
    """A browser, or a skipped test where there is none; in CI that is a failure."""
    if CHROMIUM is None or DRIVER is None:
        reason = "needs Debian's chromium and chromium-driver"
        if os.environ.get("METAMIRROR_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver, url)
    finally:
        driver.quit()


class Browser:
    def __init__(self, driver: webdriver.Chrome, url: str):
        self.driver = driver
        self.url = url
        self.pointer = "mouse"

    def open(self, screen: Screen, dark: bool = False, still: bool = False) -> None:
        """The page as at first, on light or dark ground, with or without movement."""
        self.look(self.url, screen, dark, still)
        self.until(lambda: len(self.all(".card")) == 2)

    def look(self, url: str, screen: Screen, dark: bool = False, still: bool = False) -> None:
        """Any page, on such a screen."""
        self.pointer = screen.pointer
        metrics = {
            "width": screen.width,
            "height": screen.height,
            "deviceScaleFactor": screen.scale,
            "mobile": screen.pointer == "touch",
        }
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        touches = {"enabled": screen.pointer == "touch"}
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", touches)
        wishes = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if still else "no-preference",
        }
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(url)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def click(self, selector: str) -> None:
        element = self.one(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def press(self, *keys: str) -> None:
        """Keys, for whatever has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    @property
    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> Any:
        return WebDriverWait(self.driver, seconds, 0.05).until(lambda _: condition())

    def draw(self, pad: WebElement, drawing: dict[str, Any]) -> None:
        """Strokes on a pad, with the screen's pointer."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", pad)
        box = self.run("return arguments[0].getBoundingClientRect().toJSON()", pad)
        for stroke in drawing["strokes"]:
            pointer = PointerInput(self.pointer, self.pointer)
            actions = ActionBuilder(self.driver, mouse=pointer, duration=4)
            for i, (x, y) in enumerate(stroke):
                # A little inside: at the very edge the pointer would be on what is beside.
                at = (
                    round(box["x"] + 2 + x * (box["width"] - 4)),
                    round(box["y"] + 2 + y * (box["height"] - 4)),
                )
                actions.pointer_action.move_to_location(*at)
                if i == 0:
                    actions.pointer_action.pointer_down()
            actions.pointer_action.pointer_up()
            actions.perform()

    # In one go each: what an answer replaces in the middle is no longer there to be asked.

    def likeliest(self) -> str | None:
        """The class that the bars show as the most likely."""
        return self.run("return document.querySelector('#bars .best .name')?.textContent ?? null")

    def points(self) -> list[int]:
        """How many points each curve of the chart has by now."""
        return self.run(
            "return [...document.querySelectorAll('#chart polyline')]"
            ".map((line) => line.getAttribute('points').split(' ').length)"
        )

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        how = {"captureBeyondViewport": True, "clip": clip}
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", how)
        path.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """What the console says, whatever its level."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Every address that was asked for since the last time."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found
