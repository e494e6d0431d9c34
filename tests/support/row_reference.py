"""The row rules in plain Python, row by row: slow, and plain enough to be believed.

Every faster merge must give what this gives; tests hold them against it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from common.model.key_values import plain_value
from common.model.keys import encode_key, encode_value
from common.model.outcome import DroppedRows, RowCounts
from common.rows.rules import DropRule, RowRules, expiry_limit, join_dropped

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceMerge:
    """What became of every row: each is in exactly one of kept, superseded and gone."""

    kept: tuple[Row, ...]
    """By key; dead rows that may not go yet are among them."""
    superseded: tuple[Row, ...] = ()
    gone_tombstones: tuple[Row, ...] = ()
    gone_expired: tuple[Row, ...] = ()
    kept_tombstones: tuple[Row, ...] = ()
    dropped: DroppedRows | None = None

    @property
    def counts(self) -> RowCounts:
        """The same as numbers."""
        gone = len(self.superseded) + len(self.gone_tombstones) + len(self.gone_expired)
        return RowCounts(
            rows_in=len(self.kept) + gone,
            rows_out=len(self.kept),
            superseded=len(self.superseded),
            tombstones_dropped=len(self.gone_tombstones),
            expired_dropped=len(self.gone_expired),
        )


def reference_merge(
    rows: Iterable[Row],
    rules: RowRules,
    now_s: float,
    hash_of: Callable[[Row], int],
    drop: DropRule | None = None,
) -> ReferenceMerge:
    """Merge rows under the rules of their table.

    Args:
        rows: By column name; a column that is missing is null.
        rules: Of the table.
        now_s: The job's `now`, for expiry.
        hash_of: The canonical row hash.
        drop: Which dead rows may go, and whether young deletes keep a row; None: none may go.
    """
    if not rules.key:
        return _merge_bag(rows, rules, now_s)
    groups: dict[bytes, list[Row]] = {}
    for row in rows:
        groups.setdefault(_key(row, rules), []).append(row)
    superseded: list[Row] = []
    winners: list[Row] = []
    for key in sorted(groups):
        *older, winner = sorted(groups[key], key=lambda row: _rank(row, rules, hash_of))
        winners.append(winner)
        if drop and drop.keeps_deleted and _is_young_delete(winner, rules, drop):
            puts = [at for at, row in enumerate(older) if not _is_tombstone(row, rules)]
            winners += [older.pop(at) for at in puts[-1:]]
        superseded += older
    kept_puts = [
        row
        for before, row in pairwise([{}, *winners])
        if before and _key(before, rules) == _key(row, rules)
    ]
    gone = [
        row
        for row in winners
        if drop
        and not any(row is put for put in kept_puts)
        and _is_dead(row, rules, now_s)
        and _may_go(row, rules, drop)
    ]
    kept = [row for row in winners if not any(row is other for other in gone)]
    return ReferenceMerge(
        kept=tuple(kept),
        superseded=tuple(superseded),
        gone_tombstones=tuple(row for row in gone if _is_tombstone(row, rules)),
        gone_expired=tuple(row for row in gone if not _is_tombstone(row, rules)),
        kept_tombstones=tuple(row for row in kept if _is_tombstone(row, rules)),
        dropped=join_dropped(_dropped(row, rules) for row in gone),
    )


def reference_visible(
    rows: Iterable[Row], rules: RowRules, now_s: float, hash_of: Callable[[Row], int]
) -> tuple[Row, ...]:
    """Return the rows that a reader sees."""
    merged = reference_merge(rows, rules, now_s, hash_of)
    return tuple(row for row in merged.kept if not _is_dead(row, rules, now_s))


def _merge_bag(rows: Iterable[Row], rules: RowRules, now_s: float) -> ReferenceMerge:
    kept: list[Row] = []
    gone: list[Row] = []
    for row in rows:
        (gone if is_expired(row, rules, now_s) else kept).append(row)
    return ReferenceMerge(kept=tuple(kept), gone_expired=tuple(gone))


def _key(row: Row, rules: RowRules) -> bytes:
    return encode_key([row.get(name) for name in rules.key], rules.key_types)


def _version(row: Row, rules: RowRules) -> bytes:
    assert rules.version_column is not None
    return encode_value(row.get(rules.version_column), rules.version_type)


def _rank(row: Row, rules: RowRules, hash_of: Callable[[Row], int]) -> tuple[bytes, bool, int]:
    return _version(row, rules), _is_tombstone(row, rules), hash_of(row)


def _is_tombstone(row: Row, rules: RowRules) -> bool:
    return rules.tombstone_column is not None and row.get(rules.tombstone_column) is True


def is_expired(row: Row, rules: RowRules, now_s: float) -> bool:
    if rules.time_column is None:
        return False
    time = plain_value(row.get(rules.time_column), rules.time_type)
    expiry_ns = rules.expiry_ns(now_s)
    if time is None or expiry_ns is None:
        return False
    assert isinstance(time, int | float)
    return time <= expiry_limit(rules.time_type, expiry_ns)


def _is_dead(row: Row, rules: RowRules, now_s: float) -> bool:
    return _is_tombstone(row, rules) or is_expired(row, rules, now_s)


def _is_young_delete(row: Row, rules: RowRules, drop: DropRule) -> bool:
    if not _is_tombstone(row, rules):
        return False
    return drop.settled is None or _version(row, rules) > drop.settled


def _may_go(row: Row, rules: RowRules, drop: DropRule) -> bool:
    return drop.allows(_key(row, rules), _version(row, rules))


def _dropped(row: Row, rules: RowRules) -> DroppedRows:
    key = _key(row, rules)
    return DroppedRows(spans=((key, key),), version_max=_version(row, rules))
