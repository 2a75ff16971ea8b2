"""The server process: a socket, HTTP with timeouts, and a line that says where the page is."""

import asyncio
import socket
from pathlib import Path

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from metamirror.console import say
from metamirror.playground import limits
from metamirror.playground.app import make_app
from metamirror.playground.guard import is_local
from metamirror.playground.models import on_offer
from metamirror.playground.saved import open_saved


class TimeoutProtocol(H11Protocol):
    """Ends connections on which no request arrives.

    uvicorn waits without end for the first line and the headers, so that a few hundred silent
    clients would keep everyone else out.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch(self.conn.their_state is h11.IDLE)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch(self.conn.their_state is h11.IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch(False)

    def _watch(self, waiting: bool) -> None:
        if waiting and self._timer is None:
            self._timer = self.loop.call_later(limits.HEADER_SECONDS, self.transport.close)
        elif not waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None


def serve(run: Path | None, host: str, port: int, backbone: str | None = None) -> None:
    """Serve the page until it is interrupted.

    Args:
        run: a run folder, or the file of a model.
        host: the address to listen on.
        port: its port; 0 takes a free one.
        backbone: the frozen network of the model, or one to choose, with a run on its features.
    """
    with listen(host, port) as listening:
        file = None if run is None or run.is_dir() else run
        saved = None if file is None else open_saved(file, backbone)
        offered = on_offer(None) if file else on_offer(run, backbone)
        config = uvicorn.Config(
            make_app(offered, host, saved=saved),
            http=TimeoutProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.CONNECTIONS,
            timeout_graceful_shutdown=3,
        )
        if not is_local(host):
            say(f"everyone who can reach {host} can use this page: there is no password")
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{listening.getsockname()[1]}  (Ctrl-C stops it)", flush=True)
        uvicorn.Server(config).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket at the address, or raise a ValueError that says why there is none."""
    if not host:
        raise ValueError("host is empty; give an address, such as 127.0.0.1, or leave out --host")
    if not 0 <= port <= 65535:
        raise ValueError(f"port is {port}; it must lie in 0 .. 65535 (0 for any that is free)")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host}, port {port}: {error.strerror}; choose another --port, or "
            f"leave out --host"
        ) from error
