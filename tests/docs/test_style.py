"""The pages are short, in short sentences and paragraphs, and in the words of the glossary."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from statistics import mean

import pytest

from tests.docs import prose

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
PAGES = [*OTHERS, *DOCS]
MODULES = sorted((ROOT / "src").rglob("*.py"))
REFERENCE = ROOT / "docs" / "api.md"
INSTEAD = {
    r"pictures?": "image, figure",
    r"judg(?:e[sd]?|ing)": "evaluate",
    r"outer rates?": "outer learning rate",
    r"beside the start": "of the geometry parameters",
    r"witness(?:es)?": "counterexample",
    r"crew": "worker processes",
    r"told from": "significant, not significant",
    r"no difference seen": "not significant",
    r"(?:is|are|was|were) to be had": "is available from",
    r"anchored": "primal start",
    r"fast weights?": "adapted parameters",
    r"meta-test(?:ing)? set": "test tasks",
    r"episodes? of training": "task",
    r"learner's standing": "training state",
}
"""Words to avoid, and what the glossary calls the thing."""


def avoided(page: str) -> list[str]:
    """Words of the page's prose that have another in the glossary."""
    text = "\n".join(s for part in prose.paragraphs(page) for s in prose.sentences(part))
    return [
        f"{found[0]!r}: write {word}"
        for pattern, word in INSTEAD.items()
        for found in re.finditer(rf"\b{pattern}\b", text, re.IGNORECASE)
    ]


def mean_length(page: str) -> float:
    """The mean number of words in a sentence."""
    parts = prose.paragraphs(page)
    return mean([prose.words(s) for part in parts for s in prose.sentences(part)] or [0])


def long_paragraphs(page: str) -> list[str]:
    """Paragraphs of more than six lines."""
    return [part[:60] for part in prose.paragraphs(page) if prose.lines(part) > 6]


def strings(source: str) -> str:
    """Messages and docstrings of a module; a string without a blank is a name."""
    found = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    return "\n\n".join(text for text in found if isinstance(text, str) and " " in text.strip())


def test_messages_and_docstrings_have_the_words_of_the_glossary():
    found = {file.name: avoided(strings(file.read_text())) for file in MODULES}
    assert len(found) > 100
    assert {name: words for name, words in found.items() if words} == {}
    assert avoided(strings('"""A docstring."""\nraise ValueError(f"a picture of {x}")')) != []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_short_paragraphs_and_the_words_of_the_glossary(page):
    text = page.read_text()
    assert avoided(text) == []
    assert long_paragraphs(text) == []
    assert mean_length(text) <= 22


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_a_page_is_short_and_begins_with_what_it_is_for(page):
    text = page.read_text()
    assert page == REFERENCE or text.count("\n") <= 150
    first = prose.sentences(prose.paragraphs(text)[0])[0]
    assert re.search(r"\b(?:you|your|see|read|look|use)\b", first, re.IGNORECASE), first


def test_the_page_of_results_is_two_screens():
    assert (ROOT / "docs" / "reproduce.md").read_text().count("\n") <= 120


def test_the_readme_is_a_screen_and_a_half():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 130
    assert text.index("```python") < text.index("make quickstart")


def test_prose_that_breaks_a_rule_is_found():
    sentence = "word " * 30 + "end. "
    assert mean_length(f"# A page\n\n{sentence}\n") == 31
    assert mean_length(f"# A page\n\nShort one.\n\n    {sentence}\n") == 2
    assert (
        mean_length(f"# A page\n\nShort one.\n\n| {sentence} |\n\n```text\n{sentence}\n```\n") == 2
    )
    assert long_paragraphs(f"# A page\n\n{sentence * 5}\n") == [(sentence * 2)[:60]]
    assert long_paragraphs("# A page\n\n" + f"- {sentence}\n" * 9) == []
    assert prose.paragraphs("---\nsearch: {}\n---\n# A page\n\nOne.\n") == ["One."]
    assert avoided("# A picture\n\n`picture` and\na Picture.\n") == [
        "'Picture': write image, figure"
    ]
