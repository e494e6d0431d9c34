"""Exceptions of the client, as a tree. Siblings differ by who must act.

    NeveError                       exit code 1: the call failed
    ├── CallerError             2   the caller must change what was asked for
    │   ├── UnauthorizedError       the token is missing or wrong
    │   ├── ForbiddenError          the token does not permit the call
    │   └── NotFoundError           no such table, tablet, group or route
    ├── RefusedError            3   the request is valid, but the current state forbids it
    ├── RequestFailedError      1   a requested compaction failed or was cancelled
    ├── UnavailableError        4   the service, or a part of it, did not answer
    │   ├── QuotaError              the caller has used up its quota; try again later
    │   └── UnknownOutcomeError     the call may have taken effect; retry with the same call id
    └── ProtocolError           1   the client cannot parse the answer

`error` is the name of the server's exception class (`UnknownTableError`), `code` is a stable
word for programs, and the text states the wrong value and the expected one.
This module imports nothing of the project.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED, EXIT_UNAVAILABLE = range(5)


class NeveError(Exception):
    """Base class of all errors that the client raises on purpose.

    Attributes:
        error: Name of the server's exception class; of this class if the client found the error.
        code: One stable word for programs, or empty.
        status: HTTP status, or None if there was no answer.
    """

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(
        self, message: str, *, error: str = "", code: str = "", status: int | None = None
    ) -> None:
        super().__init__(message)
        self.error = error or type(self).__name__
        self.code = code
        self.status = status


class CallerError(NeveError):
    """The caller must change what was asked for."""

    exit_code = EXIT_USAGE


class UnauthorizedError(CallerError):
    """The bearer token is missing or wrong."""


class ForbiddenError(CallerError):
    """The token does not permit the call; a user with `admin` can grant more rights."""


class NotFoundError(CallerError):
    """There is no such table, tablet, group or route."""


class RefusedError(NeveError):
    """The request is valid, but the current state does not allow it."""

    exit_code = EXIT_REFUSED


class RequestFailedError(NeveError):
    """A requested compaction ended without completing; the text gives the reason."""


class UnavailableError(NeveError):
    """The service, or a part of it, did not answer in time."""

    exit_code = EXIT_UNAVAILABLE


class QuotaError(UnavailableError):
    """The caller has used up its quota; the call had no effect."""


class UnknownOutcomeError(UnavailableError):
    """The call may or may not have taken effect; retrying with the same call id is safe.

    Attributes:
        call: Id of the call, if it carried one; pass it to `Client.call` to learn the outcome.
    """

    call: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.call is None else f"{text} (the id of the call is {self.call})"


class ProtocolError(NeveError):
    """The client cannot parse the answer; client and server versions may differ."""


_BY_STATUS: dict[int, type[NeveError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: RefusedError,
    429: QuotaError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def error_of(status: int, problem: Mapping[str, Any]) -> NeveError:
    """Return the exception for an error answer.

    Args:
        status: HTTP status, 400 or more.
        problem: Body of an `application/problem+json` answer; empty for other answers.
    """
    name = str(problem.get("error", ""))
    kind = _BY_STATUS.get(status, CallerError if status < 500 else NeveError)
    if name == "UnknownOutcomeError":
        kind = UnknownOutcomeError
    message = str(problem.get("detail") or f"the server answered with HTTP status {status}")
    return kind(message, error=name, code=str(problem.get("code", "")), status=status)
