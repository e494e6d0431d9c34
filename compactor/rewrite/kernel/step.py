"""The rows of one step, joined: which of them win, go or stay, and what is written of them."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from common.model.key_values import KeyType
from common.model.outcome import DroppedRows
from common.rows.arrays import Flags, Int64s, Words, ordered_double_bits
from common.rows.dead_rows import dead_rows, droppable_rows
from common.rows.merge import sortable_series
from common.rows.row_hash import row_hash
from common.rows.rules import DropRule
from compactor.rewrite.kernel.layout import Held, Layout, column_of
from compactor.rewrite.kernel.order import Winners, winners
from compactor.rewrite.kernel.slices import Slice
from compactor.rewrite.kernel.words import Level, taken, whole_words

_WHOLE = (KeyType.BOOL, KeyType.INT, KeyType.DATE, KeyType.TIME, KeyType.TIMESTAMP)


class Step:
    """The rows of one step, joined."""

    def __init__(self, layout: Layout, slices: Sequence[Slice]) -> None:
        self._layout = layout
        self.rows = sum(each.rows for each in slices)
        frames = [each.held.frame.slice(each.start, each.rows) for each in slices]
        # One chunk: a gather from many costs several times the copy.
        self._frame = pl.concat(frames, rechunk=True) if layout.fast else pl.DataFrame()
        rests = [
            each.held.rest.slice(each.start, each.rows)
            for each in slices
            if each.held.rest is not None
        ]
        self._rest = pa.concat_tables(rests) if rests else None
        self._levels = [_joined(slices, n) for n in range(len(slices[0].held.levels))]
        self._tombstones = self._flags(layout.rules.tombstone_column)

    def winners(self) -> Int64s:
        """Return the rows that win, by key."""
        found = winners(self._levels, self._versions(), self._tombstones)
        if len(found.tied):
            self._settle(found)
        return found.row

    def without_dead(
        self, chosen: Int64s, now_s: float, drop: DropRule
    ) -> tuple[Int64s, int, int, DroppedRows | None]:
        """Return the winners that stay, and how many tombstones and expired rows go."""
        rules = self._layout.rules
        tombstones = np.zeros(len(chosen), np.bool_)
        if self._tombstones is not None:
            tombstones = self._tombstones[chosen]
        dead = tombstones
        if rules.expiry_ns(now_s) is not None and rules.time_column is not None:
            names = [rules.time_column, *filter(None, [rules.tombstone_column])]
            _, expired = dead_rows(self.table(chosen, names), rules, now_s)
            dead = tombstones | expired
        places = np.flatnonzero(dead)
        if len(places) == 0:
            return chosen, 0, 0, None
        assert rules.version_column is not None
        names = list(dict.fromkeys([*rules.key, rules.version_column]))
        small = self.table(chosen[places], names)
        gone, dropped = droppable_rows(small, np.ones(len(places), np.bool_), rules, drop)
        buried = int((gone & tombstones[places]).sum())
        keep = np.ones(len(chosen), np.bool_)
        keep[places[gone]] = False
        return chosen[keep], buried, int(gone.sum()) - buried, dropped

    def table(self, chosen: Int64s, names: Sequence[str] | None = None) -> pa.Table:
        """Return rows as Arrow, in the table's schema or some columns of it."""
        schema = self._layout.schema
        wanted = schema if names is None else pa.schema([schema.field(name) for name in names])
        known = frozenset(self._layout.fast)
        fast = [name for name in wanted.names if name in known]
        slow = [name for name in wanted.names if name not in known]
        columns = {}
        if fast:
            frame = self._frame.select(fast)[chosen]
            columns = dict(zip(fast, frame.to_arrow().columns, strict=True))
        if slow:
            assert self._rest is not None
            rest = self._rest.select(slow).take(pa.array(chosen))
            columns |= dict(zip(slow, rest.columns, strict=True))
        arrays = [columns[field.name].cast(field.type) for field in wanted]
        return pa.table(arrays, schema=wanted)

    def held(self, chosen: Int64s) -> Held:
        """Return rows, in this order, as rows that are merged on."""
        return Held(
            self._frame[chosen] if self._layout.fast else self._frame,
            self._rest.take(pa.array(chosen)) if self._rest is not None else None,
            taken(self._levels, chosen),
            len(chosen),
            0,
        )

    def _column(self, name: str) -> pl.Series:
        return column_of(self._frame, self._rest, name)

    def _flags(self, name: str | None) -> Flags | None:
        """Return a column of bools with false for null; None: none of them is true."""
        if name is None:
            return None
        column = self._column(name).fill_null(value=False)
        return column.to_numpy() if column.any() else None

    def _versions(self) -> Words:
        """Return numbers that sort like the versions, null first."""
        rules = self._layout.rules
        assert rules.version_column is not None
        column, kind = self._column(rules.version_column).rechunk(), rules.version_type
        if column.null_count() == 0 and kind in _WHOLE:
            return whole_words(column)
        if column.null_count() == 0 and kind is KeyType.FLOAT:
            return ordered_double_bits(column.to_arrow())
        series = sortable_series(pa.chunked_array([column.to_arrow()]), kind)
        return series.rank("dense").fill_null(0).cast(pl.UInt64).to_numpy()

    def _settle(self, found: Winners) -> None:
        """Put the row with the greatest hash in the place of those that are tied."""
        unlike = self._unlike(found)
        tied, group = found.tied[unlike], found.group[unlike]
        if len(tied) == 0:
            return
        hashes = row_hash(self.table(tied))
        order = np.lexsort((hashes, group))
        last = np.append(group[order][1:] != group[order][:-1], True)
        found.row[group[order[last]]] = tied[order[last]]

    def _unlike(self, found: Winners) -> Flags:
        """Return which of the tied rows are in a group that differs in some column."""
        if self._rest is not None:
            return np.ones(len(found.tied), np.bool_)
        order = np.argsort(found.group, kind="stable")
        group = found.group[order]
        frame = self._frame[found.tied[order]]
        differs = frame.select(
            pl.any_horizontal(pl.all().ne_missing(pl.all().shift(1))).alias("differs")
        )
        flags = differs.to_series().to_numpy() & np.append(False, group[1:] == group[:-1])
        wanted = np.zeros(int(group[-1]) + 1, np.bool_)
        wanted[group[flags]] = True
        return wanted[found.group]


def _joined(slices: Sequence[Slice], number: int) -> Level:
    """Return one word of all rows."""
    parts = [(each.held.levels[number], each) for each in slices]
    first = parts[0][0]
    if isinstance(first, int) and all(
        isinstance(level, int) and level == first for level, _ in parts
    ):
        return first
    arrays = [
        np.full(each.rows, level, np.uint64)
        if isinstance(level, int)
        else level[each.start : each.stop]
        for level, each in parts
    ]
    return np.concatenate(arrays)
