"""The prose of a page: paragraphs and sentences, without code, tables, formulas, headings."""

from __future__ import annotations

import re
import textwrap

COLUMNS = 120
"""The longest line of a source file; a paragraph's lines are counted in it."""

NOT_PROSE = re.compile(
    r"<!--.*?-->"
    r"|\A---\n.*?^---$"  # settings of a page
    r"|^(`{3,}).*?^\1$"  # fenced code
    r"|^\$\$.*?\$\$$"  # formulas
    r"|^:::.*\n(?: {4}.*\n)*",  # entries of the reference
    re.DOTALL | re.MULTILINE,
)
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) +")
ELSEWHERE = re.compile(r"^(?:#|\||!\[|<)")  # headings, tables, images, HTML
END = re.compile(r"(?<=[.!?])[)*_]*\s+(?=[^a-z\s])")


def paragraphs(page: str) -> list[str]:
    """Paragraphs and items of lists, each in one line.

    >>> paragraphs("# A page\\n\\nOne.\\nTwo.\\n\\n    make x\\n\\n- a\\n  b\\n- c\\n\\n| d |")
    ['One. Two.', 'a b', 'c']
    """
    found: list[list[str]] = []
    open_, listed = False, False  # inside a paragraph; inside a list
    for line in NOT_PROSE.sub("", page).splitlines():
        if not line.strip() or ELSEWHERE.match(line):
            open_ = False
        elif ITEM.match(line) and (listed or not line.startswith("    ")):
            found.append([ITEM.sub("", line)])
            open_ = listed = True
        elif open_:
            found[-1].append(line.strip())
        elif line.startswith("    "):  # a command
            continue
        else:
            found.append([line.strip()])
            open_, listed = True, line.startswith(" ")
    return [" ".join(lines) for lines in found]


def sentences(paragraph: str) -> list[str]:
    """Its sentences, with links, code and formulas as they are read.

    >>> sentences("See [the page](a.md), `x.y`. It has $a + b$ words.")
    ['See the page, x.', 'It has x words.']
    """
    read = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    read = re.sub(r"`[^`]+`|\$[^$]+\$|\\\(.*?\\\)", "x", read)
    return [part.strip() for part in END.split(read) if words(part)]


def words(sentence: str) -> int:
    """How many words it has: what holds a letter or a digit."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def lines(paragraph: str) -> int:
    """How many lines it takes in the source."""
    return len(textwrap.wrap(paragraph, COLUMNS, break_on_hyphens=False))
