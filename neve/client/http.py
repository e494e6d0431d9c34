"""HTTP calls of the client: token, call id, bounded retries, and decoding of answers.

Errors of the transport and of the service become the exceptions of `neve.client.errors`. The
other modules of this package define the individual calls. `http.client` makes them with a fifth of
the processor time of httpx. httpx is loaded when it is first needed: for streams, large bodies,
event loops, and a user or a transport that only httpx supports.
"""

from __future__ import annotations

import http.client
import json
import secrets
import select
import ssl
import sys
import time  # noqa: TID251  the client may import no clock of the project
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit

from neve.api import CALL_HEADER, PROBLEM
from neve.api.files import open_regular
from neve.client.errors import (
    CallerError,
    NeveError,
    ProtocolError,
    UnavailableError,
    UnknownOutcomeError,
    error_of,
)

if TYPE_CHECKING:
    import httpx

    from neve.api import FilePage, TabletPage

# ---------------------------------------------------------------------------- Wire models from JSON


T = TypeVar("T")
_Response = TypeVar("_Response", "httpx.Response", "_PlainAnswer")
_Page = TypeVar("_Page", "FilePage", "TabletPage")


def decode(kind: type[T], value: Any) -> T:
    """Return a value of an annotated type, decoded from JSON.

    Unknown fields are ignored, because the server may be newer.

    Raises:
        ProtocolError: A required field is missing, or a field has the wrong type.
    """
    try:
        return cast("T", _decode(kind, value, kind.__name__))
    except ValueError as error:
        message = f"the service's answer is not understood: {error}; are the versions alike?"
        raise ProtocolError(message) from error


def decode_list(kind: type[T], answer: Any, name: str) -> list[T]:
    """Return the list in one field of an answer, decoded.

    Args:
        kind: Type of each value.
        answer: A JSON object.
        name: Name of the field that holds the list.

    Raises:
        ProtocolError: The field is not a list, or a value cannot be decoded.
    """
    listed = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        message = f"the service's answer has no list {name!r}; are the versions alike?"
        raise ProtocolError(message)
    return [decode(kind, item) for item in listed]


