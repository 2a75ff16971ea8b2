"""What every request passes before it is looked at: where to, where from, how much.

starlette's own middleware does not serve here: `TrustedHostMiddleware` knows names but not "any
address", and `RequestBodyLimitMiddleware` closes the connection on a sender who is still sending,
who then never sees the reason.
"""

import asyncio
import ipaddress
import socket
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metamirror.playground import limits

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


def is_own_name(header: str, bound: str) -> bool:
    """Return whether a Host header may name the server that listens at `bound`.

    A page elsewhere can have its own name point to this machine (DNS rebinding), and would then
    count as the same origin. It cannot have an address for a name.

    >>> is_own_name("localhost:7860", "127.0.0.1"), is_own_name("evil.example", "127.0.0.1")
    (True, False)
    """
    bracketed = header.startswith("[")
    name = header[1:].partition("]")[0] if bracketed else header.partition(":")[0].lower()
    if name == "localhost":
        return True
    local = is_local(bound)
    try:
        return ipaddress.ip_address(name).is_loopback or not local
    except ValueError:
        return not local and name in (bound.lower(), socket.gethostname().lower())


def is_local(host: str) -> bool:
    """Return whether a server that listens there is for this machine alone.

    >>> is_local("127.0.0.1"), is_local("::1"), is_local("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True)
class Guard:
    """Refuses requests from elsewhere and large ones; others have their body in `state.body`."""

    app: ASGIApp  # answers the others
    bound: str  # where the server listens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self.app
        if scope["type"] == "http":
            try:
                body = await _body(Request(scope, receive))
                self._check(scope["method"], Headers(scope=scope))
                scope["state"] = {**scope.get("state", {}), "body": body}
            except HTTPException as error:
                answer = refusal(error)
        await answer(scope, receive, send_with_headers)

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if not is_own_name(host, self.bound):
            raise HTTPException(
                421, f"this server does not answer to the name {host[:80]!r}: use its address"
            )
        if method in ("GET", "HEAD"):
            return
        # A browser names the page that sends; other programs, which no page can drive, need not.
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        if origin not in (None, f"http://{host}") or site not in ("same-origin", "none"):
            raise HTTPException(403, f"a page of {(origin or site)[:80]!r} may not send requests")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, f"content-type is {kind[:80]!r}; send application/json")


def refusal(error: HTTPException) -> JSONResponse:
    """Return the answer to a request that is refused: a status, a reason, and nothing more."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _body(request: Request) -> bytes:
    """Return the body; a moderate surplus is read and dropped, so that its sender sees why."""
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(400, f"content-length is {length[:80]!r}; it must be a whole number")
    total, claimed = 0, int(length[:20])
    body = bytearray()
    try:
        async with asyncio.timeout(limits.BODY_SECONDS):
            if claimed <= limits.DRAIN_BYTES:
                async for piece in request.stream():
                    total += len(piece)
                    if max(total, claimed) <= limits.BODY_BYTES:
                        body += piece
                    elif total > limits.DRAIN_BYTES:
                        break
    except TimeoutError:
        raise HTTPException(
            408, f"the request did not arrive within {limits.BODY_SECONDS:g} seconds"
        ) from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection ended before the request did") from None
    if max(total, claimed) > limits.BODY_BYTES:
        raise HTTPException(
            413,
            f"the request has more than {limits.BODY_BYTES:,} bytes; send fewer or smaller images",
        )
    return bytes(body)
