"""A user's mistake: what is refused says the value, the rule and the way out, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def assert_refused(mistake: Callable[[], object], words: str) -> None:
    """In Python: ValueError, whose message matches."""
    with pytest.raises(ValueError, match=f"(?s){words}"):
        mistake()


def assert_command_refused(capsys, code: int, *words: str) -> None:
    """On the command line: exit code 2, no output, and one or two lines that end the errors."""
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    message = err[err.index("metamirror: ") :]
    assert 1 <= message.count("\n") <= 2, err
    for word in words:
        assert word in message
