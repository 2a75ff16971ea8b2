"""Strategies: sound inputs with something wrong in them, which get further than noise does."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

INTERESTING = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63)

ODD_NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 3, 0.5, -0.0, 1e-320, 1e308, 2**31, 2**63, 2**64, 10**30, -(10**30)]
)
NOT_FINITE = st.sampled_from([float("inf"), float("-inf"), float("nan"), 10**400])
ODD_WORDS = st.sampled_from(
    [
        *("", " ", ".", "..", "/", "/etc/passwd", "../../../../etc/passwd", "~", "-", "--help"),
        *("folder:", "folder:/", "folder:.:split_seed=9", "a" * 5000, "é" * 200, "\N{PILE OF POO}"),
        *("None", "nan", "inf", "true", "1e9", "maml", "maml:", "maml:x=1", ":", "=", "a=b:c"),
        *("isotropic:1", "isotropic:nan", "diagonal:-1", "conv4", "mlp", "float64", "custom"),
        *("{0.__class__}", "%s%n", "$(touch x)", "`id`", "!!python/object/apply:os.system [id]"),
    ]
)

odd_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 70),
    st.integers(),
    ODD_NUMBERS,
    NOT_FINITE,
    st.floats(),
    ODD_WORDS,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
odd_values = st.recursive(
    odd_leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def damaged_bytes(draw: st.DrawFn, *sound: bytes, most: int = 6) -> bytes:
    """One of some sound files with bytes changed, cut out, put in, repeated, or cut off."""
    content = bytearray(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        # Headers stand at the beginning or at the end: most damage goes there.
        near = draw(st.sampled_from(["anywhere", "front", "back"]))
        if near == "front":
            at %= min(len(content), 64) or 1
        elif near == "back" and content:
            at = len(content) - 1 - at % min(len(content), 64)
        kind = draw(st.sampled_from(["set", "number", "cut", "put", "repeat", "end"]))
        if kind == "set":
            content[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "number":
            width = draw(st.sampled_from([1, 2, 4, 8]))
            value = draw(st.sampled_from(INTERESTING)) % 256**width
            content[at : at + width] = value.to_bytes(
                width, draw(st.sampled_from(["little", "big"]))
            )
        elif kind == "cut":
            del content[at : at + draw(st.integers(1, 40))]
        elif kind == "put":
            content[at:at] = draw(st.binary(max_size=20))
        elif kind == "repeat":
            content[at:at] = content[at : at + draw(st.integers(1, 40))]
        else:
            del content[at:]
    return bytes(content)


@st.composite
def damaged_document(draw: st.DrawFn, sound: Any, most: int = 3) -> Any:
    """A document of JSON's kinds with a few of its values exchanged, removed or added."""
    document = copy.deepcopy(sound)
    for _ in range(draw(st.integers(0, most))):
        at, place = None, document
        path = []
        while isinstance(place, dict | list) and place and (not path or draw(st.booleans())):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            path.append(key)
            at, place = place, place[key]
        if at is None:
            return draw(odd_values)
        kind = draw(st.sampled_from(["change", "change", "change", "remove", "add"]))
        if kind == "change":
            at[path[-1]] = draw(odd_values)
        elif kind == "remove":
            del at[path[-1]]
        elif isinstance(at, dict):
            at[draw(st.sampled_from(["steps", "lr", "name", "path", "x"]))] = draw(odd_values)
        else:
            at.append(draw(odd_values))
    return document
