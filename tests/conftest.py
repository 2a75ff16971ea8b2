"""Shared helpers stand beside this file: `networks`, `judging`, `table`, `mirror_maps/maps`."""

import os
import sys
from pathlib import Path

import torch
from hypothesis import settings

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here / "mirror_maps")]
# Two test processes share two cores.
torch.set_num_threads(1)
# A change is judged by the same examples each time; a developer's own runs look for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
