"""What `import metamirror` loads."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = {"ray", "submitit", "mlflow", "wandb", "tensorboard"}
HEAVY = {"matplotlib", "PIL", "rich", "sklearn", "scipy", "jinja2", *EXTRAS}


ESTIMATORS = {"FewShotClassifier", "FewShotRegressor", "Backbone"}
"""They read images, which takes Pillow."""


def test_importing_the_package_does_not_load_torch():
    script = "import sys, metamirror; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"


def test_what_the_package_offers_loads_no_plotting_nor_reporting():
    # Torch may load some of them itself: only what the package adds counts.
    script = "import sys, torch; before = set(sys.modules); import metamirror as mm; "
    script += f"[getattr(mm, name) for name in set(mm.__all__) - {ESTIMATORS}]; "
    script += f"print(sorted({HEAVY} & set(sys.modules) - before))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"
