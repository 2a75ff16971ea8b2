"""One thread at a time in a learner.

A module that runs with other parameters has them for its own for the time being
(`torch.func.functional_call`): a second thread would compute with them, or save them.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from metamirror.core.learner import Learner

_turns: WeakKeyDictionary[Learner, threading.Lock] = WeakKeyDictionary()
_table = threading.Lock()


def in_turn(learner: Learner) -> threading.Lock:
    """The learner's lock. Kept here, since an estimator is copied and pickled and a lock is not."""
    with _table:
        return _turns.setdefault(learner, threading.Lock())
