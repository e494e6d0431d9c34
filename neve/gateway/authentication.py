"""Middleware for all requests: authentication, quotas, audit, body limits, metrics and headers.

It is plain ASGI outside the routes, so that every new route is guarded automatically and streamed
answers are not buffered.
"""

import hmac
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.errors import CompactionError, UnavailableError
from common.runtime import Clock
from common.units import CHARS_MAX
from neve.api import ARCHIVE, ARROW_STREAM, CALL_HEADER, PROBLEM, ROWS_BYTES_MAX, AuditEntry
from neve.gateway.access.audit import BEGUN, DONE, TEXT_MAX, Audit, outcome_of, value_text
from neve.gateway.access.callers import (
    CONSOLE,
    OPERATOR,
    SIGN_IN,
    AuthorizedCall,
    Caller,
    Reach,
    Role,
    begin_call,
    current_call,
    is_open,
    right_of,
    serve_call,
)
from neve.gateway.access.oidc import OidcTokens
from neve.gateway.access.quotas import CallerUse, Quotas
from neve.gateway.access.sessions import Sessions, session_cookies
from neve.gateway.access.tokens import KnownTokens
from neve.gateway.bodies import timed_receive
from neve.gateway.problems import QuotaError, TooLargeError, UnauthorizedError, problem_response
from neve.gateway.service import RequestMetrics

JSON_BYTES_MAX = 1024**2
"""Largest body except for rows, archives and long lists."""
LIST_BYTES_MAX = 16 * 1024**2
"""Largest body of a route that takes a long list, such as 10,000 paths of 1 KiB."""
LIST_BODIES = ("/v1/tables", "/files", "/reads", "/backup")
"""Path endings of the routes with long lists; all PATCH routes take long lists as well."""
LARGE_BODIES = (("/append", ARROW_STREAM.encode()), ("/restore", ARCHIVE.encode()))
"""Path endings and content types of the routes that take large bodies."""


JWT_DOTS = 2
"""A JWT has three parts; named tokens have no dots."""


class KnownCallers:
    """Identifies callers by token: the operator's, a named token, or one of an OpenID issuer."""

    def __init__(self, token: str, tokens: KnownTokens, oidc: OidcTokens | None) -> None:
        """Combine the sources of callers.

        Args:
            token: Operator token of the settings; empty: none.
            tokens: Named tokens.
            oidc: Tokens of an OpenID issuer; None: no issuer is configured.
        """
        self._token = token.encode()
        self._tokens = tokens
        self.oidc = oidc

    async def caller(self, authorization: bytes) -> Caller:
        """Return the caller that an `Authorization` header identifies.

        Raises:
            UnauthorizedError: The header identifies no known caller.
            UnavailableError: The keys of the token's issuer are not available.
        """
        kind, _, token = authorization.partition(b" ")
        token = token.strip()
        caller = await self._caller_of(token) if token and kind.lower() == b"bearer" else None
        if caller is None:
            raise UnauthorizedError(
                "the bearer token is missing or wrong, or it has ended: send `Authorization: Bearer"
                " <token>` (NEVE_TOKEN_FILE or NEVE_TOKEN)"
            )
        return caller

    async def _caller_of(self, token: bytes) -> Caller | None:
        # Compare in constant time.
        if self._token and hmac.compare_digest(token, self._token):
            return OPERATOR
        if self.oidc is not None and token.count(b".") == JWT_DOTS:
            return await self.oidc.caller(token)
        return self._tokens.caller(token)


INNER_CALLER = "neve.caller"
"""Key of a scope that the console makes in this process, for a call of the API by its caller. No
request from outside can have it: servers fill scopes with keys of their own."""


def is_console(scope: Scope) -> bool:
    """Return whether a request is for the console."""
    path = scope["path"]
    return bool(path == CONSOLE or path.startswith(f"{CONSOLE}/"))


def _wants_page(scope: Scope) -> bool:
    accepted = dict(scope["headers"]).get(b"accept", b"")
    return scope["method"] in ("GET", "HEAD") and b"text/html" in accepted


def _to_sign_in(scope: Scope) -> Response:
    """Return the answer for a browser without a session."""
    headers = dict(scope["headers"])
    if not _wants_page(scope) or b"hx-request" in headers:
        # A part of a page: the page's script goes to the sign-in page.
        return PlainTextResponse("the session has ended: sign in again", 401)
    query = scope["query_string"].decode("latin-1")
    here = f"{scope['path']}?{query}" if query else scope["path"]
    return RedirectResponse(f"{SIGN_IN}?{urlencode({'next': here})}", 303)


