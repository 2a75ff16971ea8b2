"""How many: a number, or a range of which each task draws its own."""

import re
from typing import Any

MOST = 2**31 - 1
"""The largest count: beyond it torch has errors of its own."""

Count = int | str
"""A number, or a range such as `5-20`, both ends included: what a configuration holds."""


def as_range(name: str, value: Any) -> tuple[int, int]:
    """Return both ends of a count: 5, (5, 20) or "5-20".

    >>> as_range("ways", "5-20"), as_range("ways", 5)
    ((5, 20), (5, 5))
    """
    ends = value
    if isinstance(value, str) and (
        match := re.fullmatch(r"\s*(\d{1,10})\s*(?:-\s*(\d{1,10})\s*)?", value)
    ):
        ends = (int(match[1]), int(match[2] or match[1]))
    elif not isinstance(value, tuple | list):
        ends = (value, value)
    whole = all(hasattr(end, "__index__") and not isinstance(end, bool) for end in ends)
    if len(ends) != 2 or not whole or not 1 <= ends[0] <= ends[1] <= MOST:
        raise ValueError(
            f"{name} is {value!r}; it must be at least 1 and at most {MOST}: a whole number, or a "
            f"range from low to high, such as 5-20"
        )
    return int(ends[0]), int(ends[1])


def only_one(name: str, value: Any, source: str) -> int:
    """Return a count that is no range, since `source` makes tasks of one size."""
    low, high = as_range(name, value)
    if low < high:
        raise ValueError(
            f"{name} is {value}, a range, which needs classes to draw from; {source} makes tasks "
            f"of one size: give one number"
        )
    return low


def as_count(name: str, value: Any) -> Count:
    """Return a count as a configuration holds it.

    >>> as_count("shots", (1, 10)), as_count("shots", "5")
    ('1-10', 5)
    """
    low, high = as_range(name, value)
    return low if low == high else f"{low}-{high}"


def in_words(count: Count, what: str) -> str:
    """Return a count as people say it.

    >>> in_words(5, "way"), in_words("5-20", "way")
    ('5-way', '5 to 20 ways')
    """
    return f"{count}-{what}" if isinstance(count, int) else f"{count.replace('-', ' to ')} {what}s"
