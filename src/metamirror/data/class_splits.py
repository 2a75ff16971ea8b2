"""Which classes are for training, validation and test: given, or drawn. No class is in two."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metamirror.data.installing.layouts import SPLIT_WORDS

HELD_OUT = 0.2
"""The share of the classes that val takes, and test as well."""


def seeded_splits(count: int, seed: int) -> list[str]:
    """Return a random split of so many classes: three fifths train, a fifth each val and test."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(count)
    held_out = max(1, round(HELD_OUT * count))
    splits = ["test"] * held_out + ["val"] * held_out + ["train"] * (count - 2 * held_out)
    return [splits[place] for place in order]


def given_splits(splits: Any, labels: Sequence[Any], codes: NDArray[np.int64]) -> list[str]:
    """Return the split of each class from what the user gave.

    Args:
        splits: a word for all; a mapping from each label; or a list of words, for each example, or
            for each class in the order of the labels.
        labels: the classes.
        codes: the class of each example, as its place in them.
    """
    if isinstance(splits, str):
        return [_word(splits)] * len(labels)
    if isinstance(splits, Mapping):
        if missing := [label for label in labels if label not in splits]:
            raise ValueError(f"splits has no entry for the class {missing[0]!r}")
        return [_word(splits[label]) for label in labels]
    words = np.asarray(splits)
    if words.shape == (len(labels),) and len(labels) != len(codes):
        return [_word(word) for word in words.tolist()]
    if words.shape != codes.shape:
        raise ValueError(
            f"splits has shape {words.shape}; give train, val or test for each of the {len(codes)} "
            f"examples, or for each of the {len(labels)} classes"
        )
    kinds, places = np.unique(words, return_inverse=True)
    pairs = np.unique(np.stack([codes, places]), axis=1)
    found: dict[int, str] = {}
    for code, place in pairs.T.tolist():
        split = _word(kinds[place].item())
        if found.setdefault(code, split) != split:
            raise ValueError(
                f"the class {labels[code]!r} is in {found[code]} and in {split}: a class belongs "
                f"to one split"
            )
    return [found[code] for code in range(len(labels))]


def _word(word: Any) -> str:
    if not (isinstance(word, str) and word.lower() in SPLIT_WORDS):
        raise ValueError(f"splits holds {word!r}; choose from train, val, test")
    return SPLIT_WORDS[word.lower()]
