"""What `import metamirror` loads."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = {"ray", "submitit", "mlflow", "wandb", "tensorboard"}
HEAVY = {"matplotlib", "PIL", "rich", "sklearn", "scipy", "jinja2", *EXTRAS}


def test_importing_the_package_loads_no_plotting_nor_reporting():
    # Torch may load some of them itself: only what the package adds counts.
    script = "import sys, torch; before = set(sys.modules); import metamirror; "
    script += f"print(sorted({HEAVY} & set(sys.modules) - before))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"
