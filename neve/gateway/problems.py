"""Errors as `application/problem+json` (RFC 9457), with the name of their class.

    {"type": "urn:neve:error:UnknownTableError", "title": "No table has this name.",
     "status": 404, "detail": "no table is named 'event'; …", "error": "UnknownTableError"}

`error` is the class, `code` (of a refusal) is one stable word; `detail` states the wrong value and
the expected one. Unexpected exceptions are logged and returned as `InternalError`, without their
text, which may contain paths or secrets. The docstring of an error class is the title of its
problem.
"""

import math
import reprlib
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from common.errors import (
    CompactionError,
    ConflictError,
    InputError,
    RefusedError,
    RequestError,
    UnavailableError,
    UnknownGroupError,
    UnknownOutcomeError,
    UnknownTableError,
    UnknownTabletError,
    redacted,
)
from common.metadata.changes import Applied, Outcome, Refused, Unknown
from common.telemetry import Log
from neve.api import PROBLEM

RETRY_AFTER_S = "1"
DETAIL_CHARS_MAX = 8_000
"""Limit of a message, which may quote a caller's input or name all columns of a table."""


class UnauthorizedError(RequestError):
    """The bearer token is missing or wrong."""


class ForbiddenError(RequestError):
    """The caller may not do this."""


class QuotaError(RequestError):
    """The caller has had its share for now; `retry_after_s` says when to try again."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class TooLargeError(RequestError):
    """The body is larger than the service takes."""


class SlowBodyError(RequestError):
    """The body did not come in time."""


class BodyError(RequestError):
    """The body or a parameter has the wrong form."""


class UnknownRequestError(RequestError):
    """No request of the table has this id."""


class UnknownJobError(RequestError):
    """No job runs or waits under this id."""


class UnknownCompactorError(RequestError):
    """No compactor has this name."""


class ChangeRefusedError(RefusedError):
    """The store refused a change; `code` says why in a word."""


class CallIdError(RequestError):
    """A call id cannot be taken; `code` says why in a word."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.code = code


STATUS: tuple[tuple[type[CompactionError], int], ...] = (
    (UnauthorizedError, 401),
    (ForbiddenError, 403),
    (QuotaError, 429),
    (TooLargeError, 413),
    (SlowBodyError, 408),
    (BodyError, 422),
    (UnknownTableError, 404),
    (UnknownTabletError, 404),
    (UnknownGroupError, 404),
    (UnknownRequestError, 404),
    (UnknownJobError, 404),
    (UnknownCompactorError, 404),
    (RequestError, 400),
    (InputError, 422),
    (RefusedError, 409),
    (ConflictError, 409),
    (UnknownOutcomeError, 503),
    (UnavailableError, 503),
)
"""The first matching class determines the status; other errors are 500."""


