"""Features on disk, found by the content of the image: computed once, whatever asks for them."""

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from metamirror.console import say
from metamirror.data.store import data_home

T = TypeVar("T")
FOLDER = "features"
DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
PATIENCE = 30.0
"""Seconds to wait for another process that writes."""
_complained: list[str] = []


class Network(Protocol):
    """What computes the features that are not there yet."""

    def features(self, images: Tensor) -> Tensor: ...


class FeatureCache:
    """The features that one network gave, one row of a database for each image.

    A folder that cannot be written to costs time and nothing else.

    Args:
        name: of the network, with all that decides its features.
    """

    def __init__(self, name: str):
        self.path = data_home(None) / FOLDER / f"{name}.sqlite"

    def __call__(self, images: Tensor, network: Network) -> Tensor:
        """Return the features of images, of which only those not seen before are computed."""
        keys = [hashlib.sha256(image.numpy().tobytes()).digest() for image in images]
        known = self._read(keys)
        new = {key: i for i, key in enumerate(keys) if key not in known}
        if new:
            found = network.features(images[list(new.values())])
            known |= dict(zip(new, found, strict=True))
            self._write({key: known[key] for key in new})
        return torch.stack([known[key] for key in keys])

    def _read(self, keys: list[bytes]) -> dict[bytes, Tensor]:
        marks = ",".join("?" * len(keys))
        query = f"SELECT key, row FROM features WHERE key IN ({marks})"
        nothing: list[tuple[bytes, bytes]] = []
        rows = self._use(lambda database: database.execute(query, keys).fetchall(), nothing)
        # What was damaged is computed again.
        whole = {key: row for key, row in rows if row and len(row) % 4 == 0}
        found = {k: torch.from_numpy(np.frombuffer(r, np.float32).copy()) for k, r in whole.items()}
        return {key: row for key, row in found.items() if bool(row.isfinite().all())}

    def _write(self, rows: dict[bytes, Tensor]) -> None:
        values = [(key, row.numpy().tobytes()) for key, row in rows.items()]

        def write(database: sqlite3.Connection) -> None:
            with database:
                database.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", values)

        self._use(write, None)

    def _use(self, act: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return self._opened(act)
            except sqlite3.DatabaseError as error:
                # Left there, it would cost the same time for ever.
                if error.sqlite_errorcode & 0xFF not in DAMAGED:
                    raise
                self.path.unlink(missing_ok=True)
                return self._opened(act)
        except (OSError, sqlite3.Error) as error:
            if str(error) not in _complained:
                _complained.append(str(error))
                say(f"features are not kept in {self.path.parent}: {error}")
            return otherwise

    def _opened(self, act: Callable[[sqlite3.Connection], T]) -> T:
        create = "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, row BLOB)"
        with closing(sqlite3.connect(self.path, timeout=PATIENCE)) as database:
            database.execute(create)
            return act(database)
