"""What every request passes before it is looked at: where to, where from, how much."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metamirror.playground import limits
from metamirror.playground.refusal import Refusal

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""The browser itself refuses whatever would leave the page, frame it, or run in it."""


@dataclass(frozen=True)
class Hosts:
    """By which names a browser may have come.

    A page elsewhere can have its own name point to this machine (DNS rebinding), and would then
    count as the same origin. It cannot have an address for a name.

    Attributes:
        bound: where the server listens.
    """

    bound: str

    def allow(self, header: str) -> bool:
        """Whether the Host header is one of ours.

        >>> Hosts("127.0.0.1").allow("localhost:7860"), Hosts("127.0.0.1").allow("evil.example")
        (True, False)
        """
        name = _name(header)
        if name == "localhost":
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return not self.local and name in (self.bound.lower(), socket.gethostname().lower())
        return address.is_loopback or not self.local

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_local(self.bound)


def is_local(host: str) -> bool:
    """Whether a server that listens there is for this machine alone.

    >>> is_local("127.0.0.1"), is_local("::1"), is_local("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """Refuses requests from elsewhere and large ones, and hands on the rest with their body read.

    Args:
        app: what answers.
        hosts: by which names a browser may have come.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts):
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            body = await _read(Headers(scope=scope), receive)
            self._check(scope["method"], Headers(scope=scope))
        except Refusal as refusal:
            await refusal.response()(scope, receive, send_with_headers)
            return
        await self._app(scope, _replayed(body, receive), send_with_headers)

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._hosts.allow(host):
            raise Refusal(
                421, f"this server does not answer to the name {host[:80]!r}: use its address"
            )
        if method in ("GET", "HEAD"):
            return
        # A browser names the page that sends; other programs, which no page can drive, need not.
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        if origin not in (None, f"http://{host}") or site not in ("same-origin", "none"):
            raise Refusal(403, f"a page of {(origin or site)[:80]!r} may not send requests here")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, f"content-type is {kind[:80]!r}; send application/json")


async def _read(headers: Headers, receive: Receive) -> bytes:
    """The body. One that is too large is dropped piece by piece as it comes.

    A server that closes the connection on someone who is still sending takes back its answer with
    it: a reasonable surplus is read, and never kept.
    """
    if "content-length" not in headers and "transfer-encoding" not in headers:
        return b""
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Refusal(400, f"content-length is {length[:80]!r}; it must be a whole number")
    claimed = int(length[:20])
    too_large = Refusal(
        413,
        f"the request has more than {limits.BODY_BYTES:,} bytes; send fewer or smaller pictures",
    )
    if claimed > limits.DRAIN_BYTES:
        raise too_large
    pieces: list[bytes] = []
    total = 0
    try:
        async with asyncio.timeout(limits.BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the connection ended before the request did")
                piece = message.get("body", b"")
                total += len(piece)
                if max(total, claimed) <= limits.BODY_BYTES:
                    pieces.append(piece)
                else:
                    pieces.clear()
                if not message.get("more_body", False) or total > limits.DRAIN_BYTES:
                    break
    except TimeoutError:
        raise Refusal(
            408, f"the request did not arrive within {limits.BODY_SECONDS:g} seconds"
        ) from None
    if max(total, claimed) > limits.BODY_BYTES:
        raise too_large
    return b"".join(pieces)


def _replayed(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    rest = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return rest.pop() if rest else await receive()

    return replay


def _name(host: str) -> str:
    """The name in a Host header, without the port.

    >>> _name("[::1]:7860"), _name("LOCALHOST")
    ('::1', 'localhost')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
