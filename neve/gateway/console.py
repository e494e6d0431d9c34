"""The console's HTTP side: sign-in, pages, changes, events, static files.

A page calls the handlers of the API in this process as the signed-in caller. Reads call a handler
directly, after the check of its right. Changes go through the whole application like a request from
outside, so that checks of bodies, rights and the audit are the API's own.
"""

import asyncio
import inspect
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Receive, Scope, Send

from common.errors import CompactionError, RequestError, UnavailableError
from common.runtime import Clock
from neve import api
from neve.api import AuditEntry
from neve.console.frame import (
    CallFailedError,
    PageRoute,
    Variables,
    View,
    address_of,
    page,
    render_live,
    render_page,
    static_file,
)
from neve.console.pages import PAGES
from neve.gateway.access.audit import DONE, outcome_of
from neve.gateway.access.callers import (
    CONSOLE,
    OPEN,
    READ_LISTED,
    SIGN_IN,
    STATIC,
    AuthorizedCall,
    Caller,
    DeclaredRoute,
    Reach,
    RouteRight,
    authorized_call,
    check_right,
    current_call,
    declared_routes,
    route,
    serve_call,
)
from neve.gateway.access.sessions import COOKIE, ConsoleSession, IssuerSignIn, Sessions
from neve.gateway.authentication import INNER_CALLER, entry_of
from neve.gateway.problems import ForbiddenError, UnauthorizedError, status_of
from neve.gateway.services import Services, SharedAnswer

if TYPE_CHECKING:
    from coordinator.actor import CoordinatorActor


# ----------------------------------------------------------------------- Answers that viewers share
# One sampler for all viewers of the console: the coordinator's answers, and live parts of pages.
#
# While pages are open, a sample begins every two seconds. All viewers of a sample share the
# coordinator's answers, and viewers of one address with the same grants share the rendered part.
# So the cost of a sample grows with the number of different pages and grants, not of viewers.


SAMPLE_S = 2.0
"""Time between two samples, and how long an answer is shared."""
ANSWERS_MAX = 1000
"""Shared answers and parts of pages that are kept at once."""
STREAMS_MAX, STREAMS_OF_SESSION_MAX = 500, 20
SHARED_CALLS = frozenset(
    {
        "activity",
        "compactors",
        "control",
        "explain",
        "owed_tablets",
        "queue",
        "recorded_tables",
        "running",
        "series",
        "status",
        "story",
        "tablet_backlogs",
    }
)
"""Calls of the coordinator that only read, and whose answers do not depend on the caller."""


class Sampler:
    """Shares answers within a sample, and wakes the streams when a sample begins."""

    def __init__(self, services: Services) -> None:
        """Create a sampler without viewers.

        Args:
            services: Ports of the gateway.
        """
        self._coordinator: Any = services.coordinator
        self._clock: Clock = services.clock
        self._answers: dict[Hashable, SharedAnswer[Any]] = {}
        self._turn = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None
        self._is_closed = False
        self.at_s = 0.0
        """When the current sample began."""
        self.streams = 0
        """Open streams."""

    def services(self, services: Services) -> Services:
        """Return the services with the coordinator's answers shared."""
        return services.with_coordinator(cast("CoordinatorActor", self))

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return a call of the coordinator; its answer is shared if it only reads."""
        call: Callable[..., Awaitable[Any]] = getattr(self._coordinator, name)
        return partial(self._shared_call, name, call) if name in SHARED_CALLS else call

    async def _shared_call(
        self, name: str, call: Callable[..., Awaitable[Any]], *values: Hashable
    ) -> Any:
        return await self.shared(("call", name, *values), partial(call, *values))

    async def shared(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return an answer of this sample; the first viewer that wants it asks.

        Args:
            key: All that the answer depends on.
            ask: Called for the answer.

        Raises:
            Exception: Any exception of `ask`.
        """
        self._begin_if_old()
        if (answer := self._answers.get(key)) is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            answer = self._answers[key] = SharedAnswer(ask, SAMPLE_S)
        return await answer.answer()

    def forget(self) -> None:
        """Begin a new sample: a change was made, and the next page must show it."""
        self._answers = {}
        self.at_s = self._clock.now_s()

    def _begin_if_old(self) -> None:
        if not 0 <= self._clock.now_s() - self.at_s < SAMPLE_S:
            self.forget()

    # -------------------------------------------------------------------------------------- Streams

    async def next_sample(self) -> bool:
        """Wait for the next sample; return False: the gateway ends."""
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        await self._turn.wait()
        return not self._is_closed

    async def _tick(self) -> None:
        """Begin a sample every two seconds while streams are open."""
        while self.streams and not self._is_closed:
            await asyncio.sleep(SAMPLE_S)
            self.forget()
            self._wake()

    def _wake(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    def close(self) -> None:
        """End all streams: the gateway ends."""
        self._is_closed = True
        self._wake()


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    # `no-referrer` would make browsers hide the origin of a form, which is checked.
    "Referrer-Policy": "same-origin",
}
PENDING_COOKIE = "neve-sign-in"
"""Cookie that binds a sign-in at the issuer to its browser."""
STATIC_HEADERS = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "Vary": "Accept-Encoding",
}
CALL_FIELDS = ("path.", "query.", "body.", "json.")
"""Beginnings of the fields of a form that go into a call of the API."""
FORM_FIELDS_MAX = 1000
CSRF_MARK = f"csrf-{secrets.token_hex(16)}"
"""What templates write for the CSRF token, so that viewers can share a rendered part. It is secret:
otherwise a text from a user could contain it, and would be shown with the token."""

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiHandler:
    """A handler of the API, and the right that its route requires."""

    call: Callable[..., Awaitable[Any]]
    right: RouteRight


