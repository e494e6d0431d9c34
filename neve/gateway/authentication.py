"""What every request passes before a route sees it: token, size, count and time.

Plain ASGI, outside the routes, so that a new route is guarded without anyone thinking
of it, and so that streamed answers are not buffered.
"""

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.clock import Clock
from neve.api.recovery import ARCHIVE
from neve.api.tables import ARROW_STREAM
from neve.gateway.metrics import RequestMetrics
from neve.gateway.problems import (
    TooLargeError,
    UnauthorizedError,
    problem_response,
)
from neve.gateway.request_bodies import timed_receive

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
"""They tell nothing of tables, and probes and newcomers have no token."""
TEXT_BYTES_MAX = 16 * 1024**2
"""Largest body that is neither rows nor an archive; the setting bounds those."""
LARGE_BODIES = (("/append", ARROW_STREAM.encode()), ("/restore", ARCHIVE.encode()))
"""How the path of a route ends that takes large bodies, and of which type."""


class Authentication:
    """Lets a request pass that shows the token and keeps its body within the bound."""

    def __init__(
        self, app: ASGIApp, *, token: str, body_bytes_max: int, body_wait_s: float
    ) -> None:
        assert token, "the gateway never runs without a token"
        self._app = app
        self._token = token.encode()
        self._body_bytes_max = body_bytes_max
        self._body_wait_s = body_wait_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if scope["path"] not in OPEN_PATHS and not self._knows(headers.get(b"authorization", b"")):
            error = UnauthorizedError(
                "the bearer token is missing or wrong: "
                "send `Authorization: Bearer <token>` (--token or NEVE_TOKEN)"
            )
            await problem_response(error)(scope, receive, send)
            return
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
        large = any(scope["path"].endswith(end) and kind == wanted for end, wanted in LARGE_BODIES)
        most = self._body_bytes_max if large else min(self._body_bytes_max, TEXT_BYTES_MAX)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            await problem_response(_too_large(most))(scope, receive, send)
            return
        await self._app(scope, _bounded(timed_receive(receive, self._body_wait_s), most), send)

    def _knows(self, shown: bytes) -> bool:
        """Compare in constant time, whatever was shown."""
        kind, _, token = shown.partition(b" ")
        right = hmac.compare_digest(token.strip(), self._token)
        return kind.lower() == b"bearer" and right


def _bounded(receive: Receive, most: int) -> Receive:
    """Count the body as it comes: a length may be missing or a lie."""
    seen = 0

    async def next_message() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise _too_large(most)
        return message

    return next_message


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(
        f"the body has more than {most} bytes, which are taken at most: "
        "send it in parts, or write files and add them"
    )


class CountedRequests:
    """Counts and times requests by route; outermost, so that refusals count too."""

    def __init__(self, app: ASGIApp, *, metrics: RequestMetrics, clock: Clock) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, and remember how it was answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = self._clock.now_s()
        status = 500

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            elapsed_s = self._clock.now_s() - began_s
            self._metrics.answered(route, scope["method"], status, elapsed_s)
