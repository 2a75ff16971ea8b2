"""`metamirror playground`."""

import importlib.util
from pathlib import Path
from typing import Annotated

import tyro


def playground(
    run: Annotated[Path | None, tyro.conf.Positional] = None,
    port: int = 7860,
    host: str = "127.0.0.1",
) -> None:
    """Serve a page on which to draw a few signs, adapt a start to them, and try it out.

    Args:
        run: a run folder to choose from beside the shipped starts.
        port: the port of the page; 0 takes a free one.
        host: the address to listen on; by default this machine alone can reach it.
    """
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"the playground needs {package}, which is not installed: "
                f"pip install 'metamirror[playground]'"
            )
    from metamirror.playground.server import serve

    serve(run, host, port)
