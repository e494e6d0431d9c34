"""What every request passes before a route sees it: token, size, count and time.

Plain ASGI, outside the routes, so that a new route is guarded without anyone thinking
of it, and so that streamed answers are not buffered.
"""

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.clock import Clock
from neve.api.recovery import ARCHIVE
from neve.api.tables import ARROW_STREAM
from neve.gateway.access.callers import OPERATOR, AuthorizedCall, Caller, serve_call
from neve.gateway.access.route_rights import OPEN_PATHS
from neve.gateway.access.tokens import KnownTokens
from neve.gateway.metrics import RequestMetrics
from neve.gateway.problems import (
    TooLargeError,
    UnauthorizedError,
    problem_response,
)
from neve.gateway.request_bodies import timed_receive

TEXT_BYTES_MAX = 16 * 1024**2
"""Largest body that is neither rows nor an archive; the setting bounds those."""
LARGE_BODIES = (("/append", ARROW_STREAM.encode()), ("/restore", ARCHIVE.encode()))
"""How the path of a route ends that takes large bodies, and of which type."""


class KnownCallers:
    """Tells who shows a token: the one of the settings, or a named one."""

    def __init__(self, token: str, tokens: KnownTokens) -> None:
        """Know of these.

        Args:
            token: Of the settings; empty: none.
            tokens: The named ones.
        """
        self._token = token.encode()
        self._tokens = tokens

    async def caller(self, authorization: bytes) -> Caller | None:
        """Return who shows a header; None: nobody who is known."""
        kind, _, token = authorization.partition(b" ")
        token = token.strip()
        if kind.lower() != b"bearer" or not token:
            return None
        # In constant time, whatever was shown.
        if self._token and hmac.compare_digest(token, self._token):
            return OPERATOR
        return self._tokens.caller(token)


class Authentication:
    """Lets a request pass whose caller is known, and tells the routes who it is."""

    def __init__(self, app: ASGIApp, *, callers: KnownCallers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        caller = await self._callers.caller(dict(scope["headers"]).get(b"authorization", b""))
        if caller is None:
            error = UnauthorizedError(
                "the bearer token is missing, wrong or has ended: send `Authorization: Bearer"
                " <token>` (NEVE_TOKEN_FILE or NEVE_TOKEN)"
            )
            await problem_response(error)(scope, receive, send)
            return
        serve_call(AuthorizedCall(caller))
        await self._app(scope, receive, send)


class BoundedBodies:
    """Refuses a body that is too large, and gives up one that comes too slowly."""

    def __init__(self, app: ASGIApp, *, body_bytes_max: int, body_wait_s: float) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._body_wait_s = body_wait_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on with a bounded body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
        large = any(scope["path"].endswith(end) and kind == wanted for end, wanted in LARGE_BODIES)
        most = self._body_bytes_max if large else min(self._body_bytes_max, TEXT_BYTES_MAX)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            await problem_response(_too_large(most))(scope, receive, send)
            return
        await self._app(scope, _bounded(timed_receive(receive, self._body_wait_s), most), send)


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
