"""Shared helpers: `networks`, `comparing`, `table`, `runs`, and those beside their tests."""

import atexit
import os
import shutil
import tempfile

import torch
from hypothesis import settings

# Tests never touch a user's data. The processes of one run share a folder (the first one makes it,
# the others inherit its environment), so that letters are drawn once.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["METAMIRROR_HOME"] = tempfile.mkdtemp(prefix="metamirror-tests-")
    atexit.register(shutil.rmtree, os.environ["METAMIRROR_HOME"], ignore_errors=True)
# Two test processes share two cores.
torch.set_num_threads(1)
# A change is judged by the same examples each time; a developer's own runs look for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
