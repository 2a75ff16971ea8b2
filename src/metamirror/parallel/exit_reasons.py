"""Why a process that gave no answer has ended."""

import signal


def exit_reason(code: int | None) -> str:
    """Return how a process ended, in words that follow its name.

    >>> exit_reason(-9)
    'was killed by SIGKILL; the machine may lack the memory for it'
    >>> exit_reason(1)
    'ended with exit code 1'
    """
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-code}"
    hint = "; the machine may lack the memory for it" if code == -9 else ""
    return f"was killed by {name}{hint}"
