"""The server process: a socket, the application, and a line that says where it is."""

from __future__ import annotations

import socket
from pathlib import Path

import uvicorn

from metamirror.console import say
from metamirror.playground import limits
from metamirror.playground.app import make_app
from metamirror.playground.choices import on_offer
from metamirror.playground.guard import is_local
from metamirror.playground.protocol import PunctualProtocol


def serve(run: Path | None, host: str, port: int) -> None:
    """Serves the page until it is interrupted."""
    listening = listen(host, port)
    with listening:
        app = make_app(on_offer(run), host)
        config = uvicorn.Config(
            app,
            http=PunctualProtocol,
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
    """A socket at the address, or a ValueError that says why there is none."""
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
