"""What the server answers. Pages come from memory, and no request names a file."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from metamirror.core.files import to_json
from metamirror.estimators.export import missing_extra
from metamirror.playground import limits
from metamirror.playground.guard import Guard, refusal
from metamirror.playground.images import SETS, described, sample
from metamirror.playground.models import FIRST, Choice, Model, ModelStore, adapt, beside
from metamirror.playground.requests import read_adapt, read_predict, read_without
from metamirror.playground.saved import SAVED, for_page
from metamirror.report.styles import colours

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Workers:
    """Threads that compute, so that the one that answers never waits; the queue has an end."""

    def __init__(self, threads: int | None = None, most_waiting: int = limits.MOST_WAITING):
        threads = threads or os.cpu_count() or 1
        self._room = threading.Semaphore(threads + most_waiting)
        # torch's number of threads belongs to the thread that sets it.
        self._pool = ThreadPoolExecutor(
            threads, "playground", initializer=torch.set_num_threads, initargs=(1,)
        )

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return the function's result to come, if there is room in the queue."""
        if not self._room.acquire(blocking=False):
            raise HTTPException(
                503,
                "too many requests are waiting already; try again in a moment",
                {"retry-after": str(limits.RETRY_SECONDS)},
            )
        future = self._pool.submit(function, *arguments)
        future.add_done_callback(lambda _: self._room.release())
        return future

    def close(self) -> None:
        """Cancel what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _page() -> dict[str, tuple[str, bytes]]:
    """Return kind and content of the parts of the page by name."""
    found = {"colours.css": (KINDS["css"], colours().encode())}
    for file in files("metamirror.playground").joinpath("page").iterdir():
        if kind := KINDS.get(file.name.rpartition(".")[2]):
            found[file.name] = kind, file.read_bytes()
    return found


@dataclass
class Playground:
    """The answers, and what they share."""

    choices: Mapping[str, Choice]
    saved: Model | None = None  # the user's own, from a file: it stays while others come and go
    workers: Workers = field(default_factory=Workers)
    store: ModelStore = field(default_factory=ModelStore)
    page: dict[str, tuple[str, bytes]] = field(default_factory=_page)

    async def asset(self, request: Request) -> Response:
        """Answer with a part of the page: one of those read when the server began."""
        name = request.path_params.get("name", "index.html")
        if name not in self.page:
            raise HTTPException(404)
        kind, content = self.page[name]
        return Response(content, media_type=kind)

    async def starts(self, request: Request) -> Response:
        """Answer with the starts, the model from a file, and the limits."""
        return _answer(
            {
                "starts": [choice.described() for choice in self.choices.values()],
                "first": FIRST if FIRST in self.choices else next(iter(self.choices)),
                "saved": self.saved and for_page(self.saved),
                "samples": len(SETS),
                "most_examples": limits.MOST_EXAMPLES,
                "most_steps": limits.MOST_STEPS,
                "largest_lr": limits.LARGEST_LR,
                "no_onnx": missing_extra(),
            }
        )

    async def sample(self, request: Request) -> Response:
        """Answer with letters to try the page with."""
        number = request.path_params["number"]
        # Not by its value: Python refuses to read a number of 5,000 digits.
        if number not in map(str, range(len(SETS))):
            raise HTTPException(404, f"there are {len(SETS)} sets of letters, from 0")
        return _answer(await self._compute(request, sample, int(number)))

    async def adapt(self, request: Request) -> Response:
        """Adapt the chosen start, and gradient descent for comparison."""
        gone = threading.Event()
        try:
            model, plain = await self._compute(request, self._adapt, request.state.body, gone)
        finally:
            gone.set()
        name = self.store.put(model)
        return _answer(
            {"model": name, "chosen": model.described(), "plain": plain, "note": model.note}
        )

    def _adapt(self, body: bytes, gone: threading.Event) -> tuple[Model, dict[str, Any] | None]:
        wanted = read_adapt(body)
        choice = self.choices.get(wanted.start)
        if choice is None:
            raise ValueError(f"start is {wanted.start!a}; choose from {', '.join(self.choices)}")
        model = adapt(choice, wanted)
        other = None if gone.is_set() else beside(choice, self.choices, wanted)
        if other is None:
            return model, None
        plain, wanted = other
        try:
            return model, adapt(plain, wanted).described()
        except ValueError as error:
            # A step size that suits the chosen geometry may be too long for gradient descent.
            return model, {**plain.described(), "losses": None, "error": str(error)}

    async def predict(self, request: Request) -> Response:
        """Say what an image shows."""
        name = request.path_params["model"]
        own = self.saved if name == SAVED else None
        model = own or self.store.get(name)
        largest = limits.SAVED_SIDE if own else limits.LARGEST_SIDE
        probabilities, seen = await self._compute(
            request, lambda: model.predict(read_predict(request.state.body, largest))
        )
        return _answer({"probabilities": probabilities, "seen": described(seen)})

    async def without(self, request: Request) -> Response:
        """Say what changes if one example is left out."""
        model = self.store.get(request.path_params["model"])
        change = await self._compute(
            request, lambda: model.change_without(*read_without(request.state.body))
        )
        return _answer({"change": change})

    async def _compute(
        self, request: Request, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Return the result, or cancel it if the client leaves; a ValueError is a bad request."""
        work = asyncio.wrap_future(self.workers.submit(function, *arguments))
        # Its body is read: all that can still come is the end of the connection.
        end = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise HTTPException(408, "the client has left")
            return work.result()
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        finally:
            work.cancel()
            end.cancel()

    async def download(self, request: Request) -> Response:
        """Answer with the adapted model as a file, made in memory."""
        model = self.store.get(request.path_params["model"])
        onnx = request.url.path.endswith("/onnx")
        content = await self._compute(request, model.onnx if onnx else model.file)
        # A name of our own making: neither classes nor folders have a say in it.
        kind = "onnx" if onnx else "safetensors"
        said = f'attachment; filename="metamirror-{model.choice.method}.{kind}"'
        return Response(
            content, media_type="application/octet-stream", headers={"content-disposition": said}
        )


def make_app(choices: Mapping[str, Choice], host: str, **parts: Any) -> ASGIApp:
    """Return the application, to be served at `host`, with these parts of its `Playground`."""
    playground = Playground(choices, **parts)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        playground.workers.close()

    app = Starlette(
        routes=[
            Route("/", playground.asset),
            Route("/{name}", playground.asset),
            Route("/api/starts", playground.starts),
            Route("/api/samples/{number}", playground.sample),
            Route("/api/adapt", playground.adapt, methods=["POST"]),
            Route("/api/models/{model}/predict", playground.predict, methods=["POST"]),
            Route("/api/models/{model}/without", playground.without, methods=["POST"]),
            Route("/api/models/{model}/file", playground.download),
            Route("/api/models/{model}/onnx", playground.download),
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
        lifespan=lifespan,
    )
    # An address is there or not; none is guessed.
    app.router.redirect_slashes = False
    return Guard(app, host)


def _answer(value: dict[str, Any]) -> Response:
    return Response(to_json(value, indent=None), media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # The words of starlette's router say less.
    if error.detail == "Not Found":
        error.detail = "there is nothing at this address"
    elif error.detail == "Method Not Allowed":
        error.detail = f"{request.method} is not for this"
    return refusal(error)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer to an error that nobody expected: the log has it, the page gets no part of it."""
    return JSONResponse({"error": "the server failed on this request; its log says why"}, 500)
