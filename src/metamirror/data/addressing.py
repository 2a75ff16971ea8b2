"""Random numbers addressed by what they are for, not by when they are drawn."""

import numpy as np

SPLITS = ("train", "val", "test")
PURPOSES = ("task", "noise", "augmentation", "sizes", "order")


def task_generator(
    seed: int, split: str, step: int, index: int, purpose: str = "task"
) -> np.random.Generator:
    """Return the generator of one task. Philox counts: an address costs nothing to reach."""
    check_address(seed, split, step, index)
    # Word 0 counts the draws; the others, and the key, are the address.
    counter, key = [0, index, step, SPLITS.index(split)], [seed, PURPOSES.index(purpose)]
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def noise_seed(seed: int, split: str, step: int, index: int) -> int:
    """Return the seed of the noise that a method draws for one task."""
    random = task_generator(seed, split, step, index, "noise")
    return int(random.bit_generator.random_raw()) >> 2


def check_address(seed: int, split: str, step: int = 0, index: int = 0) -> None:
    """Refuse what no task can have for an address."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; choose from {', '.join(SPLITS)}")
    for name, value in (("seed", seed), ("step", step), ("index", index)):
        if not isinstance(value, int | np.integer) or not 0 <= value < 2**63:
            raise ValueError(f"{name} is {value}; it must be a whole number in 0 .. 2**63 - 1")
