"""Shared helpers stand beside this file: `networks`, `table`."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
# Two test processes share two cores.
torch.set_num_threads(1)
