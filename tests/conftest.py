"""Shared helpers stand beside this file: `networks`, `table`."""

import sys
from pathlib import Path

import torch

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here / "mirror_maps")]
# Two test processes share two cores.
torch.set_num_threads(1)