class InProcessCalls:
    """Calls of the API by one caller; satisfies `neve.console.frame.Calls`."""

    def __init__(
        self, handlers: Mapping[str, ApiHandler], caller: Caller, request: Request | None
    ) -> None:
        """Combine handlers and caller.

        Args:
            handlers: Name of a route → its handler.
            caller: The signed-in caller.
            request: Request that a change is made for; None: nothing can be changed.
        """
        self._handlers, self._caller, self._request = handlers, caller, request

    def may(self, route: str, table: str | None = None) -> bool:
        """Return whether the caller has the right of a route."""
        role = self._handlers[route].right.role
        if role is None:
            return True
        if table is not None:
            return self._caller.may(role, table)
        if self._handlers[route].right.reach is Reach.SERVICE:
            return self._caller.may(role)
        return self._caller.may_somewhere(role)

    async def read(self, route: str, **arguments: Any) -> Any:
        """Return what the handler of a GET route returns, after the check of its right."""
        assert route.startswith("GET "), f"{route} is no read; use `change`"
        handler = self._handlers[route]
        before = current_call()
        serve_call(AuthorizedCall(self._caller))
        try:
            check_right(handler.right)
            return await handler.call(**arguments)
        finally:
            serve_call(before)

    async def change(
        self,
        route: str,
        path: Mapping[str, str],
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Any:
        """Send a call through the application; return its JSON."""
        assert self._request is not None, "a page that is read changes nothing"
        method, pattern = route.split(" ")
        target = address_of(pattern, path, query)
        content = b"" if body is None else json.dumps(body).encode()
        answer = await _answer_of(self._request, method, target, self._caller, content)
        if answer.status >= 400:
            raise CallFailedError(answer.status, answer.detail)
        return json.loads(answer.body) if answer.body else None


@dataclass(slots=True)
class _Answer:
    """The answer of the application to a call in this process."""

    status: int = 500
    body: bytes = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    @property
    def detail(self) -> str:
        """The detail of a problem."""
        try:
            return str(json.loads(self.body)["detail"])
        except (ValueError, KeyError, TypeError):
            return HTTPStatus(self.status).phrase


async def _answer_of(
    request: Request, method: str, target: str, caller: Caller, content: bytes
) -> _Answer:
    """Return the answer of the whole application to a call that a page makes."""
    parts, answer = urlsplit(target), _Answer()
    outer = request.scope
    scope: Scope = {
        "type": "http",
        "asgi": outer["asgi"],
        "http_version": "1.1",
        "method": method,
        "scheme": outer["scheme"],
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [
            (b"host", b"console"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ],
        "client": outer.get("client"),
        "server": outer.get("server"),
        INNER_CALLER: caller,
    }
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    # A task has a context of its own: the call of the API does not replace the page's.
    # An unexpected error was logged and answered before it comes here.
    await asyncio.gather(request.app(scope, receive, answer.send), return_exceptions=True)
    return answer


class AccessRoutes:
    """Routes of the API about access to the console."""

    def __init__(self, services: Services, sessions: Sessions) -> None:
        self._services, self._sessions = services, sessions

    @route("POST /v1/console/links", READ_LISTED.noted("the link has the rights of its token"))
    async def link(self, request: Request) -> api.ConsoleLink:
        """Make a link that signs a browser in to the console, once and within five minutes.

        The code stands behind the `#` of the link: browsers do not send it, and no log has it.
        """
        token = request.headers["authorization"].partition(" ")[2].strip()
        code, ends_s = self._sessions.code_for(token.encode("latin-1"))
        base = self._services.settings.gateway.public_url.rstrip("/")
        return api.ConsoleLink(link=f"{base}{SIGN_IN}#{code}", ends_s=ends_s)


# -------------------------------------------------------------------------------------------- Pages


class ConsolePages:
    """The routes of the console."""

    def __init__(
        self,
        services: Services,
        sessions: Sessions,
        kinds: Iterable[Callable[[Services], object]],
        issuer: IssuerSignIn | None = None,
    ) -> None:
        """Prepare the pages.

        Args:
            services: Ports and settings.
            sessions: Codes and sessions of the gateway.
            kinds: Classes of the slices of the API.
            issuer: Issuer at which people sign in; None: none is configured.
        """
        self._services, self._sessions, self._issuer = services, sessions, issuer
        self.sampler = Sampler(services)
        shared = self.sampler.services(services)
        self._handlers = {
            declared.name: ApiHandler(getattr(slice_, name), declared.right)
            for slice_ in (kind(shared) for kind in kinds)
            for name, declared in declared_routes(type(slice_))
        }
        self._pages = [(self._route(shown), shown) for shown in PAGES]

    def routes(self) -> list[Route]:
        """Return all routes, with their rights."""
        return [
            _declared("GET", SIGN_IN, OPEN, self._sign_in_page),
            _declared("POST", SIGN_IN, OPEN, self._sign_in),
            _declared("GET", f"{SIGN_IN}/issuer", OPEN, self._to_issuer),
            _declared("GET", f"{SIGN_IN}/issued", OPEN, self._issued),
            _declared("GET", f"{STATIC}/{{digest}}/{{name}}", OPEN, self._static),
            _declared("POST", f"{CONSOLE}/sign-out", READ_LISTED, self._sign_out),
            _declared("POST", f"{CONSOLE}/call", READ_LISTED, self._call),
            _declared("GET", f"{CONSOLE}/events", READ_LISTED, self._events),
            *(page_route for page_route, _ in self._pages),
        ]

    def answer_errors(self, routes: Iterable[BaseRoute]) -> None:
        """Make the routes of the console answer errors with pages, those of their guards too."""
        for page_route in routes:
            if isinstance(page_route, Route) and page_route.path.startswith(CONSOLE):
                page_route.app = ConsoleErrors(page_route, self)

    def _route(self, shown: PageRoute) -> Route:
        right = self._handlers[shown.of].right
        return _declared(shown.method, shown.address, right, partial(self._page, shown))

    async def _page(self, shown: PageRoute, request: Request) -> Response:
        view = self._view(shown, request, authorized_call().caller)
        if shown.method == "POST":
            view.form = await self._checked_form(request)
        try:
            return self._html(view, shown.template, await shown.handler(view))
        except CompactionError as error:
            return self._problem(view, error)

    def _view(self, shown: PageRoute, request: Request, caller: Caller) -> View:
        return View(
            calls=InProcessCalls(self._handlers, caller, request),
            caller=caller.name,
            csrf=CSRF_MARK,
            route=shown,
            path=request.path_params,
            query=dict(request.query_params),
            now_s=self._services.clock.now_s(),
        )

    def _html(
        self, view: View, template: str, variables: Variables, status: int = 200
    ) -> HTMLResponse:
        session = _session()
        frame = {
            "view": view,
            "nav": [shown for shown in PAGES if shown.nav and view.may(shown.of)],
            "flash": session.take_notes(),
        }
        text = render_page(template, {**frame, **variables})
        return HTMLResponse(text.replace(CSRF_MARK, session.csrf), status, HEADERS)

    def problem(self, request: Request, error: CompactionError) -> Response:
        """Return the page of an error of a route."""
        call = current_call()
        if call.session is None:
            return self._plain(request, CONSOLE, str(error), status_of(error))
        return self._problem(self._view(asked, request, call.caller), error)

    def _problem(self, view: View, error: CompactionError) -> HTMLResponse:
        status = error.status if isinstance(error, CallFailedError) else status_of(error)
        view.route = replace(view.route, live=False)
        view.title = HTTPStatus(status).phrase
        return self._html(view, "error.html", {"detail": str(error)}, status)

    async def _static(self, request: Request) -> Response:
        """Return a static file, which never changes at its address."""
        file = static_file(request.url.path)
        if file is None:
            return Response(status_code=404)
        headers, body = dict(STATIC_HEADERS), file.body
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"], body = "gzip", file.zipped
        return Response(body, media_type=file.kind, headers=headers)

    # -------------------------------------------------------------------------------------- Changes

    async def _call(self, request: Request) -> Response:
        """Make the call of the API that a form names, and go on to the page that it names.

        If the form has a question, the question is shown first.
        """
        fields = await self._checked_form(request)
        here = _safe_address(fields.get("next", ""))
        view = self._view(asked, request, authorized_call().caller)
        if ask := fields.pop("ask", ""):
            kept = [(name, value) for name, value in fields.items() if name != "csrf"]
            label = fields.get("label", "Go on")
            more = {"ask": ask, "label": label, "next": here, "fields": kept}
            return self._html(view, asked.template, more)
        session = _session()
        try:
            await self._make_call(view, fields)
        except CompactionError as error:
            session.note("error", f"{fields.get('label', 'The call')}: {error}")
        else:
            session.note("done", fields.get("done") or f"{fields.get('label', 'The call')}: done.")
        self.sampler.forget()
        return RedirectResponse(here, 303, HEADERS)

    async def _make_call(self, view: View, fields: Mapping[str, str]) -> None:
        route = fields.get("route", "")
        handler = self._handlers.get(route)
        if handler is None or route.startswith("GET "):
            raise RequestError(f"the form names no change: {route[:100]!r}")
        path, query, texts, values = (
            {
                name.removeprefix(begin): text
                for name, text in fields.items()
                if name.startswith(begin)
            }
            for begin in CALL_FIELDS
        )
        has_body = "body" in inspect.signature(handler.call).parameters
        body = body_of(texts, values) if has_body else None
        await view.calls.change(route, path, query, body)

    async def _checked_form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form of this session.

        Raises:
            ForbiddenError: The form is of another site, or of another session.
        """
        _require_same_site(request)
        fields = await _form(request)
        if not _session().has_sent(fields.get("csrf", "")):
            raise ForbiddenError("the form is of an older session: load the page again")
        return fields

    # -------------------------------------------------------------------------------------- Sign-in

    async def _sign_in_page(self, request: Request) -> Response:
        """Return the page that takes a token, or the code of a link."""
        return self._plain(request, _safe_address(request.query_params.get("next", "")))

    def _plain(
        self, request: Request, following: str, problem: str = "", status: int = 200
    ) -> Response:
        issuer = "" if self._issuer is None else urlsplit(self._issuer.issuer).netloc
        variables = {"title": "Sign in", "problem": problem, "next": following, "issuer": issuer}
        return HTMLResponse(render_page("sign_in.html", variables), status, HEADERS)

    async def _sign_in(self, request: Request) -> Response:
        """Begin a session by a token or a code, and set its cookie."""
        fields = await _form(request)
        following = _safe_address(fields.get("next", ""))
        try:
            _require_same_site(request)
            begun = await self._sessions.begin(fields.get("secret", ""))
            return await self._signed_in(request, *begun, following)
        except CompactionError as error:
            return self._not_signed_in(request, error, following)

    async def _to_issuer(self, request: Request) -> Response:
        """Send the browser to the issuer."""
        following = _safe_address(request.query_params.get("next", ""))
        if self._issuer is None:
            return self._plain(request, following, "no issuer is configured", 404)
        try:
            address, cookie = await self._issuer.begin(following)
        except CompactionError as error:
            return self._not_signed_in(request, error, following)
        answer = RedirectResponse(address, 303, HEADERS)
        self._set_cookie(request, answer, PENDING_COOKIE, cookie, SIGN_IN)
        return answer

    async def _issued(self, request: Request) -> Response:
        """Begin a session by what the issuer has sent the browser back with."""
        try:
            if self._issuer is None:
                raise UnauthorizedError("no issuer is configured")
            cookie = request.cookies.get(PENDING_COOKIE, "")
            issued, following = await self._issuer.end(cookie, dict(request.query_params))
            begun = await self._sessions.begin_issued(issued)
            return await self._signed_in(request, *begun, following)
        except CompactionError as error:
            return self._not_signed_in(request, error, CONSOLE)

    def _not_signed_in(self, request: Request, error: CompactionError, following: str) -> Response:
        status = status_of(error)
        outcome, kind = outcome_of(status, ""), type(error).__name__
        entry = replace(self._entry(request, "-"), status=status, outcome=outcome, error=kind)
        self._services.audit.refuse_early(entry)
        return self._plain(request, following, str(error), status)

    async def _signed_in(
        self, request: Request, cookie: str, caller: Caller, following: str
    ) -> Response:
        entry = self._entry(request, caller.name)
        await self._services.audit.begin(entry)
        answer = RedirectResponse(following, 303, HEADERS)
        name = COOKIE + await self._services.store.store_id()
        self._set_cookie(request, answer, name, cookie, CONSOLE)
        self._services.audit.end(replace(entry, outcome=DONE, status=303))
        return answer

    def _set_cookie(
        self, request: Request, answer: Response, name: str, value: str, path: str
    ) -> None:
        public = self._services.settings.gateway.public_url
        is_secure = request.url.scheme == "https" or public.startswith("https:")
        # With `Strict`, browsers send no cookie after the redirect of an issuer.
        answer.set_cookie(name, value, path=path, httponly=True, samesite="lax", secure=is_secure)

    async def _sign_out(self, request: Request) -> Response:
        """End the session."""
        await self._checked_form(request)
        entry = self._entry(request, authorized_call().caller.name)
        self._sessions.end(_session())
        await self._services.audit.begin(entry)
        answer = RedirectResponse(SIGN_IN, 303, HEADERS)
        answer.delete_cookie(COOKIE + await self._services.store.store_id(), path=CONSOLE)
        self._services.audit.end(replace(entry, outcome=DONE, status=303))
        return answer

    def _entry(self, request: Request, caller: str) -> AuditEntry:
        return entry_of(request.scope, caller, self._services.clock.now_s())

    # --------------------------------------------------------------------------------------- Events

    async def _events(self, request: Request) -> Response:
        """Stream the live part of a page: at once, and whenever a sample has changed it."""
        shown, path, query = self._page_at(request.query_params.get("of", ""))
        session = _session()
        if self.sampler.streams >= STREAMS_MAX or session.streams >= STREAMS_OF_SESSION_MAX:
            raise UnavailableError("too many pages are open: close some")

        async def live(caller: Caller) -> str:
            """Return the live part for a caller; callers with the same grants share it."""
            render = partial(self._live, shown, path, query, caller)
            key = ("page", shown.address, *path.items(), *query.items(), caller.grants)
            text = await self.sampler.shared(key, render)
            return str(text).replace(CSRF_MARK, session.csrf)

        async def events() -> AsyncIterator[str]:
            self.sampler.streams += 1
            session.streams += 1
            last = ""
            try:
                while (visit := await self._sessions.revisit(session)) is not None:
                    text = await live(visit[1])
                    age_s = max(self._services.clock.now_s() - self.sampler.at_s, 0.0)
                    if text != last:
                        yield _event("", text)
                        last = text
                    yield _event("beat", json.dumps({"age_s": round(age_s, 1)}))
                    if not await self.sampler.next_sample():
                        return
                yield _event("signed-out", "{}")
            finally:
                self.sampler.streams -= 1
                session.streams -= 1

        return StreamingResponse(events(), media_type="text/event-stream", headers=HEADERS)

    def _page_at(self, address: str) -> tuple[PageRoute, Mapping[str, str], Mapping[str, str]]:
        """Return the live page at an address, with the parameters of its path and query.

        Raises:
            RequestError: No live page is there.
        """
        parts = urlsplit(address)
        scope = {"type": "http", "method": "GET", "path": unquote(parts.path)}
        for page_route, shown in self._pages:
            match, child = page_route.matches(scope)
            if match is Match.FULL and shown.live:
                query = dict(parse_qsl(parts.query, max_num_fields=FORM_FIELDS_MAX))
                return shown, child["path_params"], query
        raise RequestError(f"no live page is at {address[:200]!r}")

    async def _live(
        self, shown: PageRoute, path: Mapping[str, str], query: Mapping[str, str], caller: Caller
    ) -> str:
        """Return the live part of a page, or the error in its place."""
        view = View(
            calls=InProcessCalls(self._handlers, caller, None),
            caller=caller.name,
            csrf=CSRF_MARK,
            route=shown,
            path=path,
            query=query,
            now_s=self._services.clock.now_s(),
        )
        serve_call(AuthorizedCall(caller))
        try:
            check_right(self._handlers[shown.of].right)
            return render_live(shown.template, {"view": view, **await shown.handler(view)})
        except ForbiddenError:  # Its text names the caller, and others see this part, too.
            return _problem_part("your rights no longer include this page")
        except CompactionError as error:
            return _problem_part(str(error))


def _problem_part(text: str) -> str:
    """Return what replaces the live part of a page."""
    return f'<div class="flash error" role="alert">{escape(text)}</div>'


def _session() -> ConsoleSession:
    """Return the session of the current call."""
    session = authorized_call().session
    assert isinstance(session, ConsoleSession), "a page of the console is open to a token"
    return session


def _declared(method: str, path: str, right: RouteRight, endpoint: Endpoint) -> Route:
    """Return a route of the console with its right, as `route` declares one of the API."""

    async def handle(request: Request) -> Response:
        return await endpoint(request)

    handle.declared = DeclaredRoute(f"{method} {path}", right, {})  # type: ignore[attr-defined]  # `right_of` reads it
    return Route(path, handle, methods=[method])


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form."""
    text = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX))
    except ValueError as error:
        raise RequestError(f"the form has more than {FORM_FIELDS_MAX} fields") from error


