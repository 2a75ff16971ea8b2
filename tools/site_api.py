"""A hook of mkdocs: every public name stands on the page of the API, and says what it is for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError

PUBLIC = (
    "metamirror",
    "metamirror.mirror_maps",
    "metamirror.models",
    "metamirror.core.priors",
    "metamirror.testing",
)
"""Modules whose names are promised."""

TORCH_DECLARES = ("forward", "extra_repr")
"""Methods that every module has, and that need no words of ours."""

PAGE = "api.md"
SHOWN = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def missing(page: str, package: griffe.Module) -> list[str]:
    """What is wrong with the page, a line each; `package` is `metamirror` as griffe reads it."""
    shown = SHOWN.findall(page)
    wrong = [f"{name} stands there twice" for name in sorted(set(shown)) if shown.count(name) > 1]
    promised = [
        f"{module}.{name}" for module in PUBLIC for name in public_names(member(package, module))
    ]
    # A name counts under the module that defines it, too: `metamirror.priors` is `core.priors`.
    places = {member(package, name).canonical_path for name in shown}
    wrong += [
        f"{name} is public and not on the page"
        for name in promised
        if member(package, name).canonical_path not in places
    ]
    wrong += [f"{name} has no docstring" for name in shown if not member(package, name).docstring]
    for name in shown:
        found = member(package, name)
        if isinstance(found, griffe.Class):
            wrong += [f"{name}.{method} has no docstring" for method in silent_methods(found)]
    return wrong


def silent_methods(shown: griffe.Class) -> list[str]:
    """Methods that say nothing, nor do where they are declared: the page would leave them out."""
    lineage = [shown, *shown.mro()]
    return [
        name
        for name, found in shown.members.items()
        if found.is_function
        and name[0] != "_"
        and name not in TORCH_DECLARES
        and not any(name in c.members and c.members[name].docstring for c in lineage)
    ]


def public_names(module: griffe.Object | griffe.Alias) -> list[str]:
    """What `__all__` lists; without one, the classes and functions that the module defines."""
    if module.exports is not None:
        return [str(name) for name in module.exports]
    return [
        name
        for name, found in module.members.items()
        if not found.is_alias and (found.is_class or found.is_function) and name[0] != "_"
    ]


def member(package: griffe.Module, name: str) -> griffe.Object | griffe.Alias:
    """The object behind a dotted name."""
    path = name.split(".")[1:]
    found: griffe.Object | griffe.Alias = package[path] if path else package
    return found.final_target if isinstance(found, griffe.Alias) else found


def read_package(source: Path) -> griffe.Module:
    """The package as it stands in the sources, without importing it."""
    package = griffe.load("metamirror", search_paths=[str(source)], resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    return package


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    if page.file.src_uri == PAGE:
        package = read_package(Path(config.config_file_path).parent / "src")
        if wrong := missing(markdown, package):
            raise PluginError(f"{PAGE}: " + "; ".join(wrong))
    return markdown
