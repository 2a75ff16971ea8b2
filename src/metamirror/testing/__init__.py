"""Checks that a method, a mirror map or a task stream keeps what the library relies on.

The library's own parts pass the same checks. A check that fails raises AssertionError with a
sentence that says what is wrong and what to do. None of them needs pytest.
"""

from metamirror.testing.maps import check_mirror_map
from metamirror.testing.methods import check_method
from metamirror.testing.streams import check_task_stream

__all__ = ["check_method", "check_mirror_map", "check_task_stream"]
