"""Random numbers addressed by what they are for, not by when they are drawn."""

import numpy as np

SPLITS = ("train", "val", "test")

_TASK, _NOISE, _AUGMENTATION = 0, 1, 2


def task_generator(seed: int, split: str, step: int, index: int) -> np.random.Generator:
    """Return the generator of one task. Philox counts: an address costs nothing to reach."""
    return np.random.Generator(_philox(seed, split, step, index, _TASK))


def noise_seed(seed: int, split: str, step: int, index: int) -> int:
    """Return the seed of the noise that a method draws for one task."""
    return int(_philox(seed, split, step, index, _NOISE).random_raw() >> np.uint64(2))


def augmentation_generator(seed: int, split: str, step: int, index: int) -> np.random.Generator:
    """Return the generator of what is done to the images of one task."""
    return np.random.Generator(_philox(seed, split, step, index, _AUGMENTATION))


def check_address(seed: int, split: str, step: int = 0, index: int = 0) -> None:
    """Refuse what no task can have for an address."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; choose from {', '.join(SPLITS)}")
    for name, value in (("seed", seed), ("step", step), ("index", index)):
        if not isinstance(value, int | np.integer) or not 0 <= value < 2**63:
            raise ValueError(f"{name} is {value}; it must be a whole number in 0 .. 2**63 - 1")


def _philox(seed: int, split: str, step: int, index: int, purpose: int) -> np.random.Philox:
    check_address(seed, split, step, index)
    # Word 0 counts the draws; the others, and the key, are the address.
    return np.random.Philox(counter=[0, index, step, SPLITS.index(split)], key=[seed, purpose])