def _decode(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _decode_object(cast("type[Any]", kind), value, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        present = [option for option in inner if option is not type(None)]
        return None if value is None else _decode(present[0], value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_decode(inner[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return dict(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    whole = kind is not int or not isinstance(value, bool)
    if isinstance(kind, type) and isinstance(value, kind) and whole:
        return value
    raise ValueError(f"{where} is {value!r}, expected {kind}")


def _decode_object(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}, expected an object")  # noqa: TRY004  one kind of error for callers
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in value:
            values[field.name] = _decode(
                hints[field.name], value[field.name], f"{where}.{field.name}"
            )
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}.{field.name} is missing")
    return kind(**values)


# -------------------------------------------------------------------------------------------- Calls


TRIES_MIN = 4
"""Tries for a service that has never answered this connection; it may not exist."""
RETRY_S = 60.0
"""Retry time for a service that has answered before, such as a restarting gateway."""
PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 3.0
RETRY_AFTER_MAX_S = 10.0
"""Longest pause accepted from a `Retry-After` header."""
POLL_MAX_S = 2.0
MESSAGE_BYTES_MAX = 1 << 20
CONNECT_TIMEOUT_S = 5.0

Parameters = Mapping[str, str | int | float | bool | list[str] | None]


def new_call() -> str:
    """Return a new call id that contains its creation time (UUIDv7, RFC 9562)."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) & ~(0b11 << 62) | 7 << 76 | 0b10 << 62
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Connection:
    """A connection to one gateway; handles paths and bytes, but no wire models."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float = 60.0,
        retry_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        transport: httpx.BaseTransport | None = None,
        authorities: str | None = None,
        certificate: str | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise CallerError(f"URL {url!r} of the service must begin with http:// or https://")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._retries = _Retries(retry_s, clock)
        # Loading the authorities is slow, so plain HTTP skips it.
        self._tls = _tls(authorities, certificate) if url.startswith("https://") else None
        self._transport = transport
        self._opened: httpx.Client | None = None
        # A user and password in the URL are sent by httpx alone.
        by_httpx = transport is not None or "@" in urlsplit(url).netloc
        self._plain = None if by_httpx else _PlainCalls(self.url, self._tls, timeout_s)

    @property
    def _http(self) -> httpx.Client:
        """The client of httpx, created on first use."""
        if self._opened is None:
            httpx = _load_httpx()
            self._opened = httpx.Client(**self._options(), transport=self._transport)
        return self._opened

    def _options(self) -> dict[str, Any]:
        """Return the arguments of httpx's clients."""
        return {
            "base_url": self.url,
            "headers": self._headers,
            "timeout": _load_httpx().Timeout(self._timeout_s, connect=CONNECT_TIMEOUT_S),
            "verify": self._tls or False,
            "trust_env": False,
        }

    def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            self._opened.close()
        if self._plain is not None:
            self._plain.close()

    def for_tasks(self) -> AsyncConnection:
        """Return an equal connection for the tasks of an event loop."""
        client = _load_httpx().AsyncClient(**self._options())
        return AsyncConnection(client, self.url, self._retries)

    def call(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters | None = None,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        call: str | None = None,
    ) -> Any:
        """Return the JSON answer of one call.

        Args:
            method: `GET`, `POST`, …
            path: Path below the URL, with a leading slash.
            parameters: Query parameters; None values are omitted.
            body: Value to send as JSON.
            content: Bytes to send unchanged, which may be many.
            headers: Headers in addition to the token.
            call: Id by which the server recognises a repeated call.

        Raises:
            NeveError: The server refused, failed or did not answer.
        """
        sent = dict(headers or {})
        if call is not None:
            sent[CALL_HEADER] = call
        repeatable, given = method == "GET" or call is not None, _without_none(parameters)
        with _named(call):
            if self._plain is None or content is not None:
                request = self._http.build_request(
                    method, path, params=given, json=body, content=content, headers=sent
                )
                return _answer(self._send(request, repeats=repeatable))
            data = b""
            if body is not None:
                data = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
                sent["Content-Type"] = "application/json"
            return self._send_plain(method, path + _query(given), data, sent, repeats=repeatable)

    def post(self, path: str, content: bytes, kind: str, call: str) -> Any:
        """Return the JSON answer of a small post.

        Args:
            path: Path below the URL, with a leading slash.
            content: Bytes to send.
            kind: Their content type.
            call: Id by which the server recognises a repeated call.
        """
        headers = {"Content-Type": kind}
        if self._plain is None:
            return self.call("POST", path, content=content, headers=headers, call=call)
        headers[CALL_HEADER] = call
        with _named(call):
            return self._send_plain("POST", path, content, headers, repeats=True)

    def pages(self, path: str, kind: type[_Page]) -> Iterator[_Page]:
        """Yield the pages of a listing."""
        page = decode(kind, self.call("GET", path))
        yield page
        while page.next is not None:
            page = decode(kind, self.call("GET", path, parameters={"after": page.next}))
            yield page

    @contextmanager
    def stream(
        self, path: str, parameters: Parameters, method: str = "GET", **sent: Any
    ) -> Iterator[Iterator[bytes]]:
        """Open a streamed answer, and yield an iterator over its chunks of bytes.

        Args:
            path: Path below the URL, with a leading slash.
            parameters: Query parameters; None values are omitted.
            method: HTTP method; only `GET` is retried.
            sent: `body` (sent as JSON), `content` (sent unchanged), `headers`.

        Raises:
            NeveError: As for `call`; also mid-stream, if the connection breaks.
        """
        sent["json"] = sent.pop("body", None)
        request = self._http.build_request(method, path, params=_without_none(parameters), **sent)
        response = self._send(request, repeats=method == "GET", stream=True)
        try:
            if response.status_code >= 400:
                with _translate_httpx_errors(self.url):
                    response.read()
                raise _problem(response)
            yield _chunks(response, self.url)
        finally:
            response.close()

    def _send(
        self, request: httpx.Request, *, repeats: bool, stream: bool = False
    ) -> httpx.Response:
        def send() -> httpx.Response:
            with _translate_httpx_errors(self.url, writes=request.method != "GET"):
                return self._http.send(request, stream=stream)

        return self._repeated(send, repeats=repeats)

    def _send_plain(
        self, method: str, target: str, content: bytes, headers: Mapping[str, str], *, repeats: bool
    ) -> Any:
        """Return the JSON answer of a call that `http.client` makes."""
        assert self._plain is not None
        send = partial(self._plain.send, method, target, content, {**self._headers, **headers})
        return _answer(self._repeated(send, repeats=repeats))

    def _repeated(self, send: Callable[[], _Response], *, repeats: bool) -> _Response:
        """Send until there is an answer that counts, or until it was tried for long enough."""
        tries = _Tries(self._retries, repeats=repeats)
        while True:
            tries.begin()
            try:
                response = send()
            except UnavailableError:
                if (pause_s := tries.pause_s(None)) is None:
                    raise
            else:
                if (pause_s := tries.pause_s(response)) is None:
                    return response
                response.close()
            self._sleep(pause_s)


@dataclass(slots=True)
class _Retries:
    """How long the calls of a connection are sent again."""

    retry_s: float | None
    """None: `RETRY_S` for a service that has answered, otherwise a few tries."""
    clock: Callable[[], float]
    answered: bool = False
    """Whether the service has ever answered."""


class _Tries:
    """The tries of one call: decides when it is sent again."""

    def __init__(self, retries: _Retries, *, repeats: bool) -> None:
        self._retries, self._repeats = retries, repeats
        self._begun_s, self._number = retries.clock(), 0
        self._pause_s, self._is_last = 0.0, False

    def begin(self) -> None:
        """Begin a try."""
        self._pause_s = _pause_s(self._number)
        spent_s = self._retries.clock() + self._pause_s - self._begun_s
        self._is_last = not self._repeats or self._gives_up(spent_s)
        self._number += 1

    def pause_s(self, response: httpx.Response | _PlainAnswer | None) -> float | None:
        """Return the pause before the next try; None: there is none.

        Args:
            response: The answer to this try; None: it was lost.
        """
        if response is None:
            return None if self._is_last else self._pause_s
        self._retries.answered = True
        refused = _is_problem(response) and self._number >= TRIES_MIN
        if self._is_last or refused or response.status_code not in (429, 502, 503, 504):
            return None
        return max(self._pause_s, _asked_pause_s(response))

    def _gives_up(self, spent_s: float) -> bool:
        """Return whether the next try is the last one.

        Args:
            spent_s: Time since the first try, including the pause after the next one.
        """
        retry_s = self._retries.retry_s
        if retry_s is None and not self._retries.answered:
            return self._number + 1 >= TRIES_MIN
        return spent_s > (RETRY_S if retry_s is None else retry_s)


class AsyncConnection:
    """A connection for the tasks of an event loop: calls of JSON and bytes, no streams."""

    def __init__(self, client: httpx.AsyncClient, url: str, retries: _Retries) -> None:
        self._http, self._url, self._retries = client, url, retries

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(
        self, method: str, path: str, content: bytes = b"", kind: str = "", call: str | None = None
    ) -> Any:
        """Return the JSON answer of one call, as `Connection.call` does."""
        import asyncio  # Here: only programs with an event loop need it.

        headers = {"Content-Type": kind} if kind else {}
        headers |= {CALL_HEADER: call} if call is not None else {}
        request = self._http.build_request(method, path, content=content or None, headers=headers)
        tries = _Tries(self._retries, repeats=method == "GET" or call is not None)
        with _named(call):
            while True:
                tries.begin()
                try:
                    with _translate_httpx_errors(self._url, writes=method != "GET"):
                        response = await self._http.send(request)
                except UnavailableError:
                    if (pause_s := tries.pause_s(None)) is None:
                        raise
                else:
                    if (pause_s := tries.pause_s(response)) is None:
                        return _answer(response)
                await asyncio.sleep(pause_s)


# -------------------------------------------------------------------------------------- Plain calls


@dataclass(frozen=True, slots=True)
class _PlainAnswer:
    """An answer to a plain call, with what this module uses of httpx's."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes
    url: str

    def json(self) -> Any:
        return json.loads(self.content)

    def close(self) -> None:
        """Its connection is free already."""


class _OneWrite(http.client.HTTPConnection):
    """Sends head and body of a request in one write: one packet, which wakes the server once."""

    _parts: list[Any] | None = None

    def send(self, data: Any) -> None:
        """Send bytes, or keep them until the request is whole."""
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)

    def send_whole(
        self, method: str, target: str, content: bytes, headers: Mapping[str, str]
    ) -> None:
        """Send a whole request."""
        self._parts = []
        self.request(method, target, body=content or None, headers=dict(headers))
        whole, self._parts = b"".join(self._parts), None
        # A server may refuse a large body with an answer, and close before it has read all.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send(whole)


class _OneTlsWrite(_OneWrite, http.client.HTTPSConnection):
    """The same over TLS."""


class _PlainCalls:
    """Connections that stay open, one for each concurrent call. Safe to share between threads."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._url, self._prefix = url, parts.path
        self._host, self._port = parts.hostname or "", parts.port
        self._tls, self._timeout_s = tls, timeout_s
        self._idle: list[_OneWrite] = []

    def send(
        self, method: str, target: str, content: bytes, headers: Mapping[str, str]
    ) -> _PlainAnswer:
        """Send one request, and return its answer.

        Raises:
            CallerError: A header has a character that HTTP does not allow; nothing was sent.
            UnavailableError: No service answers; nothing was sent. Or the answer to a `GET` is
                lost.
            UnknownOutcomeError: The answer to another method is lost.
        """
        connection = self._open()
        try:
            with _translate_errors(self._url, writes=method != "GET"):
                connection.send_whole(method, self._prefix + target, content, headers)
                response = connection.getresponse()
                body = response.read()
        except ValueError as error:
            connection.close()
            raise CallerError(f"the call cannot be sent: {error}") from error
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        named = {name.lower(): value for name, value in response.getheaders()}
        return _PlainAnswer(response.status, named, body, self._url + target)

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def _open(self) -> _OneWrite:
        """Return an idle connection that the server has not closed, or a new one."""
        with suppress(IndexError):  # Another thread may take the last one.
            while True:
                idle = self._idle.pop()
                if not _is_readable(idle):
                    return idle
                idle.close()
        wait_s, tls = CONNECT_TIMEOUT_S, self._tls
        connection: _OneWrite = (
            _OneWrite(self._host, self._port, timeout=wait_s)
            if tls is None
            else _OneTlsWrite(self._host, self._port, timeout=wait_s, context=tls)
        )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise _no_service_error(self._url) from error
        connection.sock.settimeout(self._timeout_s)
        return connection


def _is_readable(connection: _OneWrite) -> bool:
    """Return whether an idle connection has something to read: its end."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


# -------------------------------------------------------------------------------------------- Parts


def _asked_pause_s(response: httpx.Response | _PlainAnswer) -> float:
    """Return the pause that the service asks for, capped at `RETRY_AFTER_MAX_S`."""
    text = response.headers.get("retry-after", "")
    return min(float(text), RETRY_AFTER_MAX_S) if text.isdigit() and len(text) < 10 else 0.0


def _tls(authorities: str | None, certificate: str | None) -> ssl.SSLContext:
    """Return the TLS settings: trusted authorities and the client's certificate.

    Raises:
        CallerError: A file cannot be used.
    """
    httpx = _load_httpx()
    if authorities is None and certificate is None:
        return cast("ssl.SSLContext", httpx.create_ssl_context(trust_env=False))
    try:
        for path in filter(None, (authorities, certificate)):
            open_regular(path).close()
        context: ssl.SSLContext = httpx.create_ssl_context(trust_env=False)
        if authorities is not None:
            context = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            context.load_cert_chain(certificate, password="")
    except (OSError, ValueError) as error:
        raise CallerError(
            f"authorities {authorities} and certificate {certificate} cannot be used: {error};"
            " expected files in PEM (NEVE_CA_FILE, NEVE_CLIENT_CERTIFICATE)"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _is_problem(response: httpx.Response | _PlainAnswer) -> bool:
    """Return whether the service itself, and not a proxy in front of it, reports a problem."""
    kind: str = response.headers.get("content-type", "")
    return kind.startswith(PROBLEM)


class PollPauses:
    """Growing pauses between polls of work on the service."""

    def __init__(self, first_s: float, end_s: float | None) -> None:
        """Set the first pause and the deadline.

        Args:
            first_s: Length of the first pause.
            end_s: When to stop polling, by `time.monotonic`; None: never.
        """
        self._pause_s, self._end_s = first_s, end_s

    def wait(self) -> bool:
        """Pause and return True; after the deadline, return False at once."""
        left_s = self._pause_s if self._end_s is None else self._end_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(self._pause_s, left_s))
        self._pause_s = min(self._pause_s * 1.5, POLL_MAX_S)
        return True


def _pause_s(number: int) -> float:
    """Return an exponentially growing pause, with jitter to spread out waiting clients."""
    longest_s = min(PAUSE_FIRST_S * 2.0 ** min(number, 10), PAUSE_MAX_S)
    return longest_s * (0.5 + 0.5 * secrets.randbelow(1001) / 1000)


def _load_httpx() -> Any:
    """Return httpx, without its own command line, which loads click, rich and pygments."""
    modules = cast("dict[str, Any]", sys.modules)
    # None in the table of modules marks it as not installed.
    is_new = modules.setdefault("httpx._main", None) is None
    import httpx

    if is_new:
        modules.pop("httpx._main", None)
    return httpx


@contextmanager
def _translate_errors(url: str, *, writes: bool = False) -> Iterator[None]:
    """Translate errors of the connection into errors of this client.

    Args:
        url: URL of the service, for the messages.
        writes: Whether a lost answer leaves the outcome unknown.
    """
    lost = UnknownOutcomeError if writes else UnavailableError
    hint = "; it may have been done" if writes else ""
    try:
        yield
    except TimeoutError as error:
        raise lost(f"{url} did not answer in time{hint}") from error
    except (http.client.HTTPException, OSError) as error:
        raise lost(f"the connection to {url} broke: {error}{hint}") from error


@contextmanager
def _translate_httpx_errors(url: str, *, writes: bool = False) -> Iterator[None]:
    """Translate errors of httpx into errors of this client; arguments as above."""
    httpx = _load_httpx()
    with _translate_errors(url, writes=writes):
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _no_service_error(url) from error
        except httpx.TimeoutException as error:
            raise TimeoutError(str(error)) from error
        except httpx.HTTPError as error:
            raise OSError(str(error)) from error


def _no_service_error(url: str) -> UnavailableError:
    return UnavailableError(
        f"no service answers at {url}: is the service running? "
        "(`neve up` starts one on this machine, `neve doctor` checks)"
    )


@contextmanager
def _named(call: str | None) -> Iterator[None]:
    """Add the id of a call to the error of its unknown outcome."""
    try:
        yield
    except UnknownOutcomeError as error:
        error.call = call
        raise


def _answer(response: httpx.Response | _PlainAnswer) -> Any:
    """Return the JSON of an answer, or raise the problem that it reports."""
    if response.status_code >= 400:
        raise _problem(response)
    return _json(response)


def _chunks(response: httpx.Response, url: str) -> Iterator[bytes]:
    with _translate_httpx_errors(url):
        yield from response.iter_bytes()


def _query(parameters: Mapping[str, Any]) -> str:
    """Return parameters as the query of a URL, with its question mark; empty without parameters."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in parameters.items()
    }
    query = urlencode(texts, doseq=True)
    return query and f"?{query}"


def _without_none(parameters: Parameters | None) -> dict[str, Any]:
    return {name: value for name, value in (parameters or {}).items() if value is not None}


def _json(response: httpx.Response | _PlainAnswer) -> Any:
    if response.status_code == 204 or not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        kind = response.headers.get("content-type", "nothing")
        raise ProtocolError(
            f"{response.url} answered with {kind} where JSON was expected: is this a Névé service?"
        ) from error


def _problem(response: httpx.Response | _PlainAnswer) -> NeveError:
    problem: Any = {}
    if response.headers.get("content-type", "").startswith(PROBLEM):
        try:
            problem = json.loads(response.content[:MESSAGE_BYTES_MAX])
        except ValueError:
            problem = {}
    return error_of(response.status_code, problem if isinstance(problem, dict) else {})
