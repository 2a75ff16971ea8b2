r"""What adapts in the inner loop, by one word that every method understands.

`all`, `head`, `body`, `bias`, `norm`, `last:N` (the last N blocks and what follows them),
`lora:rank=R` (low-rank updates of the linear layers), or names of parameters and modules; several
joined by `+`. What does not adapt is still meta-learned by the outer level, as the body of ANIL is;
with `lora` it is frozen, unless `base=learned` is given.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from torch import nn

from metamirror.core.option_spec import parse_spec, read_options
from metamirror.linalg.kronecker import Shape
from metamirror.methods.named_parameters import parameters_of
from metamirror.models import head_of
from metamirror.models.low_rank import LowRank, insert

WORDS = ("all", "head", "body", "bias", "norm", "last:N", "lora:rank=R")

LONG, PART = 64, 24
"""An axis that is longer is cut into parts of at most the second length: see `long_axes`."""


@dataclass(frozen=True)
class Lora:
    """Options of the word `lora`.

    Attributes:
        rank: of each update.
        alpha: updates are multiplied by alpha / rank; by default alpha is the rank.
        base: whether the outer level learns the model itself, beside the updates.
    """

    rank: int = 4
    alpha: float | None = None
    base: Literal["frozen", "learned"] = "frozen"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora:rank is {self.rank}; it must be at least 1")
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise ValueError(f"lora:alpha is {self.alpha}; it must be finite and above 0")


def spelled(adapts: str | Iterable[str] | None) -> str:
    """Return the words as one string, as a file holds them.

    >>> spelled(["bias", "head"]), spelled(None)
    ('bias+head', 'all')
    """
    if adapts is None:
        return "all"
    words = [adapts] if isinstance(adapts, str) else list(adapts)
    if not words or not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"adapts is {adapts!r}; give {', '.join(WORDS)}, or names")
    return "+".join(words)


FOLLOWS = {
    "last": re.compile(r":(?P<word>\d+)"),
    "lora": re.compile(r"[:,](?P<word>(?:rank|alpha|base)=[^:,+]+)"),
}
"""What belongs to a word that stands in a method's specification, where colons part options."""


def cut_out(spec: str) -> tuple[str, str | None]:
    """Return a method's specification without what it says of `adapts`, and that.

    >>> cut_out("blockiaf:adapts=lora:rank=4:alpha=8:scale=wide")
    ('blockiaf:scale=wide', 'lora:rank=4,alpha=8')
    >>> cut_out("maml:adapts=last:2+bias")
    ('maml', 'last:2+bias')
    """
    found = re.search(r":adapts=", spec)
    if not found:
        return spec, None
    rest, terms = spec[found.end() :], []
    while True:
        word = re.match(r"[^:,+]*", rest)
        term, rest = (word.group() if word else ""), rest[word.end() if word else 0 :]
        words: list[str] = []
        while (pattern := FOLLOWS.get(term)) and (more := pattern.match(rest)):
            words.append(more["word"])
            rest = rest[more.end() :]
        terms.append(f"{term}:{','.join(words)}" if words else term)
        if not rest.startswith("+"):
            break
        rest = rest[1:]
    return spec[: found.start()] + rest, "+".join(terms)


def choose(model: nn.Module, adapts: str) -> list[str]:
    """Return the names of the parameters that adapt, in the model's order.

    For `lora` it adds the updates to the model, in place, and freezes the rest.
    """
    terms = [term.partition(":")[::2] for term in adapts.split("+")]
    loras = [_lora(options) for word, options in terms if word == "lora"]
    if len(loras) > 1:
        raise ValueError(f"adapts is {adapts!r}; give lora once")
    wanted: set[str] = set()
    for word, options in terms:
        if word != "lora":
            wanted |= set(_named(model, word, options))
    if loras:
        wanted |= _with_updates(model, loras[0], wanted)
    if not wanted:
        if not any(p.requires_grad for p in model.parameters()):
            raise ValueError("no parameter adapts: the model has none that requires a gradient")
        raise ValueError(f"adapts is {adapts!r}, and the model has no such learned parameter")
    return [name for name, _ in model.named_parameters() if name in wanted]


def _lora(options: str) -> Lora:
    _, given = parse_spec(":".join(["lora", *options.split(",")]) if options else "lora")
    found: Lora = read_options("lora", Lora, given)
    return found


def _with_updates(model: nn.Module, lora: Lora, wanted: set[str]) -> set[str]:
    """Add updates beside all weights but the wanted ones; return the names of their factors."""
    named = dict(model.named_parameters())
    alpha = lora.rank if lora.alpha is None else lora.alpha
    updates = insert(model, lora.rank, alpha, {id(named[name]) for name in wanted})
    if not updates:
        raise ValueError(f"adapts is lora, and {type(model).__name__} has no nn.Linear to update")
    if lora.base == "frozen":
        for name, p in named.items():
            p.requires_grad_(name in wanted and p.requires_grad)
    own = {id(p) for update in updates for p in update.parameters()}
    return {name for name, p in model.named_parameters() if id(p) in own}


