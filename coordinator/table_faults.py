"""Isolation of unexpected failures of work on one table, so that loops over all tables continue.

    a loop over all tables ─► `run` for each ─► done
                                             └► fails: logged, counted, paused for a while

A pause applies to one kind of work (`collector`, `manifests`, …) on one table or tablet. All other
work continues, including other kinds of work on the same table. The pause doubles with each
consecutive failure and ends with a success. A failure of the core is not isolated: it ends the
process, regardless of the caller (`CoordinatorService.failed`).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from common.errors import BrokenValueError, MetadataError, UnavailableError, redacted
from common.primitives import Backoff, BoundedMap
from common.telemetry import Log

T = TypeVar("T")

BACKOFF = Backoff(base_s=5.0, max_s=300.0)
FAULTS_MAX = 10_000
CAUSE_CHARS_MAX = 500
SENTENCES_MAX = 5
"""Number of unreadable tables and tablets that `neve status` lists."""


STORE_AWAY_ERRORS = (MetadataError, UnavailableError)
"""Errors of a store or storage that does not answer; all work waits for it."""


def is_store_away(error: Exception) -> bool:
    """Return whether an error is due to an unavailable store, and not to its content."""
    return isinstance(error, STORE_AWAY_ERRORS) and not isinstance(error, BrokenValueError)


@dataclass(frozen=True, slots=True)
class Fault:
    """The last failure, the number of consecutive failures, and the time of the next try."""

    part: str
    cause: str
    times: int
    retry_at_s: float
    """Time of the event loop's clock."""

    def sentence(self, now_s: float) -> str:
        """Return a sentence that describes the fault to users."""
        often = "" if self.times == 1 else f" {self.times} times in a row"
        return (
            f"{self.part} failed{often} and pauses for"
            f" {max(0.0, self.retry_at_s - now_s):.0f} s: {self.cause}"
        )


