"""Arguments of commands, each described once: here, or by the library function that takes it."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

from tyro.conf import Positional, UseAppendAction, arg

RunFolder = Annotated[Path, Positional, arg(help="the run folder.")]
DataDir = Annotated[
    Path | None,
    arg(help="where installed data are; by default $METAMIRROR_HOME or the user's data folder."),
]
Imports = Annotated[
    tuple[str, ...],
    UseAppendAction,
    arg(
        name="import",
        metavar="MODULE",
        help="a module that registers methods of your own, imported first.",
    ),
]
Name = Annotated[str, Positional, arg(help="the data set.")]
Runs = Annotated[tuple[Path, ...], Positional, arg(metavar="RUN [RUN ...]")]
Json = Annotated[bool, arg(help="print one JSON document.")]

SHARED = {"run": RunFolder, "runs": Runs, "source": Name, "data_dir": DataDir}
"""How arguments of these names are read from the command line, whoever takes them."""


def bound(function: Callable[..., Any], *left_out: str, **defaults: Any) -> Callable[..., Any]:
    """Return a function that binds the same arguments: the call, and its errors, come later."""

    def bind(*args: Any, **kwargs: Any) -> functools.partial[Any]:
        return functools.partial(function, *args, **kwargs)

    hints = get_type_hints(function, include_extras=True)
    hints = {n: h if get_origin(h) is Annotated else SHARED.get(n, h) for n, h in hints.items()}
    parameters = [
        parameter.replace(annotation=hints[name], default=defaults.get(name, parameter.default))
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in left_out
    ]
    bind.__doc__ = function.__doc__
    bind.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    bind.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return bind


def flags_of(function: Callable[..., Any], *left_out: str, **defaults: Any) -> Any:
    """Return the annotation of a command's argument that is a call of a library function.

    Its arguments become flags, described by its docstring; `defaults` go before its own.
    """
    return arg(name="", constructor=bound(function, *left_out, **defaults))
