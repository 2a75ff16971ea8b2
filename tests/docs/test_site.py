"""The site: built strictly, complete, and as it looks in a browser."""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import griffe
import pytest
import torch
import yaml

import metamirror as mm
import site_api
import site_math
import site_offline
from tests.playground.browsing import DESK, PHONE, chromium

ROOT = Path(__file__).parents[2]
WIDEST = ["index.md", "choosing.md", "theory.md", "reproduce.md", "speed.md", "api.md"]
WIDEST += ["gallery/comparing.md", "studies/omniglot-maps-one-step.md", "studies/pilots.md"]
CUT = """return [...document.querySelectorAll(".md-typeset__scrollwrap")]
    .filter((table) => table.scrollWidth > table.clientWidth + 1).length"""
BEYOND = """return [...document.querySelectorAll("article img")]
    .filter((image) => image.getBoundingClientRect().right > innerWidth).length"""
FILTERS = """return [...document.querySelectorAll("article img")]
    .map((image) => getComputedStyle(image).filter)"""
PICTURES = os.environ.get("METAMIRROR_SCREENSHOTS")


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    return site_api.read_package(ROOT / "src")


def small_package(folder: Path, root: str) -> griffe.Module:
    """A package with the public modules, all of them empty but its root."""
    for module in site_api.PUBLIC:
        place = folder.joinpath(*module.split("."))
        place.mkdir(parents=True, exist_ok=True)
        for package in (place, *place.relative_to(folder).parents):
            (folder / package / "__init__.py").write_text('"""B."""\n')
    (folder / "metamirror" / "__init__.py").write_text(root)
    return site_api.read_package(folder)


def test_every_public_name_is_on_the_page_and_documented(package):
    assert site_api.missing((ROOT / "docs" / site_api.PAGE).read_text(), package) == []


def test_a_name_that_is_missing_or_says_nothing_is_found(package, tmp_path):
    page = (ROOT / "docs" / site_api.PAGE).read_text()
    without = page.replace("::: metamirror.save\n", "")
    assert site_api.missing(without, package) == ["metamirror.save is public and not on the page"]
    small = small_package(tmp_path, '"""A."""\n\ndef quiet(): ...\n\n__all__ = ["quiet"]\n')
    assert site_api.missing("::: metamirror.quiet", small) == ["metamirror.quiet has no docstring"]


def test_a_public_method_that_says_nothing_is_found(tmp_path):
    small = small_package(
        tmp_path,
        '"""A."""\n\n__all__ = []\n\n'
        'class Base:\n    """B."""\n\n    def told(self):\n        """C."""\n\n'
        'class Own(Base):\n    """D."""\n\n    def told(self): ...\n\n    def silent(self): ...\n',
    )
    assert site_api.missing("::: metamirror.Own", small) == [
        "metamirror.Own.silent has no docstring"
    ]


def test_formulas_need_no_script():
    page = site_math.with_mathml(r'<div class="arithmatex">\[\phi \preceq \nabla h\]</div>')
    assert "<math" in page
    assert "<script" not in page
    assert "&#x02207;" in page  # nabla


