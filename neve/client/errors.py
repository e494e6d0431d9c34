"""What goes wrong for a caller, as a tree. Siblings answer: who must act?

    NeveError                       exit code 1: it failed
    ├── CallerError             2   the caller must change what was asked for
    │   ├── UnauthorizedError       the token is missing or wrong
    │   ├── ForbiddenError          the token does not allow it
    │   └── NotFoundError           no such table, tablet, group or route
    ├── RefusedError            3   the request is sound, but the present state forbids it
    ├── RequestFailedError      1   a compaction that was asked for failed, or was cancelled
    ├── UnavailableError        4   the service, or a part of it, did not answer
    │   ├── QuotaError              the caller has had its share for now; try again later
    │   └── UnknownOutcomeError     it may have been done; the same call id may be sent again
    └── ProtocolError           1   the answer cannot be understood

`error` is the name of the server's own class (`UnknownTableError`), `code` a word for
programs, and the text says which value was wrong and what was expected.
Nothing of the project is imported here.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED, EXIT_UNAVAILABLE = range(5)


class NeveError(Exception):
    """Everything that the client raises on purpose.

    Attributes:
        error: The name of the server's error class; this class's, if the client found it.
        code: One stable word for programs, or empty.
        status: The HTTP status, or None if there was no answer.
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
    """The token does not allow it; somebody with `admin` can give more."""


class NotFoundError(CallerError):
    """There is no such table, tablet, group or route."""


class RefusedError(NeveError):
    """The request is sound, but the present state does not allow it."""

    exit_code = EXIT_REFUSED


class RequestFailedError(NeveError):
    """A compaction that was asked for ended without being done; the text says why."""


class UnavailableError(NeveError):
    """The service, or a part of it, did not answer in time."""

    exit_code = EXIT_UNAVAILABLE


class QuotaError(UnavailableError):
    """The caller has had its share for now; nothing was done."""


class UnknownOutcomeError(UnavailableError):
    """It may have been done, or not; sending the same call id again is safe.

    Attributes:
        call: Id of the call, if it carried one; `Client.call` tells what became of it.
    """

    call: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.call is None else f"{text} (the id of the call is {self.call})"


class ProtocolError(NeveError):
    """The answer is not what this client understands; are the versions alike?"""


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
    """Return the error that an answer stands for.

    Args:
        status: The HTTP status, 400 or more.
        problem: The body of an `application/problem+json` answer; empty if it was none.
    """
    name = str(problem.get("error", ""))
    kind = _BY_STATUS.get(status, CallerError if status < 500 else NeveError)
    if name == "UnknownOutcomeError":
        kind = UnknownOutcomeError
    message = str(problem.get("detail") or f"the server answered with HTTP status {status}")
    return kind(message, error=name, code=str(problem.get("code", "")), status=status)
