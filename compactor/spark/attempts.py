"""The attempts under way in a driver: who waits for each, and how it ends."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from common import errors
from common.errors import EngineDiedError, RewriteError
from compactor.core.result import RewriteProgress
from compactor.spark import messages

OnProgress = Callable[[RewriteProgress], None]


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Who waits for an attempt, and who hears of its progress."""

    result: asyncio.Future[Any]
    on_progress: OnProgress


class Attempts:
    """Every open attempt has one future, settled at most once."""

    def __init__(self) -> None:
        """Start with none."""
        self._open: dict[str, _Waiter] = {}

    def open(self, attempt: str, on_progress: OnProgress) -> asyncio.Future[Any]:
        """Return the future of a new attempt.

        Args:
            attempt: An id that is not open.
            on_progress: Hears of its progress.
        """
        assert attempt not in self._open, f"attempt {attempt} runs already"
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[attempt] = _Waiter(result, on_progress)
        return result

    def is_open(self, attempt: str) -> bool:
        """Return whether somebody waits for an attempt."""
        return attempt in self._open

    def close(self, attempt: str) -> None:
        """Forget an attempt; what is heard of it later is a straggler's."""
        self._open.pop(attempt, None)

    def hear(self, notice: messages.Notice) -> None:
        """Pass on what the driver says of an attempt; stragglers are left alone."""
        match notice:
            case messages.Progressed(attempt, progress):
                if (waiter := self._open.get(attempt)) is not None:
                    waiter.on_progress(progress)
            case messages.Done(attempt, result):
                waiter = self._open.get(attempt)
                if waiter is not None and not waiter.result.done():
                    waiter.result.set_result(result)
            case messages.Failed(attempt, error_class, cause):
                self.fail(attempt, _error(error_class, cause))
            case messages.Started() | messages.NotStarted() | messages.LifeSign():
                raise AssertionError(f"{notice} is not about an attempt")

    def fail(self, attempt: str, error: Exception) -> None:
        """Raise an error where an attempt is waited for."""
        waiter = self._open.get(attempt)
        if waiter is not None and not waiter.result.done():
            waiter.result.set_exception(error)
            # Whoever waited may have left already; then nobody has to look at it.
            waiter.result.exception()

    def ids(self) -> tuple[str, ...]:
        """Return the open attempts."""
        return tuple(self._open)

    def fail_each(
        self, attempts: Iterable[str], cause: str, error: type[RewriteError] = EngineDiedError
    ) -> None:
        """Fail attempts because their driver is gone; those that are over are left alone."""
        for attempt in attempts:
            self.fail(attempt, error(cause))


def _error(error_class: str, cause: str) -> Exception:
    """Return the error that a class of `common.errors` and a cause stand for."""
    kind = getattr(errors, error_class, RewriteError)
    assert issubclass(kind, errors.CompactionError), kind
    error: Exception = kind(cause)
    return error