class Authentication:
    """Admits requests of known callers within their quota, and sets the current caller."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        callers: KnownCallers,
        sessions: Sessions,
        quotas: Quotas,
        audit: Audit,
    ) -> None:
        self._app = app
        self._callers = callers
        self._sessions = sessions
        self._quotas = quotas
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or pass it on."""
        if scope["type"] != "http" or is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        if isinstance(inner := scope.get(INNER_CALLER), Caller):
            serve_call(AuthorizedCall(inner))
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/" and _wants_page(scope):
            await RedirectResponse(CONSOLE, 303)(scope, receive, send)
            return
        name = "-"
        try:
            call = await self._call_of(scope)
            if call is None:
                await _to_sign_in(scope)(scope, receive, send)
                return
            name = call.caller.name
            use = self._quotas.admit(name)
        except (UnauthorizedError, QuotaError, UnavailableError) as error:
            await self._refuse(scope, receive, send, name, error)
            return
        serve_call(call)
        await self._app(scope, self._counted(receive, use), send)

    async def _call_of(self, scope: Scope) -> AuthorizedCall | None:
        """Return the call of a request; None: it is for the console, and has no session.

        A session opens the console only. The API takes tokens, which no browser sends by itself.
        """
        headers = dict(scope["headers"])
        if not is_console(scope):
            return AuthorizedCall(await self._callers.caller(headers.get(b"authorization", b"")))
        # HTTP/2 proxies may split the cookies over several headers.
        parts = [value for name, value in scope["headers"] if name == b"cookie"]
        visit = await self._sessions.visit(session_cookies(b"; ".join(parts)))
        if visit is None:
            return None
        session, caller = visit
        return AuthorizedCall(caller, session=session)

    async def _refuse(
        self, scope: Scope, receive: Receive, send: Send, name: str, error: CompactionError
    ) -> None:
        answer = problem_response(error)
        if scope["method"] not in SAFE_METHODS:
            entry = entry_of(scope, name, self._audit.now_s())
            self._audit.refuse_early(
                replace(
                    entry,
                    outcome=outcome_of(answer.status_code, ""),
                    status=answer.status_code,
                    error=type(error).__name__,
                )
            )
        await answer(scope, receive, send)

    def _counted(self, receive: Receive, use: CallerUse) -> Receive:
        """Count the bytes of a request body against the quota of its caller."""

        async def next_message() -> Message:
            message = await receive()
            if body := message.get("body"):
                self._quotas.received(use, len(body))
            return message

        return next_message


# -------------------------------------------------------------------------------------------- Audit


SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods without side effects; every other call has an entry in the audit."""
_CALL_HEADER = CALL_HEADER.lower().encode()
PROBLEM_BYTES_MAX = 64 * 1024
"""Length of a problem's body that is parsed for the class of its error."""


READ_PATHS = ("/scan", "/count", "/manifest", "/manifest/files")
"""Path endings of the routes that return rows or the paths of files."""


def matched_route(scope: Scope) -> tuple[APIRoute, Mapping[str, Any]] | None:
    """Return the route of a call and its path parameters, or None if no route matches."""
    for route in scope["app"].router.routes:
        if isinstance(route, APIRoute):
            match, child = route.matches(scope)
            if match is Match.FULL:
                return route, child.get("path_params", {})
    return None


def parameters_text(scope: Scope, route: APIRoute, path: Mapping[str, Any]) -> str:
    """Return the parameters of a call as parsed by its route, free text last.

    Args:
        scope: Scope of the call.
        route: Route of the call.
        path: Path parameters of the call.
    """
    query = QueryParams(scope["query_string"])
    details: dict[str, Any] = {name: value for name, value in path.items() if name != "table"}
    for field in route.dependant.query_params:
        if given := query.getlist(field.alias):
            for value in (given[-1], given):
                details[field.alias], errors = field.validate(value, {}, loc=("query",))
                if not errors:
                    break
            else:
                details[field.alias] = given[-1]
    words = [
        f"{name}={value_text(value)}"
        for name, value in sorted(details.items(), key=lambda item: isinstance(item[1], str | list))
    ]
    if unknown := len(set(query.keys()) - {field.alias for field in route.dependant.query_params}):
        words.append(f"({unknown} unknown)")
    return " ".join(words)


