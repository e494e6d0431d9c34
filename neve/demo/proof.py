"""The demo's proof: what the table shows against what the raw feed says.

Shares no code with the rest: the expected rows are worked out from the raw files
with pyarrow alone, so that a mistake in the row rules cannot hide itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from neve.demo.feed import KEY, TOMBSTONE, VERSION

Wishes = Callable[[pa.Table], tuple[pa.Table, pa.Table]]
"""Visible rows without users' compactions → those with them, and the rows deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How the table's rows compare with the raw feed's."""

    fed_rows: int
    expected_rows: int
    found_rows: int
    lost: int
    """Keys that should be there and are not."""
    doubled: int
    """Keys that are there more than once."""
    resurrected: int
    """Keys that are there although their last version is a tombstone."""
    different: int
    """Rows whose values are not those of their last version."""

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled, resurrected or changed."""
        faults = self.lost + self.doubled + self.resurrected + self.different
        return faults == 0 and self.found_rows == self.expected_rows


def expected_rows(files: Sequence[Path]) -> tuple[pa.Table, pa.Table]:
    """Return the rows that must be visible, and the keys that must not, from raw files.

    Args:
        files: Every file that was ever fed, in any order.
    """
    fed = pa.concat_tables([pq.read_table(path) for path in files])
    newest = fed.group_by(list(KEY)).aggregate([(VERSION, "max")])
    newest = newest.rename_columns([*KEY, VERSION])
    last = fed.join(newest, keys=[*KEY, VERSION], join_type="left semi")
    dead = last.filter(last[TOMBSTONE])
    return last.filter(pc.invert(last[TOMBSTONE])), dead.select(list(KEY))


def prove(files: Sequence[Path], found: pa.Table, wishes: Wishes | None = None) -> Proof:
    """Compare a scan of the table with the raw feed.

    Args:
        files: Every file that was ever fed.
        found: What a scan of the whole table returned.
        wishes: What users did to the visible rows since.
    """
    expected, dead = expected_rows(files)
    if wishes is not None:
        expected, deleted = wishes(expected)
        dead = pa.concat_tables([dead, deleted.select(list(KEY))])
    found = found.select(expected.column_names).cast(expected.schema)
    keys = found.select(list(KEY))
    distinct = keys.group_by(list(KEY)).aggregate([])
    lost = expected.select(list(KEY)).join(distinct, keys=list(KEY), join_type="left anti")
    risen = dead.join(distinct, keys=list(KEY), join_type="left semi")
    order = [(name, "ascending") for name in (*KEY, VERSION)]
    same = found.num_rows == expected.num_rows and found.sort_by(order).equals(
        expected.sort_by(order)
    )
    return Proof(
        fed_rows=sum(pq.read_metadata(path).num_rows for path in files),
        expected_rows=expected.num_rows,
        found_rows=found.num_rows,
        lost=lost.num_rows,
        doubled=found.num_rows - distinct.num_rows,
        resurrected=risen.num_rows,
        different=0 if same else _different(expected, found),
    )


def _different(expected: pa.Table, found: pa.Table) -> int:
    """Count the keys whose rows differ; at least one."""
    names = expected.column_names
    left, right = _texts(expected, names), _texts(found, names)
    return max(1, len(left ^ right) // 2)


def _texts(table: pa.Table, names: list[str]) -> set[str]:
    return {repr(row) for row in zip(*(table[name].to_pylist() for name in names), strict=True)}
