"""`metamirror playground`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import tyro


def playground(
    run: Annotated[Path | None, tyro.conf.Positional] = None,
    port: int = 7860,
    host: str = "127.0.0.1",
) -> None:
    """Serves a page on which one draws a few signs, adapts a start to them, and tries it out.

    Args:
        run: a run folder to choose from beside the shipped starts.
        port: where the page is; 0 takes one that is free.
        host: who can reach it; by default this machine alone.
    """
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"the playground needs {package}, which is not installed: "
                f"pip install 'metamirror[playground]'"
            )
    from metamirror.playground.server import serve

    serve(run, host, port)
