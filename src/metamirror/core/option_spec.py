"""Values from the words of a command line or the fields of a file, checked against a type."""

import contextlib
import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class NoOptions:
    """The options of a method or a data set that has none."""


def convert(name: str, value: Any, kind: Any) -> Any:
    """Return a value in the option's type: strings are parsed, other values must fit."""
    if get_origin(kind) in (Union, types.UnionType):
        kinds = get_args(kind)
        if value is None and type(None) in kinds:
            return None
        errors = []
        for one in (k for k in kinds if k is not type(None)):
            try:
                return convert(name, value, one)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError("; or ".join(errors))
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(f"{name} is {value!r}; choose from {', '.join(map(repr, get_args(kind)))}")
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind in (bool, str):
        if isinstance(value, kind):
            return value
        raise ValueError(
            f"{name} is {value!r}; give {'a word' if kind is str else 'true or false'}"
        )
    if kind in (int, float):
        if isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}; give a number")
        try:
            number = kind(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} is {value!r}; give a number") from error
        except OverflowError as error:
            # An infinity for a count, or a count that no float can hold.
            raise ValueError(f"{name} is too large for a number: {error}") from error
        if kind is int and isinstance(value, float) and value != number:
            raise ValueError(f"{name} is {value!r}; give a whole number")
        return number
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is {value!r}; give a list")
        return tuple(convert(name, each, get_args(kind)[0]) for each in value)
    if isinstance(value, str):
        raise ValueError(f"{name} is {value!r}; this option can only be given in Python")
    return value


def literal(word: str) -> int | float | bool | str:
    """Return the number or truth value that a word spells; otherwise the word.

    >>> [literal(word) for word in ("3", "1e-2", "true", "gelu")]
    [3, 0.01, True, 'gelu']
    """
    for kind in (int, float, bool):
        with contextlib.suppress(ValueError):
            found: int | float | bool = convert("", word, kind)
            return found
    return word


SYNONYMS = {
    "alpha": "lr",
    "learning_rate": "lr",
    "step_size": "lr",
    "k": "steps",
    "loss_fn": "loss",
    "criterion": "loss",
    "vmap": "vectorize",
    "amp": "autocast",
    "fomaml": "first_order",
    "checkpointing": "recompute",
}
"""What other libraries call options of ours."""


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return the option that a wrong name stands for, if one is near.

    >>> meant("inner_lr", ["steps", "lr"]), meant("num_steps", ["steps", "lr"])
    ('lr', 'steps')
    """
    options, parts = list(known), name.lower().split("_")
    candidates = [SYNONYMS.get(word, word) for word in ("_".join(parts), *parts)]
    near = difflib.get_close_matches(name.lower(), options, n=1)
    return next((option for option in (*candidates, *near) if option in options), None)


def refused(owner: str, name: str, known: Sequence[str], also: Sequence[str] = ()) -> ValueError:
    """Return the error for an option that does not exist; `also` has further ones to be meant."""
    near = meant(name, [*known, *also])
    question = f"did you mean {near!r}? " if near else ""
    rule = f"its options are {', '.join(known)}" if known else "it has no options"
    rule += f"; every method has {', '.join(also)}" if also and not near else ""
    return ValueError(f"{owner} has no option {name!r}; {question}{rule}")


def read_options(owner: str, kind: type, given: Mapping[str, Any], also: Sequence[str] = ()) -> Any:
    """Return an options dataclass, from keywords or from the words of a command line.

    `also` has names that may have been meant, beside the options.
    """
    hints = get_type_hints(kind)
    known = [f.name for f in fields(kind)]
    values = {}
    for name, value in given.items():
        if name not in known:
            raise refused(owner, name, known, also)
        values[name] = convert(f"{owner}:{name}", value, hints[name])
    return kind(**values)


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split `key:option=value:option=value`.

    >>> parse_spec("blockiaf:variant=released:scale=exponential")
    ('blockiaf', {'variant': 'released', 'scale': 'exponential'})
    """
    key, *words = spec.split(":")
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{spec!r}: {word!r} should read option=value")
        if name in options:
            raise ValueError(f"{spec!r} gives {name} twice")
        options[name] = value
    return key, options


def split_specs(words: str) -> list[str]:
    """Split a list of specifications at its commas, save those inside of one.

    >>> split_specs("maml:adjoint=implicit:cg=5,damping=1,metasgd")
    ['maml:adjoint=implicit:cg=5:damping=1', 'metasgd']
    """
    specs: list[str] = []
    for word in (w.strip() for w in words.split(",")):
        if specs and "=" in word.partition(":")[0]:
            # An option where a name would be: it belongs to the specification before.
            specs[-1] += f":{word}"
        else:
            specs.append(word)
    return specs
