"""The picture of a report in README: that of a kept study, taken by headless Chromium.

    python benchmarks/report_image.py docs/report.png

At 668 pixels the table ends behind the difference from MAML, and half of that is still legible.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import study
from metamirror.report.page import write_report

NAME = "omniglot-maps-one-step"
WIDTH, HEIGHT = 668, 836


def main(image: str) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("a picture of the report needs a browser: install chromium")
    with tempfile.TemporaryDirectory() as runs:
        folder = Path(runs) / NAME
        study.restore(NAME, runs=Path(runs))
        for table in (study.RESULTS / NAME).glob("table.*"):
            shutil.copy(table, folder)
        page = write_report(folder, inspect_seconds=0)  # the weights are not kept
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        options += ["--hide-scrollbars", "--force-device-scale-factor=2"]
        options += [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={Path(image).resolve()}"]
        command = [browser, *options, page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main(sys.argv[1])
