"""Memory does not grow with use. The campaign does the same for longer."""

from __future__ import annotations

import pytest

from tests.faults.soaking import SHARE, adapt, evaluate, serve

pytestmark = pytest.mark.slow


def test_adaptations_leave_nothing_behind():
    assert adapt(40)["growth"] < SHARE


def test_evaluations_leave_nothing_behind():
    assert evaluate(15)["growth"] < SHARE


def test_requests_leave_nothing_behind():
    assert serve(200, warm_up=70)["growth"] < SHARE
