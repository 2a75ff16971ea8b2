"""The programs of docs/deploy.md: on the page, short, and giving the estimator's answers."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import metamirror as mm
from metamirror.estimators.export import export
from tests.playground.browsing import DESK, chromium

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deploy"
COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "a b": (60, 60, 200)}


def image_of(colour: str, seed: int) -> Image.Image:
    """A gradient of one colour with a little noise, wider than high."""
    random = np.random.default_rng([seed, len(colour)])
    light = np.linspace(0.6, 1.1, 150)[None, :, None] + random.normal(
        scale=0.02, size=(100, 150, 1)
    )
    return Image.fromarray((light * COLOURS[colour]).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with the programs, an exported model, and images in two formats."""
    work = tmp_path_factory.mktemp("deploy") / "programs"
    shutil.copytree(FOLDER, work, ignore=shutil.ignore_patterns("node_modules"))
    torch.manual_seed(0)
    learner = mm.make_learner("protonet", mm.models.Conv4(5, 3, 32, 8))
    support = [image_of(colour, seed) for colour in COLOURS for seed in (0, 1)]
    clf = mm.FewShotClassifier(learner).fit(support, [c for c in COLOURS for _ in (0, 1)])
    export(clf, work / "model.onnx", "onnx")
    clf.save(work / "model.safetensors")
    for i, colour in enumerate(COLOURS):
        image_of(colour, 7).save(work / f"{i}.jpg", quality=95)
        image_of(colour, 7).save(work / f"{i}.ppm")
    return work


def expected(work: Path, kind: str) -> list[tuple[str, list[float]]]:
    """Label and probabilities of each image, by the estimator."""
    clf = mm.FewShotClassifier.load(work / "model.safetensors")
    images = [Image.open(work / f"{i}.{kind}") for i in range(3)]
    pairs = zip(clf.predict(images).tolist(), clf.predict_proba(images).tolist(), strict=True)
    found = list(pairs)
    assert [label for label, _ in found] == list(COLOURS)
    return found


def agrees(line: str, right: tuple[str, list[float]], atol: float) -> None:
    label, probabilities = right
    assert label in line
    figures = [float(number) for number in re.findall(r"\d\.\d+(?:e-\d+)?|\b0\b|\b1\b", line)]
    assert figures[-3:] == pytest.approx(probabilities, abs=atol)


def run(*words: str, cwd: Path) -> list[str]:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_page_includes_every_program_once():
    page = (ROOT / "docs" / "deploy.md").read_text()
    programs = sorted(file.name for file in FOLDER.glob("*") if file.suffix not in ("", ".json"))
    assert sorted(re.findall(r'^--8<-- "examples/deploy/(.+)"$', page, re.MULTILINE)) == programs
    assert sorted(re.findall(r'title="examples/deploy/(.+)"', page)) == programs
    assert max(len((FOLDER / name).read_text().splitlines()) for name in programs) <= 40


def test_python_without_metamirror(work: Path):
    lines = run(sys.executable, "classify.py", "model.onnx", "0.jpg", "1.jpg", "2.jpg", cwd=work)
    for line, right in zip(lines, expected(work, "jpg"), strict=True):
        agrees(line, right, atol=0.002)
    assert "metamirror" not in (FOLDER / "classify.py").read_text()


@pytest.fixture(scope="module")
def installed(work: Path) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    how = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error")
    done = subprocess.run(["npm", "install", *how], cwd=work, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install onnxruntime-web here: {done.stderr.strip()[-200:]}")
    return work


@pytest.mark.slow
def test_javascript_under_node(installed: Path):
    lines = run("node", "node.mjs", "model.onnx", "0.jpg", "1.jpg", "2.jpg", cwd=installed)
    for line, right in zip(lines, expected(installed, "jpg"), strict=True):
        agrees(line, right, atol=0.05)  # its decoder rounds otherwise


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


@pytest.mark.slow
def test_javascript_in_a_browser(installed: Path):
    handler = functools.partial(Quiet, directory=installed)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with chromium(url) as browser:
            browser.look(f"{url}/browser.html", DESK)
            browser.until(
                lambda: browser.run(
                    "return performance.getEntriesByName(location.origin + '/model.onnx').length"
                )
            )
            for i, right in enumerate(expected(installed, "jpg")):
                browser.one("#file").send_keys(str(installed / f"{i}.jpg"))
                browser.until(lambda right=right: right[0] in browser.one("#answer").text)
                agrees(browser.one("#answer").text, right, atol=0.05)
        server.shutdown()


@pytest.mark.slow
def test_cpp(work: Path):
    root = os.environ.get("ONNXRUNTIME_ROOT")
    if root is None or shutil.which("g++") is None:
        pytest.skip("needs g++, and ONNXRUNTIME_ROOT with onnxruntime's include and lib")
    place = [f"-I{root}/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib"]
    words = ["g++", "-std=c++17", "classify.cpp", *place, "-lonnxruntime", "-o", "classify"]
    run(*words, cwd=work)
    for i, right in enumerate(expected(work, "ppm")):
        (line,) = run("./classify", "model.onnx", f"{i}.ppm", cwd=work)
        agrees(line, right, atol=0.002)
