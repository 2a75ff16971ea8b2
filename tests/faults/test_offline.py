"""Nothing reaches for the network, at import or at run time, but `--download`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import offline

pytestmark = pytest.mark.slow


def test_a_quickstart_needs_no_network(tmp_path: Path):
    offline.quickstart(tmp_path, 0.01, small=True)


def test_a_download_without_a_network_says_so(tmp_path: Path):
    assert offline.download(tmp_path)
