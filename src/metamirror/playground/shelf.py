"""Adapted models in memory, for as long as there is room."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from metamirror.playground import limits
from metamirror.playground.adaptation import Model
from metamirror.playground.refusal import Refusal


class Shelf:
    """Keeps the models that were used last. Nobody can guess the name of another's.

    Args:
        most: how many there may be.
        most_bytes: that they may take together; one is kept in any case.
    """

    def __init__(self, most: int = limits.MOST_MODELS, most_bytes: int = limits.MODEL_BYTES):
        self._most = most
        self._most_bytes = most_bytes
        self._models: OrderedDict[str, tuple[Model, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._models)

    def put(self, model: Model) -> str:
        """Keeps a model, and tells its name."""
        name = secrets.token_urlsafe(16)
        size = model.bytes_taken()
        with self._lock:
            self._models[name] = model, size
            while len(self._models) > 1 and (
                len(self._models) > self._most
                or sum(taken for _, taken in self._models.values()) > self._most_bytes
            ):
                self._models.popitem(last=False)
        return name

    def get(self, name: str) -> Model:
        """The model of that name."""
        with self._lock:
            if name not in self._models:
                raise Refusal(
                    404,
                    f"there is no such model, or not any more: the server keeps the last "
                    f"{self._most}. Adapt again",
                )
            self._models.move_to_end(name)
            return self._models[name][0]