def status_of(error: CompactionError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def require_applied(outcome: Outcome) -> Applied:
    """Return the outcome of an applied change, or raise the error for any other outcome.

    Raises:
        ChangeRefusedError: The store refused the change; nothing was written.
        UnknownOutcomeError: The store did not answer.
    """
    match outcome:
        case Applied():
            return outcome
        case Refused(code=code, reason=reason):
            raise ChangeRefusedError(reason, code)
        case Unknown(reason=reason):
            raise UnknownOutcomeError(f"{reason}; send the same call again")


def problem_response(error: CompactionError) -> JSONResponse:
    """Return the HTTP answer for an error."""
    more = {}
    if isinstance(error, QuotaError):
        more["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return _json_problem(problem_body(error), more)


def problem_body(error: CompactionError) -> dict[str, object]:
    """Return the problem's body for an error."""
    # For a refused change, the code is more specific than the gateway's own class.
    kind: type[CompactionError] = type(error)
    if isinstance(error, ChangeRefusedError):
        kind = RefusedError
    elif isinstance(error, CallIdError):
        kind = RequestError
    name = kind.__name__
    title = (kind.__doc__ or name).strip().splitlines()[0]
    code = str(getattr(error, "code", ""))
    return _body(status_of(error), error=name, title=title, detail=str(error), code=code)


def short_of_memory() -> UnavailableError:
    """Return the error for a failed memory allocation of this process."""
    return UnavailableError(
        "the gateway has no memory left for this call (gateway.memory_max): "
        "try again when it has less to do, or ask for fewer rows or columns"
    )


def install_problems(app: FastAPI, log: Log) -> None:
    """Install the handlers that answer every error of an application with a problem.

    Args:
        app: The application.
        log: Receives unexpected errors.
    """

    async def expected(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, CompactionError)
        return problem_response(error)

    async def short(request: Request, _: Exception) -> JSONResponse:
        log("memory is short", method=request.method, path=request.url.path)
        return problem_response(short_of_memory())

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        cause = f"{type(error).__name__}: {error}"
        log("request failed", method=request.method, path=request.url.path, cause=cause)
        detail = "the service failed in a way that it did not expect; see its log"
        return _answer(500, error="InternalError", title="Unexpected failure.", detail=detail)

    handlers: Mapping[Any, Callable[[Request, Exception], Awaitable[JSONResponse]]] = {
        CompactionError: expected,
        MemoryError: short,
        RequestValidationError: _validation_problem,
        HTTPException: _http_problem,
        ClientDisconnect: _gone_problem,
        Exception: unexpected,
    }
    for kind, answer in handlers.items():
        app.add_exception_handler(kind, answer)


async def _validation_problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    first = errors[0] if errors else {"loc": (), "msg": "unreadable"}
    where = ".".join(str(part) for part in first["loc"]) or "the request"
    given = f", got {_short_text(first['input'])!r}" if "input" in first else ""
    return problem_response(BodyError(f"{where[:200]}: {first['msg']}{given}"))


def _short_text(value: object) -> str:
    """Return the start of a value as text; for a list or object, its first entries."""
    return (str(value) if isinstance(value, str | float | bool) else reprlib.repr(value))[:200]


async def _gone_problem(_: Request, _error: Exception) -> JSONResponse:
    """Answer a caller that disconnected before its body was complete."""
    detail = "the connection ended before the body was whole"
    return _answer(400, error="BodyError", title="The body is not whole.", detail=detail)


async def _http_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, CompactionError):
        # FastAPI wraps errors that occur while it reads a body.
        return problem_response(error.__cause__)
    path, method = request.url.path, request.method
    answers: dict[int, tuple[str, str]] = {
        404: ("UnknownRouteError", f"there is nothing at {path}; /docs lists what there is"),
        405: ("MethodNotAllowedError", f"{method} is not possible at {path}; see /docs"),
        415: ("BodyError", str(error.detail)),
    }
    name, detail = answers.get(error.status_code, ("HTTPError", str(error.detail)))
    title = HTTPStatus(error.status_code).phrase
    return _answer(error.status_code, error=name, title=title, detail=detail, more=error.headers)


def _answer(
    status: int,
    *,
    error: str,
    title: str,
    detail: str,
    more: Mapping[str, str] | None = None,
) -> JSONResponse:
    return _json_problem(_body(status, error=error, title=title, detail=detail), more or {})


def _cut(detail: str) -> str:
    return detail[:DETAIL_CHARS_MAX] + " …"


def _body(status: int, *, error: str, title: str, detail: str, code: str = "") -> dict[str, object]:
    return {
        "type": f"urn:neve:error:{error}",
        "title": title,
        "status": status,
        "detail": redacted(detail if len(detail) <= DETAIL_CHARS_MAX else _cut(detail)),
        "error": error,
        **({"code": code} if code else {}),
    }


def _json_problem(body: Mapping[str, object], more: Mapping[str, str]) -> JSONResponse:
    status, headers = int(str(body["status"])), dict(more)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        headers["Retry-After"] = RETRY_AFTER_S
    return JSONResponse(body, status_code=status, media_type=PROBLEM, headers=headers)