class TableFaults:
    """The faults of a coordinator. Every method is called from one event loop."""

    def __init__(self, log: Log, backoff: Backoff = BACKOFF) -> None:
        """Create an instance without faults; `backoff` sets the length of pauses."""
        self._log = log
        self._backoff = backoff
        self._faults: BoundedMap[tuple[str, str], Fault] = BoundedMap(FAULTS_MAX)
        self._retries_due: set[tuple[str, str]] = set()
        self._unreadable: BoundedMap[str, str] = BoundedMap(FAULTS_MAX)
        self._notices: BoundedMap[tuple[str, str], str] = BoundedMap(FAULTS_MAX)
        self.counts: Counter[str] = Counter()
        """Number of failures since the start, by kind of work."""

    async def run(
        self,
        part: str,
        subject: str,
        work: Callable[[], Awaitable[T]],
        expected: tuple[type[Exception], ...] = (),
        retry: Callable[[], None] | None = None,
    ) -> T | None:
        """Run work on a table or tablet, unless it pauses; return None if it failed or pauses.

        Args:
            part: Kind of work, as shown to users.
            subject: Id of the table, or text of the tablet.
            work: The work to run.
            expected: Errors that are raised to the caller, except for broken stored values,
                which count as faults of the table.
            retry: Schedules the work again; called when the pause is over. Not needed by callers
                that run periodically.
        """
        known = self._faults.get((part, subject))
        if known is not None and asyncio.get_running_loop().time() < known.retry_at_s:
            self._retry_later(part, subject, retry)
            return None
        try:
            done = await work()
        except Exception as error:  # A failure on one table must not end the loop over all tables.
            if isinstance(error, expected) and not isinstance(error, BrokenValueError):
                raise
            self.note(part, subject, error)
            self._retry_later(part, subject, retry)
            return None
        self._faults.pop((part, subject))
        return done

    def _retry_later(self, part: str, subject: str, retry: Callable[[], None] | None) -> None:
        """Schedule one call of `retry` for the end of the pause."""
        key, loop = (part, subject), asyncio.get_running_loop()
        fault = self._faults.get(key)
        if retry is None or fault is None or key in self._retries_due:
            return

        self._retries_due.add(key)
        loop.call_at(fault.retry_at_s, self._retry, key, retry)

    def _retry(self, key: tuple[str, str], retry: Callable[[], None]) -> None:
        self._retries_due.discard(key)
        retry()

    def note(self, part: str, subject: str, error: Exception) -> str:
        """Record a fault, and return its cause."""
        known = self._faults.get((part, subject))
        times = 1 if known is None else known.times + 1
        cause = redacted(f"{type(error).__name__}: {error}"[:CAUSE_CHARS_MAX])
        retry_at_s = asyncio.get_running_loop().time() + self._backoff.wait_s(times)
        self._faults.put((part, subject), Fault(part, cause, times, retry_at_s))
        self.counts[part] += 1
        place = _place_of(error)
        self._log("work on a table failed", work=part, subject=subject, cause=cause, place=place)
        return cause

    def sentences(self, *subjects: str) -> tuple[str, ...]:
        """Return one sentence for users on each fault of the given tables and tablets."""
        now_s = asyncio.get_running_loop().time()
        causes = [(each, cause) for each, cause in self._unreadable if each in subjects]
        return (
            *(_quarantined(subject, cause) for subject, cause in causes),
            *(fault.sentence(now_s) for (_, subject), fault in self._faults if subject in subjects),
        )

    def unreadable(self, part: str, subject: str, cause: str) -> str:
        """Record that a table or tablet cannot be decoded; return a sentence for users.

        It is quarantined: it is not planned until it can be read. This counts as one fault of
        `part`, and as another one if the cause changes.
        """
        cause = redacted(cause[:CAUSE_CHARS_MAX])
        if self._unreadable.get(subject) != cause:
            self._unreadable.put(subject, cause)
            self.counts[part] += 1
            self._log("quarantined, cannot be read", work=part, subject=subject, cause=cause)
        return _quarantined(subject, cause)

    def readable(self, subject: str) -> None:
        """Record that a table or tablet can be read."""
        if self._unreadable.pop(subject) is not None:
            self._log("can be read again", subject=subject)

    def all_unreadable(self) -> tuple[str, ...]:
        """Return a sentence for each of the first unreadable tables and tablets, and a count."""
        every = [_quarantined(subject, cause) for subject, cause in self._unreadable]
        more = len(every) - SENTENCES_MAX
        return (*every[:SENTENCES_MAX], *([f"{more} more cannot be read"] if more > 0 else []))

    def notice(self, part: str, table: str, sentence: str) -> None:
        """Show that a table needs an operator, until the notice is withdrawn.

        Args:
            part: Kind of work that needs the operator.
            table: Id of the table.
            sentence: The problem, and how to solve it.
        """
        if self._notices.get((part, table)) != sentence:
            self._notices.put((part, table), sentence)
            self._log("table needs an operator", table=table, cause=sentence)

    def withdraw_notice(self, part: str, table: str) -> None:
        """Withdraw the notice of one kind of work about a table, if there is one."""
        self._notices.pop((part, table))

    def keep_notices(self, part: str, tables: Collection[str]) -> None:
        """Withdraw the notices of one kind of work about all other tables."""
        for key in [key for key, _ in self._notices if key[0] == part and key[1] not in tables]:
            self._notices.pop(key)

    @property
    def notices(self) -> tuple[str, ...]:
        """The first notices on tables that need an operator."""
        return tuple(sentence for _, sentence in self._notices)[:SENTENCES_MAX]

    @property
    def unreadable_tablets(self) -> int:
        """Number of unreadable tablets, without those of unreadable tables."""
        return sum(";" in subject for subject, _ in self._unreadable)

    @property
    def unreadable_tables(self) -> tuple[str, ...]:
        """The unreadable tables, by the name or id under which they were recorded."""
        return tuple(subject for subject, _ in self._unreadable if ";" not in subject)

    def forget(self, table: str) -> None:
        """Remove a dropped table."""
        for part, subject in [key for key, _ in self._faults]:
            if subject.partition(";")[0] == table:
                self._faults.pop((part, subject))
        for subject, _ in self._unreadable:
            if subject.partition(";")[0] == table:
                self._unreadable.pop(subject)
        for key in [key for key, _ in self._notices if key[1] == table]:
            self._notices.pop(key)

    @property
    def standing(self) -> int:
        """Number of tables and tablets for which any kind of work pauses."""
        subjects = {subject for (_, subject), _ in self._faults}
        return len(subjects.union(subject for subject, _ in self._unreadable))


def _quarantined(subject: str, cause: str) -> str:
    what = "tablet" if ";" in subject else "table"
    return f"{what} {subject} is quarantined, it cannot be read: {cause}"


def _place_of(error: Exception) -> str:
    """Return the file and line where an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