def _named(model: nn.Module, word: str, options: str) -> list[str]:
    """Return the learned parameters that one word stands for."""
    learned = [name for name, p in model.named_parameters() if p.requires_grad]
    if word == "last":
        return _last(model, options)
    if options:
        raise ValueError(f"adapts is '{word}:{options}'; nothing follows {word!r}")
    if word == "all":
        return learned
    if word == "head":
        return parameters_of(model, head_of(model))
    if word == "body":
        head = parameters_of(model, head_of(model))
        return [name for name in learned if name not in head]
    if word == "bias":
        return [name for name in learned if "bias" in name.rpartition(".")[2]]
    if word == "norm":
        return [name for name in learned if "norm" in _owner(model, name).lower()]
    if word in dict(model.named_modules()):
        return parameters_of(model, word)
    if word in learned:
        return [word]
    known = [*WORDS, *learned, *(name for name, _ in model.named_modules() if name)]
    near = difflib.get_close_matches(word, known, n=1)
    meant = f"did you mean {near[0]!r}?" if near else f"its learned parameters are {learned}"
    raise ValueError(
        f"adapts is {word!r}, which is none of {', '.join(WORDS)}, and no learned parameter or "
        f"module of the model: {meant}"
    )


def _owner(model: nn.Module, name: str) -> str:
    """Return the class of the module that holds a parameter: LayerNorm, GroupNorm, ..."""
    return type(model.get_submodule(name.rpartition(".")[0])).__name__


def _last(model: nn.Module, options: str) -> list[str]:
    """Return the parameters of the last N blocks and of what stands behind them."""
    blocks = _blocks(model)
    count = int(options) if options.isdecimal() else 0
    if not 1 <= count <= len(blocks):
        raise ValueError(
            f"adapts is 'last:{options}'; this model has {len(blocks)} blocks: give a number from "
            f"1 to {len(blocks)}"
        )
    names = [name for name, _ in model.named_parameters()]
    first = next(i for i, n in enumerate(names) if n.startswith(f"{blocks[-count]}."))
    return [n for n in names[first:] if model.get_parameter(n).requires_grad]


def _blocks(model: nn.Module) -> list[str]:
    """Return the names of the model's blocks: its longest list of modules, or its layers."""
    lists = [
        [f"{name}.{child}".lstrip(".") for child, m in module.named_children() if _holds(m)]
        for name, module in model.named_modules()
        if isinstance(module, nn.Sequential | nn.ModuleList)
    ]
    longest = max(lists, key=len, default=[])
    if len(longest) > 1:
        return longest
    return [n for n, m in model.named_modules() if n and [*m.parameters(recurse=False)]]


def _holds(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


@contextmanager
def only(model: nn.Module, names: list[str]) -> Iterator[None]:
    """Let a method see no learned parameters but these, so that it builds for them alone."""
    hidden = [p for n, p in model.named_parameters() if p.requires_grad and n not in set(names)]
    for p in hidden:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in hidden:
            p.requires_grad_()


def long_axes(model: nn.Module, names: list[str]) -> dict[str, Shape]:
    """Return modes in which the long axes of updates and vectors are cut into several.

    A geometry has square matrices for the axes of a tensor. For a factor of rank 4, or a bias, of n
    numbers that would be n times as many parameters as adapt.
    """
    factors = {id(p) for m in model.modules() if isinstance(m, LowRank) for p in m.parameters()}
    named = {n: p for n, p in model.named_parameters() if n in names}
    chosen = {n: p.shape for n, p in named.items() if p.dim() == 1 or id(p) in factors}
    cut = {n: tuple(k for size in shape for k in _cut(size)) for n, shape in chosen.items()}
    return {n: modes for n, modes in cut.items() if len(modes) > len(chosen[n])}


def _cut(size: int) -> list[int]:
    """Return an axis as the fewest factors of which none is over `LONG`, as equal as possible.

    >>> _cut(192), _cut(768), _cut(64), _cut(211)
    ([16, 12], [12, 8, 8], [64], [211])
    """
    primes = _primes(size)
    if size <= LONG:
        return [size]
    for count in range(1, len(primes) + 1):
        parts = [1] * count
        for prime in primes:
            parts[parts.index(min(parts))] *= prime
        if max(parts) <= max(PART, primes[0]):
            break
    return sorted(parts, reverse=True)


def _primes(size: int) -> list[int]:
    """Return the prime factors of a size, the largest first."""
    found, k = [], 2
    while k * k <= size:
        while size % k == 0:
            found.append(k)
            size //= k
        k += 1
    return sorted([*found, *([size] if size > 1 else [])], reverse=True)