def test_what_would_be_loaded_from_elsewhere_is_found():
    assert site_offline.loads('<script src="https://example.org/a.js">')
    assert site_offline.loads("<img src=//example.org/a.png>")
    assert site_offline.loads('<link rel="stylesheet" href="https://example.org/a.css">')
    assert not site_offline.loads('<img src="a.png"><a href="https://example.org">')


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def pages() -> list[str]:
    """The nav's files, in order."""

    def files(entry):
        if isinstance(entry, str):
            return [entry]
        return [
            file
            for part in (entry if isinstance(entry, list) else entry.values())
            for file in files(part)
        ]

    return files(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """What `make docs` builds."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def build(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """As the Makefile says it: other words could hide what these are to find."""
    (words,) = re.findall(r"\$\(BIN\)/mkdocs (.*)", (ROOT / "Makefile").read_text())
    command = [sys.executable, "-m", "mkdocs", *words.split(), "-d", str(folder)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "link", ["[x](nowhere.md)", "[x](#nowhere)", "![x](nowhere.png)", "[x](../outside.md)"]
)
def test_a_broken_link_ends_the_build(link, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n{link}\n")
    settings = f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nnav: [index.md]\n"
    settings += "plugins: []\nhooks: []\nextra_css: []\ntheme: {name: mkdocs}\n"
    (tmp_path / "mkdocs.yml").write_text(settings)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"nowhere|outside", done.stderr)


@pytest.mark.slow
def test_all_pages_are_built(site):
    for page in pages():
        assert (site / page).with_suffix(".html").is_file()
    shown = (site / "api.html").read_text()
    assert 'id="metamirror.make_learner"' in shown
    assert 'id="metamirror.mirror_maps.certify"' in shown
    assert "<blockquote>" not in shown  # doctests are listings
    assert "<math" in (site / "theory.html").read_text()


@pytest.mark.slow
def test_every_public_method_is_on_the_page(site):
    """Below its class, or below the one that declares it."""
    page = (site / "api.html").read_text()
    there = set(re.findall(r'id="(metamirror\.[\w.]+)"', page))
    modules = {name: importlib.import_module(name) for name in site_api.PUBLIC}
    classes = {
        getattr(names, name): f"{module}.{name}"
        for module, names in modules.items()
        for name in {*vars(names), *getattr(names, "__all__", ())}  # estimators are lazy
        if isinstance(getattr(names, name), type) and f"{module}.{name}" in there
    }
    assert mm.FewShotClassifier in classes
    missing = [
        f"{where}.{name}"
        for cls, where in classes.items()
        for name in dir(cls)
        if name[0] != "_"
        and callable(getattr(cls, name))
        and not hasattr(torch.nn.Module, name)
        and not hasattr(tuple, name)
        and not any(f"{classes[base]}.{name}" in there for base in cls.mro() if base in classes)
    ]
    assert missing == []


@pytest.mark.slow
def test_pages_fit_their_screen_and_ask_nothing_of_other_machines(site):
    handler = functools.partial(_Quiet, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with chromium(url) as browser:
            for screen, dark in ((DESK, False), (DESK, True), (PHONE, False), (PHONE, True)):
                for page in pages() if PICTURES else WIDEST:
                    look_at(browser, f"{url}/{Path(page).with_suffix('.html')}", screen, dark)
            assert browser.complaints() == []
            asked = browser.requests()
            assert asked
            assert [address for address in asked if not address.startswith((url, "data:"))] == []
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_pages_and_their_search_work_from_the_disk(site):
    with chromium(site.as_uri()) as browser:
        look_at(browser, f"{site.as_uri()}/index.html", DESK, dark=False)
        browser.click(".md-search__input")
        browser.one(".md-search__input").send_keys("counterexample")
        browser.until(lambda: browser.all(".md-search-result__item"))
        assert "mirror maps" in browser.one(".md-search-result__item h1").get_attribute("innerText")
        assert browser.complaints() == []
        asked = [a for a in browser.requests() if not a.startswith(("file:", "data:"))]
        assert asked == []


def look_at(browser, address, screen, dark):
    browser.look(address, screen, dark, still=True)
    assert browser.one("article h1").text
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), address
    scheme = browser.one("body").get_attribute("data-md-color-scheme")
    assert scheme == ("slate" if dark else "default")
    assert browser.run(BEYOND) == 0, address
    # Else figures are white boxes in the dark.
    assert not dark or "none" not in browser.run(FILTERS), address
    assert screen is PHONE or PICTURES or browser.run(CUT) == 0, address
    if PICTURES:
        name = f"{Path(address).stem}-{screen.name}{'-dark' * dark}.png"
        browser.screenshot(Path(PICTURES) / name)
