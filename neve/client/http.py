"""HTTP calls of the client: token, call id, bounded retries, and decoding of answers.

Errors of the transport and of the service become the exceptions of `neve.client.errors`. The
other modules of this package define the individual calls.
"""

import json
import secrets
import ssl
import sys
import time  # noqa: TID251  the client may import no clock of the project
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, cast

from neve.api import CALL_HEADER, PROBLEM, FilePage, TabletPage
from neve.api.files import open_regular
from neve.client.errors import (
    CallerError,
    NeveError,
    ProtocolError,
    UnavailableError,
    UnknownOutcomeError,
    error_of,
)

# httpx loads its own command line, with click, rich and pygments, if it finds them. None in the
# table of modules marks it as not installed.
_modules = cast("dict[str, Any]", sys.modules)
_modules.setdefault("httpx._main", None)
import httpx  # noqa: E402

if _modules["httpx._main"] is None:
    del _modules["httpx._main"]

# ---------------------------------------------------------------------------- Wire models from JSON


T = TypeVar("T")
_Page = TypeVar("_Page", FilePage, TabletPage)


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
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url.rstrip("/")
        self._sleep, self._clock = sleep, clock
        self._retry_s = retry_s
        self._answered = False
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            transport=transport,
            # Loading the authorities is slow, so plain HTTP skips it.
            verify=self.url.startswith("https://") and _tls(authorities, certificate),
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

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
            content: Bytes to send unchanged.
            headers: Headers in addition to the token.
            call: Id by which the server recognises a repeated call.

        Raises:
            NeveError: The server refused, failed or did not answer.
        """
        sent = dict(headers or {})
        if call is not None:
            sent[CALL_HEADER] = call
        request = self._http.build_request(
            method, path, params=_without_none(parameters), json=body, content=content, headers=sent
        )
        repeatable = method == "GET" or call is not None
        try:
            response = self._send(request, repeats=repeatable)
            if response.status_code >= 400:
                raise _problem(response)
        except UnknownOutcomeError as error:
            error.call = call
            raise
        return _json(response)

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
                with _translate_errors(self.url):
                    response.read()
                raise _problem(response)
            yield _chunks(response, self.url)
        finally:
            response.close()

    def _send(
        self, request: httpx.Request, *, repeats: bool, stream: bool = False
    ) -> httpx.Response:
        begun_s, number = self._clock(), 0
        while True:
            pause_s = _pause_s(number)
            last = not repeats or self._gives_up(number, self._clock() + pause_s - begun_s)
            number += 1
            try:
                with _translate_errors(self.url, writes=request.method != "GET"):
                    response = self._http.send(request, stream=stream)
            except UnavailableError:
                if last:
                    raise
            else:
                self._answered = True
                refused = _is_problem(response) and number >= TRIES_MIN
                if last or refused or response.status_code not in (429, 502, 503, 504):
                    return response
                pause_s = max(pause_s, _asked_pause_s(response))
                response.close()
            self._sleep(pause_s)

    def _gives_up(self, tries: int, spent_s: float) -> bool:
        """Return whether the next try is the last one.

        Args:
            tries: Number of tries made so far.
            spent_s: Time since the first try, including the pause after the next one.
        """
        if self._retry_s is None and not self._answered:
            return tries + 1 >= TRIES_MIN
        return spent_s > (RETRY_S if self._retry_s is None else self._retry_s)


def _asked_pause_s(response: httpx.Response) -> float:
    """Return the pause that the service asks for, capped at `RETRY_AFTER_MAX_S`."""
    text = response.headers.get("retry-after", "")
    return min(float(text), RETRY_AFTER_MAX_S) if text.isdigit() and len(text) < 10 else 0.0


def _tls(authorities: str | None, certificate: str | None) -> ssl.SSLContext | bool:
    """Return the TLS settings: trusted authorities and the client's certificate.

    Raises:
        CallerError: A file cannot be used.
    """
    if authorities is None and certificate is None:
        return True
    try:
        for path in filter(None, (authorities, certificate)):
            open_regular(path).close()
        context = httpx.create_ssl_context(trust_env=False)
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


def _is_problem(response: httpx.Response) -> bool:
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


@contextmanager
def _translate_errors(url: str, *, writes: bool = False) -> Iterator[None]:
    """Translate httpx exceptions into errors of this client.

    Args:
        url: URL of the service, for the messages.
        writes: Whether a lost answer leaves the outcome unknown.
    """
    lost = UnknownOutcomeError if writes else UnavailableError
    hint = "; it may have been done" if writes else ""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise UnavailableError(
            f"no service answers at {url}: is the service running? "
            "(`neve up` starts one on this machine, `neve doctor` checks)"
        ) from error
    except httpx.TimeoutException as error:
        raise lost(f"{url} did not answer in time{hint}") from error
    except httpx.HTTPError as error:
        raise lost(f"the connection to {url} broke: {error}{hint}") from error


def _chunks(response: httpx.Response, url: str) -> Iterator[bytes]:
    with _translate_errors(url):
        yield from response.iter_bytes()


def _without_none(parameters: Parameters | None) -> dict[str, Any]:
    return {name: value for name, value in (parameters or {}).items() if value is not None}


def _json(response: httpx.Response) -> Any:
    if response.status_code == 204 or not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        kind = response.headers.get("content-type", "nothing")
        raise ProtocolError(
            f"{response.url} answered with {kind} where JSON was expected: is this a Névé service?"
        ) from error


def _problem(response: httpx.Response) -> NeveError:
    problem: Any = {}
    if response.headers.get("content-type", "").startswith(PROBLEM):
        try:
            problem = json.loads(response.content[:MESSAGE_BYTES_MAX])
        except ValueError:
            problem = {}
    return error_of(response.status_code, problem if isinstance(problem, dict) else {})
