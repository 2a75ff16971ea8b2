"""Heads that are computed from the support set: starts for any method, and any number of ways."""

from collections.abc import Collection

from torch import nn

from metamirror.heads.computed import ComputedHead
from metamirror.heads.prototypes import Prototypes
from metamirror.heads.ridge import Ridge
from metamirror.heads.svm import SupportVectors

HEADS: dict[str, type[ComputedHead]] = {
    "prototypes": Prototypes,
    "ridge": Ridge,
    "svm": SupportVectors,
}
"""Computed heads by the word that the `start` of a method takes."""

__all__ = ["HEADS", "ComputedHead", "make"]


def make(word: str, model: nn.Module, adapts: Collection[str]) -> ComputedHead:
    """Return the start that computes the model's head, which must be among what adapts."""
    found = HEADS[word](model)
    if still := [name for name in found.computed if name not in adapts]:
        raise ValueError(
            f"start is {word!r}, which computes the head for each task, and {still[0]} does not "
            f"adapt: choose another start, or let the head adapt"
        )
    return found