def body_of(texts: Mapping[str, str], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of a call from the fields of a form. Empty fields are left out.

    Args:
        texts: Name → text. Dots lead into objects: `settings.target_bytes`.
        values: Name → JSON.

    Raises:
        RequestError: A value is not JSON, or stands where others have an object.
    """
    body: dict[str, Any] = {}
    for name, text in [*texts.items(), *values.items()]:
        if not text:
            continue
        try:
            value = json.loads(text) if name in values else text
        except ValueError as error:
            raise RequestError(f"{name} {text[:100]!r} is no number or switch") from error
        *outer, last = name.split(".")
        inner = body
        for key in outer:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise RequestError(f"the form has {key} as a value, and {name} within it")
        inner[last] = value
    return body


def _require_same_site(request: Request) -> None:
    """Reject a form that another site sends.

    Raises:
        ForbiddenError: The browser names another site.
    """
    origin, host = request.headers.get("origin", "null"), request.headers.get("host", "")
    is_foreign = request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    if is_foreign or (origin != "null" and urlsplit(origin).netloc != host):
        raise ForbiddenError("the form comes from another site")


def _safe_address(text: str) -> str:
    """Return an address below the console; anything else becomes the overview."""
    parts = urlsplit(text.replace("\\", ""))
    inside = parts.path == CONSOLE or parts.path.startswith(f"{CONSOLE}/")
    if parts.scheme or parts.netloc or not inside or not text.isprintable():
        return CONSOLE
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _event(name: str, text: str) -> str:
    """Return an event of a stream; without a name it is swapped into the page."""
    head = f"event: {name}\n" if name else ""
    return head + "".join(f"data: {line}\n" for line in text.split("\n")) + "\n"


@page(f"{CONSOLE}/call", "ask.html", of="GET /v1/tables", title="Are you sure?", live=False)
async def asked(_: View) -> Variables:
    """Show the question of a form."""
    return {}


class ConsoleErrors:
    """Answers the errors of a route of the console with a page."""

    def __init__(self, guarded: Route, pages: ConsolePages) -> None:
        self._app, self._route, self._pages = guarded.app, guarded, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the route, or the page of its error."""
        scope["route"] = self._route  # Metrics count requests by route.
        try:
            await self._app(scope, receive, send)
        except CompactionError as error:
            await self._pages.problem(Request(scope, receive), error)(scope, receive, send)