def has_right(scope: Scope, caller: Caller) -> bool:
    """Return whether the head of a call shows that no role is missing.

    If it does not, the route decides: it may need the body, or the name of a table given by its id.

    Args:
        scope: Scope of the call.
        caller: The caller.
    """
    matched = matched_route(scope)
    if matched is None:
        return True
    route, path = matched
    right = right_of(route)
    if right is None or right.role is None:
        return True
    if right.late:
        return False
    if right.reach is Reach.LISTED:
        return caller.may_somewhere(right.role)
    return caller.may(right.role, path["table"] if right.reach is Reach.TABLE else None)


def entry_of(scope: Scope, caller: str, now_s: float) -> AuditEntry:
    """Return the audit entry for the begin of a call, from its head only."""
    path, matched = scope["path"], matched_route(scope)
    parts = path.split("/", 4)
    of_table = parts[1:3] == ["v1", "tables"] and len(parts) > 3
    call = dict(scope["headers"]).get(_CALL_HEADER, b"").decode("latin-1")
    client = scope.get("client")
    return AuditEntry(
        outcome=BEGUN,
        id=f"aud-{secrets.token_hex(10)}",
        at_s=round(now_s, 3),
        caller=caller,
        action=f"{scope['method']} {path if matched is None else matched[0].path}"[:TEXT_MAX],
        table=parts[3][:64] if of_table else "",
        call=call[:64],
        address=client[0] if client else "",
        details="" if matched is None else parameters_text(scope, *matched),
    )


def ended_entry(
    begun: AuditEntry, call: AuthorizedCall, status: int | None, error: str
) -> AuditEntry:
    """Return the audit entry for the end of a call.

    Args:
        begun: The entry for its begin.
        call: Details that the route has recorded.
        status: HTTP status of the answer; None: there was no answer.
        error: Class of the error, if the answer was a problem.
    """
    return replace(
        begun,
        table=call.table or begun.table,
        call=call.call or begun.call,
        outcome=outcome_of(status, call.error),
        details=" ".join(filter(None, (begun.details, call.details))),
        status=status,
        error=error or call.error,
    )


