"""Daily sums of a table's finished attempts (`neve:{t}:days`), kept for 400 days.

The history of a table is a capped stream. Its entries are added to the sums of their days before
they are trimmed. One transaction stores the sums and the position of the last counted entry, so
each entry counts once, even if it is added by several processes or again after a lost answer.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from datetime import UTC, datetime

from common.metadata.changes.protocol import (
    Change,
    Decision,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
    refused_by_table,
    table_state,
    transaction_of,
)
from common.metadata.codec.layout import broken_value_error, pack, unpack
from common.metadata.keys import STREAM_START, TableKeys
from common.metadata.keyspace import get, set_string
from common.metadata.store_values import HistoryEntry
from common.model.outcome import AttemptEnd, Refusal, RefusalCode
from neve.api.jobs import TableDay

DAYS_MAX = 400
"""Days with sums that are kept."""
_NAMES = tuple(field.name for field in fields(TableDay))


@dataclass(frozen=True, slots=True, kw_only=True)
class DailySums:
    """Sums by day, up to an entry of the history. Days without attempts are missing."""

    position: str = STREAM_START
    """The last entry that is counted."""
    since_s: float = 0.0
    """End of the first attempt that was counted; 0: none was."""
    days: tuple[TableDay, ...] = ()
    """In ascending order."""

    def counts(self, entry: HistoryEntry) -> bool:
        """Return whether an entry of the history is in the sums."""
        return _order(entry.position) <= _order(self.position)

    def with_entries(self, entries: Sequence[HistoryEntry]) -> "DailySums":
        """Return the sums with those entries of a history that are not counted so far."""
        new = sorted(
            (entry for entry in entries if not self.counts(entry)),
            key=lambda entry: _order(entry.position),
        )
        if not new:
            return self
        days = {day.day: day for day in self.days}
        for entry in new:
            name = day_of(entry.ended_s)
            days[name] = _with_entry(days.get(name, TableDay(day=name)), entry)
        return DailySums(
            position=new[-1].position,
            since_s=self.since_s or new[0].ended_s,
            days=tuple(days[name] for name in sorted(days)[-DAYS_MAX:]),
        )

    def packed(self) -> bytes:
        """Return the stored form."""
        return pack([self.position, self.since_s, [list(astuple(day)) for day in self.days]])

    @classmethod
    def unpacked(cls, where: str, data: bytes | None) -> "DailySums":
        """Return what `packed` has written; None: nothing is stored.

        Raises:
            BrokenValueError: The value is malformed.
        """
        if data is None:
            return cls()
        try:
            position, since_s, stored, *_ = unpack(where, data)
            _order(position)
            days = tuple(_day(values) for values in stored[-DAYS_MAX:])
            return cls(position=position, since_s=float(since_s), days=days)
        except (ValueError, TypeError) as error:
            raise broken_value_error(where, f"has no daily sums ({error})") from error


def day_of(at_s: float) -> str:
    """Return the day of a time in UTC, such as `2026-11-28`."""
    return datetime.fromtimestamp(at_s, UTC).date().isoformat()


def _day(values: Sequence[object]) -> TableDay:
    """Return a stored day; a later release may have stored more sums."""
    day, *sums = values[: len(_NAMES)]
    if not isinstance(day, str) or any(not isinstance(value, int | float) for value in sums):
        raise ValueError(f"{values!r} is no day")
    return TableDay(**dict(zip(_NAMES, values, strict=False)))  # type: ignore[arg-type]


def _order(position: str) -> tuple[int, int]:
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number or 0)


def _with_entry(day: TableDay, entry: HistoryEntry) -> TableDay:
    """Return the sums of a day with a finished attempt."""
    took_s = max(0.0, entry.ended_s - entry.started_s)
    if entry.end != AttemptEnd.COMMITTED:
        failed = entry.end == AttemptEnd.FAILED
        return replace(
            day,
            failed=day.failed + failed,
            released=day.released + (not failed),
            wasted_s=day.wasted_s + took_s,
        )
    dropped = entry.superseded + entry.tombstones_dropped
    dropped += entry.expired_dropped + entry.transform_dropped
    is_rewrite = bool(entry.expected_files)
    return replace(
        day,
        jobs=day.jobs + 1,
        files_in=day.files_in + len(entry.inputs),
        files_out=day.files_out + len(entry.outputs),
        bytes_in=day.bytes_in + entry.bytes_in,
        bytes_out=day.bytes_out + entry.bytes_out,
        compactor_s=day.compactor_s + took_s,
        rows_in=day.rows_in + entry.rows_in,
        rows_dropped=day.rows_dropped + dropped,
        measured_jobs=day.measured_jobs + is_rewrite,
        files_saved=day.files_saved + (entry.gain if is_rewrite else 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDays(Change):
    """Store daily sums of a table that continue those at a position."""

    table: str
    before: str
    """Position of the sums that they continue."""
    sums: DailySums


@transaction_of.register
def store_days(change: StoreDays) -> Transaction:
    """Return the transaction that stores daily sums. Mark: their position."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(keys, seen):
            return refusal
        stored = DailySums.unpacked(keys.days, seen["days"]).position
        if stored == change.sums.position:
            return NoWrite()
        if stored != change.before:
            reason = f"the daily sums are at {stored}, not at {change.before}"
            return Refusal(RefusalCode.VERSION, reason)
        return Write((set_string(keys.days, change.sums.packed()),))

    needs = Needs((keys.days,), {"days": get(keys.days)})
    return Transaction(table_state(keys) | needs, decide)
