"""Rows that users of a simulated lake write, and what a reader of them may see at any time.

Every row has a version of its own. Of a key a reader sees one of the versions that were offered,
none older than the last one that was acknowledged before it began, and none that is dead; it may
see nothing of the key if such a version is a tombstone or has expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from common.model.key_values import KeyType
from common.model.keys import encode_key
from tests.support.sim_disk import LAST_KEY
from tests.support.sim_loop import World

SCHEMA = pa.schema(
    [
        pa.field("part", pa.int64()),
        pa.field("id", pa.int64()),
        pa.field("v", pa.int64()),
        pa.field("at", pa.int64()),
        pa.field("dead", pa.bool_()),
    ]
)
KEYS, PARTS = 240, 3
STEP = LAST_KEY // KEYS
SIZES = (1, 2, 5, 20, 60)
NEAR = 12
"""Keys of a file that belongs to one tablet, mostly."""
DEAD_SHARE = 0.3
AGE_MAX_S = 30.0
"""How old the oldest rows are when they are written."""
CLOCK_MARGIN_S = 1.5
"""Times of rows are whole seconds."""


@dataclass(frozen=True)
class Kind:
    """What a table is like."""

    name: str
    keyed: bool = True
    parted: bool = False
    deletes: bool = False
    ttl_s: float | None = None

    @property
    def ranged(self) -> bool:
        """Whether its tablets are ranges of keys."""
        return self.keyed and not self.parted


KINDS = (
    Kind("keyed"),
    Kind("deleting", deletes=True),
    Kind("expiring", deletes=True, ttl_s=20.0),
    Kind("parted", parted=True, deletes=True),
    Kind("bag", keyed=False),
    Kind("bag that expires", keyed=False, ttl_s=20.0),
    Kind("parted bag", keyed=False, parted=True),
)


class Row(NamedTuple):
    """One row, as it is written."""

    part: int
    id: int
    v: int
    at: int
    dead: bool


def table_of(rows: Iterable[Row]) -> pa.Table:
    """Return rows as Arrow has them."""
    return pa.Table.from_pylist([row._asdict() for row in rows], SCHEMA)


def split_at(number: int) -> bytes:
    """Return the end of a tablet."""
    return encode_key([number], (KeyType.INT,))


class Sowing:
    """Draws rows; no two of one lake have one version."""

    def __init__(self, world: World, kind: Kind) -> None:
        self._world = world
        self._kind = kind
        self._count = 0

    def rows(self, *, near: bool) -> list[Row]:
        """Return new rows, each of another key; of one partition and of keys near each other."""
        dice, kind = self._world.dice, self._kind
        count = dice.choice(SIZES)
        first = dice.randrange(KEYS)
        among = range(first, min(first + NEAR, KEYS)) if near else range(KEYS)
        keys = dice.sample(among, min(count, len(among)))
        part = dice.randrange(PARTS)
        return [self._row(STEP * key, part if near and kind.parted else None) for key in keys]

    def _row(self, key: int, part: int | None) -> Row:
        dice, now_s = self._world.dice, self._world.now_s()
        self._count += 1
        return Row(
            part=part if part is not None else dice.randrange(PARTS),
            id=key if self._kind.keyed else self._count,
            v=int(now_s * 1000) * 1000 + self._count % 1000,
            at=int(now_s - AGE_MAX_S * dice.random()),
            dead=self._kind.deletes and dice.random() < DEAD_SHARE,
        )


Key = tuple[int, int]
Known = Mapping[Key, int]
"""Key → the highest of its versions that was acknowledged."""


@dataclass
class Deletion:
    """A request that deletes the rows of a partition up to a version."""

    part: int
    version_max: int
    asked_s: float
    done_s: float | None = None
    """When it was seen to be done; None: not yet, or its store may have forgotten that."""

    def covers(self, row: Row) -> bool:
        """Return whether it deletes a row that it finds."""
        return row.part == self.part and row.v <= self.version_max


@dataclass
class Ledger:
    """What was offered to one table, and acknowledged by it."""

    kind: Kind
    offered: dict[Key, dict[int, Row]] = field(default_factory=dict)
    acknowledged: list[tuple[float, Key, int]] = field(default_factory=list)
    """When, of which key, which version."""
    buffered: set[tuple[Key, int]] = field(default_factory=set)
    """Keys and versions of the rows among these that were buffered; most are in files by now."""
    deletions: list[Deletion] = field(default_factory=list)
    checks: int = 0
    excused: frozenset[Key] = frozenset()
    """Keys of rows that nobody can tell from those that were added."""

    def key(self, row: Row) -> Key:
        """Return what tells rows apart."""
        return (row.part if self.kind.parted else 0, row.id)

    def offer(self, rows: Iterable[Row]) -> None:
        """Note rows that somebody tries to write."""
        for row in rows:
            self.offered.setdefault(self.key(row), {})[row.v] = row

    def promise(self, rows: Iterable[Row], now_s: float, *, buffered: bool = False) -> None:
        """Note rows that somebody was told are written."""
        promised = [(now_s, self.key(row), row.v) for row in rows]
        self.acknowledged += promised
        if buffered:
            self.buffered.update((key, version) for _, key, version in promised)

    def forget(self, buffered: Iterable[Row]) -> None:
        """Take back the promise of rows that were in no file when their store was lost."""
        lost = {(self.key(row), row.v) for row in buffered}
        self.acknowledged = [each for each in self.acknowledged if each[1:] not in lost]

    def forget_since(self, since_s: float) -> None:
        """Take back the promise of rows that were buffered since: their store has gone back."""
        self.acknowledged = [
            each for each in self.acknowledged if each[0] < since_s or each[1:] not in self.buffered
        ]

    def known(self, before_s: float, *, in_files: bool = False) -> Known:
        """Return what every reader that begins now has to see.

        Args:
            before_s: When it begins.
            in_files: Whether it sees only files.
        """
        known: dict[Key, int] = {}
        for at_s, key, version in self.acknowledged:
            if at_s <= before_s and not (in_files and (key, version) in self.buffered):
                known[key] = max(version, known.get(key, version))
        return known

    def check(
        self,
        who: str,
        found: Sequence[Row],
        known: Known,
        since_s: float,
        until_s: float,
        state_s: float | None = None,
    ) -> None:
        """Assert that a reader has seen what it had to see, and nothing else.

        Args:
            who: Reads.
            found: The rows that it takes for visible.
            known: What was acknowledged before it began.
            since_s: When it began.
            until_s: When it was done.
            state_s: Of which time its files are; None: of its beginning.
        """
        seen: dict[Key, int] = {}
        done_s = since_s if state_s is None else state_s
        done = [one for one in self.deletions if one.done_s is not None and one.done_s < done_s]
        promised_s = {(key, version): at_s for at_s, key, version in self.acknowledged if done}
        for row in found:
            key = self.key(row)
            offered = self.offered.get(key, {}).get(row.v)
            assert offered == row, f"{who}: {row} was never written, but {offered}"
            assert key not in seen or key in self.excused, (
                f"{who}: {key} is there twice: {seen[key]}, {row.v}"
            )
            seen[key] = row.v
            dead = row.dead or self._expired(row, since_s - CLOCK_MARGIN_S)
            assert not dead, f"{who}: {row} is dead"
            at_s = promised_s.get((key, row.v), until_s)
            left = [one for one in done if one.covers(row) and at_s < one.asked_s]
            assert not left, f"{who}: {row} was deleted by {left}"
            least = known.get(key, row.v)
            assert row.v >= least or key in self.excused, (
                f"{who}: {row} is older than {self.offered[key][least]}"
            )
        self._check_missing(who, [key for key in known if key not in seen], known, until_s)

    def check_kept(self, who: str, found: Sequence[Row], known: Known, until_s: float) -> None:
        """Assert that no acknowledged row is lost, though some may be there that had gone."""
        newest: dict[Key, int] = {}
        for row in found:
            key = self.key(row)
            newest[key] = max(row.v, newest.get(key, row.v))
        missing = [key for key, least in known.items() if newest.get(key, least - 1) < least]
        self._check_missing(who, missing, known, until_s)

    def _check_missing(
        self, who: str, missing: Sequence[Key], known: Known, until_s: float
    ) -> None:
        rows = [self.offered[key][known[key]] for key in missing]
        lost = [row for row in rows if not self._may_miss(row, until_s)]
        assert not lost, f"{who}: acknowledged rows are not there: {lost}"
        self.checks += 1

    def _may_miss(self, row: Row, until_s: float) -> bool:
        """Return whether a key may be missing of which this row was acknowledged."""
        later = [each for each in self.offered[self.key(row)].values() if each.v >= row.v]
        return any(
            each.dead or self._expired(each, until_s + CLOCK_MARGIN_S) or self._may_go(each)
            for each in later
        )

    def _may_go(self, row: Row) -> bool:
        return any(deletion.covers(row) for deletion in self.deletions)

    def _expired(self, row: Row, now_s: float) -> bool:
        return self.kind.ttl_s is not None and row.at + self.kind.ttl_s <= now_s

    def visible(self, rows: Iterable[Row], now_s: float) -> list[Row]:
        """Return what an engine that knows no Névé makes of the rows of a manifest's files."""
        if not self.kind.keyed:
            return [row for row in rows if not self._expired(row, now_s)]
        newest: dict[Key, Row] = {}
        for row in rows:
            key = self.key(row)
            newest[key] = max(row, newest.get(key, row), key=lambda each: each.v)
        return [row for row in newest.values() if not (row.dead or self._expired(row, now_s))]