class AuditedCalls:
    """Writes an audit entry before and after every call that may change something."""

    def __init__(self, app: ASGIApp, *, audit: Audit, reads: bool) -> None:
        self._app = app
        self._audit = audit
        self._reads = reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on after the audit has recorded its begin, and record its end."""
        is_http = scope["type"] == "http"
        is_read = is_http and scope["method"] in SAFE_METHODS
        if not is_http or (is_read and not (self._reads and scope["path"].endswith(READ_PATHS))):
            await self._app(scope, receive, send)
            return
        if is_console(scope):  # Its calls of the API pass here again; it audits sign-ins itself.
            await self._app(scope, receive, send)
            return
        entry = self._open_entry(scope) if _buffers_rows(scope) else None
        if entry is None:
            await self._begin_and_serve(scope, receive, send, is_read=is_read)
            return
        answer, writes = _SeenAnswer(send), self._audit.row_writes
        try:
            await self._app(scope, receive, answer)
        finally:
            call = current_call()
            is_done = outcome_of(answer.status, call.error) == DONE
            # Without an entry of its own, which takes longer to make than to count.
            if not is_done or not writes.count_done(entry.caller, call.table, call.details):
                writes.end(ended_entry(entry, call, answer.status, answer.error()))

    async def _begin_and_serve(
        self, scope: Scope, receive: Receive, send: Send, *, is_read: bool
    ) -> None:
        call = current_call()
        begun = entry_of(scope, call.caller.name, self._audit.now_s())
        writes = self._audit.row_writes if _buffers_rows(scope) else None
        call.begin = _no_line if is_read else partial((writes or self._audit).begin, begun)
        if has_right(scope, call.caller):
            try:
                await begin_call()
            except UnavailableError as error:
                await problem_response(error)(scope, receive, send)
                return
        answer = _SeenAnswer(send)
        try:
            await self._app(scope, receive, answer)
        finally:
            entry = ended_entry(begun, call, answer.status, answer.error())
            if call.begin is not None and entry.outcome != DONE:
                self._audit.refuse_early(entry)
            elif is_read:
                self._audit.end_read(entry)
            else:
                (writes or self._audit).end(entry)

    def _open_entry(self, scope: Scope) -> AuditEntry | None:
        """Return the entry of a call that buffers rows and needs no first line of its own."""
        caller, table = current_call().caller, scope["path"].split("/")[3]
        is_allowed = caller.may(Role.WRITE, table)
        return self._audit.row_writes.open_entry(caller.name, table) if is_allowed else None


async def _no_line() -> None:
    """Begin a read, which has no first line."""


class _SeenAnswer:
    """Passes an answer on, and keeps its status and the start of a problem's body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self._problem: bytearray | None = None

    async def __call__(self, message: Message) -> None:
        """Pass one message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._problem = bytearray() if kind.startswith(PROBLEM.encode()) else None
        elif self._problem is not None and len(self._problem) < PROBLEM_BYTES_MAX:
            self._problem += message.get("body", b"")
        await self._send(message)

    def error(self) -> str:
        """Return the class of the error if the answer was a problem, else an empty text."""
        if self._problem:
            with suppress(ValueError, AttributeError):
                return str(json.loads(self._problem).get("error", ""))
        return ""


# -------------------------------------------------------------------------- Bodies, headers, counts


class BoundedBodies:
    """Rejects bodies that are too large, and gives up on bodies that arrive too slowly."""

    def __init__(self, app: ASGIApp, *, body_bytes_max: int, body_wait_s: float) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._body_wait_s = body_wait_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or pass it on with a bounded body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
        large = any(
            scope["path"].endswith(end) and kind == large_kind for end, large_kind in LARGE_BODIES
        )
        most = self._body_bytes_max if large else min(self._body_bytes_max, _json_bytes_max(scope))
        length = headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > CHARS_MAX or int(length) > most):
            await problem_response(_too_large(most))(scope, receive, send)
            return
        await self._app(scope, _bounded(timed_receive(receive, self._body_wait_s), most), send)


def _buffers_rows(scope: Scope) -> bool:
    """Return whether a call buffers rows: such calls share an audit entry per minute."""
    parts: list[str] = scope["path"].split("/")
    is_rows = parts[:3] == ["", "v1", "tables"] and parts[4:] == ["rows"]
    return is_rows and scope["method"] == "POST"


def _json_bytes_max(scope: Scope) -> int:
    if _buffers_rows(scope):
        return ROWS_BYTES_MAX
    is_list = scope["method"] == "PATCH" or scope["path"].endswith(LIST_BODIES)
    return LIST_BYTES_MAX if is_list else JSON_BYTES_MAX


def _bounded(receive: Receive, most: int) -> Receive:
    """Count the body as it arrives: `Content-Length` may be missing or wrong."""
    received_bytes = 0

    async def next_message() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > most:
            raise _too_large(most)
        return message

    return next_message


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(
        f"the body has more than {most} bytes, which are taken at most: "
        "send it in parts, or write files and add them"
    )


class CountedRequests:
    """Counts and times requests by route; it is outside the checks, so it counts rejections."""

    def __init__(self, app: ASGIApp, *, metrics: RequestMetrics, clock: Clock) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and record status and duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = self._clock.now_s()
        status, begun_after_s = 500, None

        async def seen(message: Message) -> None:
            nonlocal status, begun_after_s
            if message["type"] == "http.response.start":
                status = message["status"]
                kind = dict(message["headers"]).get(b"content-type", b"")
                if kind.startswith(b"text/event-stream"):  # It lasts as long as a page is open.
                    begun_after_s = self._clock.now_s() - began_s
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            elapsed_s = begun_after_s or self._clock.now_s() - began_s
            self._metrics.answered(route, scope["method"], status, elapsed_s)


PAGE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""Default headers: an answer is neither a page nor part of another page."""
HTTPS_HEADERS = (*PAGE_HEADERS, (b"strict-transport-security", b"max-age=31536000"))


class AnswerHeaders:
    """Adds security headers for browsers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add headers that the answer lacks."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        more = HTTPS_HEADERS if scope["scheme"] == "https" else PAGE_HEADERS

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name for name, _ in given}
                message["headers"] = [
                    *given,
                    *(header for header in more if header[0] not in names),
                ]
            await send(message)

        await self._app(scope, receive, with_headers)
