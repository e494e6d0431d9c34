"""The tables of a run and the rows that writers give them.

A batch is described by a few numbers, from which all of its rows follow; so a journal
of descriptions is a journal of rows.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.support.ledger import texts

MODS = 16
"""Rows have a number below this, which `delete where` asks for."""
NEVER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
LONG_AGO = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
TTL_S = 3 * 365 * 86_400
"""Far from both: no row expires while a run lasts."""
COLUMNS = (
    pa.field("mod", pa.int64(), nullable=False),
    pa.field("tags", pa.string()),
    pa.field("text", pa.string()),
)
KEYED = (pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False))
GONE = pa.field("gone", pa.bool_(), nullable=False)
AT = pa.field("at", pa.timestamp("us", "UTC"), nullable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A table of the load."""

    name: str
    keyed: bool
    timed: bool = False
    adds: bool = True
    """Whether files are added, too; a file that somebody wrote cannot follow a split."""
    buffered: float = 0.0
    """Share of the batches that are buffered."""
    keys: int = 0
    """Keys are below this; of a bag, every row has a number of its own."""
    splits: tuple[int, ...] = ()
    """Last keys of all tablets but the last."""
    rows_max: int = 0
    """Of one batch."""
    pause_s: float
    """Mean pause of its writer."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        first = (*KEYED, GONE) if self.keyed else (pa.field("n", pa.int64(), nullable=False),)
        return pa.schema([*first, *((AT,) if self.timed else ()), *COLUMNS])

    @property
    def columns(self) -> dict[str, Any]:
        """What `create_table` is told of them."""
        if not self.keyed:
            return {}
        told: dict[str, Any] = {
            "key": ["k"],
            "version_column": "v",
            "tombstone_column": "gone",
            "splits": [str(split) for split in self.splits],
        }
        return told | ({"time_column": "at"} if self.timed else {})


HEAVY = {"codec": "zstd", "codec_level": 15, "row_group_bytes": "1MB", "ratio": 2}
CALM = 200
"""A limit of files that is not reached, so that requests need not wait for order."""
KINDS = (
    Kind(
        name="deletes",
        keyed=True,
        keys=6000,
        splits=(1999, 3999),
        buffered=0.3,
        rows_max=1500,
        pause_s=0.8,
        settings={
            **HEAVY,
            "file_limit": CALM,
            "tombstone_retention_s": 1,
            "hold_expiry_s": "5s",
        },
    ),
    Kind(
        name="ages",
        keyed=True,
        timed=True,
        adds=False,
        keys=3000,
        splits=(1499,),
        buffered=0.4,
        rows_max=800,
        pause_s=0.7,
        settings={
            **HEAVY,
            "ttl_s": TTL_S,
            "tombstone_retention_s": 5,
            "split_bytes": "400KB",
            "merge_bytes": "100KB",
        },
    ),
    Kind(
        name="bag",
        keyed=False,
        rows_max=250,
        pause_s=0.8,
        settings={"ratio": 2, "max_files": 6, "file_limit": CALM},
    ),
    Kind(
        name="small",
        keyed=False,
        adds=False,
        buffered=1.0,
        rows_max=20,
        pause_s=0.1,
        settings={"ratio": 2, "max_files": 6, "file_limit": CALM},
    ),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of one version: `count` keys from `first` on, `step` apart.

    Every `ends`-th row ends its key: it is a tombstone or has expired; 0: none does.
    """

    number: int
    first: int
    step: int
    count: int
    ends: int = 0
    stale: bool = False
    """Whether rows that end their key have expired, instead of being tombstones."""

    @property
    def keys(self) -> range:
        """Its keys, ascending."""
        return range(self.first, self.first + self.step * self.count, self.step)

    def ended(self, key: int) -> bool:
        """Return whether its row of a key ends the key."""
        return self.ends > 0 and (key - self.first) // self.step % self.ends == 0


def mod_of(key: int, number: int) -> int:
    """Return the number that `delete where` asks for."""
    return (7 * key + 5 * number) % MODS


def drawn(kind: Kind, number: int, dice: random.Random) -> Batch:
    """Return the next batch of a table.

    Args:
        kind: The table.
        number: Of the batch; it is the version of its rows.
        dice: The writer's.
    """
    count = dice.randint(kind.rows_max // 3, kind.rows_max)
    if not kind.keyed:
        return Batch(number, number * kind.rows_max, 1, count)
    step = dice.randint(1, kind.keys // count)
    first = dice.randrange(kind.keys - step * (count - 1))
    ends = dice.choice((0, 0, 1, 2, 5))
    return Batch(number, first, step, count, ends, kind.timed and dice.random() < 0.5)


def rows_of(kind: Kind, batch: Batch) -> pa.Table:
    """Return the rows of a batch."""
    keys = list(batch.keys)
    mods = [mod_of(key, batch.number) for key in keys]
    ended = [batch.ended(key) for key in keys]
    shown: dict[str, list[Any]] = {
        "mod": mods,
        "tags": [""] * len(keys),
        "text": texts(len(keys), batch.number),
    }
    if not kind.keyed:
        return pa.table({"n": keys, **shown}, schema=kind.schema)
    first = {"k": keys, "v": [batch.number] * len(keys)}
    gone = [end and not batch.stale for end in ended]
    times = [LONG_AGO if end and batch.stale else NEVER for end in ended]
    timed = {"at": times} if kind.timed else {}
    return pa.table({**first, "gone": gone, **timed, **shown}, schema=kind.schema)


def by_tablet(kind: Kind, rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of each tablet that has some: a file must not cross tablets."""
    if not kind.keyed:
        yield rows
        return
    keys = rows["k"].to_pylist()
    cuts = [0, *(sum(key <= split for key in keys) for split in kind.splits), len(keys)]
    for begin, end in itertools.pairwise(cuts):
        if begin < end:
            yield rows.slice(begin, end - begin)
