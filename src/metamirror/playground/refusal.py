"""How the server says no: a status, a reason, and nothing more."""

from __future__ import annotations

from starlette.responses import JSONResponse


class Refusal(Exception):  # noqa: N818 - not an error of the program
    """A request that is not answered.

    Args:
        status: of HTTP.
        reason: what is wrong, with the value, and what to do.
        retry_after: seconds after which it may be sent again.
    """

    def __init__(self, status: int, reason: str, retry_after: int | None = None):
        super().__init__(reason)
        self.status = status
        self.retry_after = retry_after

    def response(self) -> JSONResponse:
        """The answer."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return JSONResponse({"error": str(self)}, self.status, headers)
