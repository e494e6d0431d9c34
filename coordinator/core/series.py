"""Recorded values of the service, its groups and its tables over the last hour and day.

    every 5 s   one value per measure goes into the ring of an hour: slot = step % 720
    every 1 min the 12 values of the minute go into the ring of a day: slot = minute % 1440

A row has both rings for every measure of one name, as 32-bit floats; NaN means that nothing was
recorded. Memory is bounded by the number of rows, whatever the number of tables: names without a
row are summed in row 0, the row of the *others*.

    a name gets a row     its past is 0 where the others were 0, else it is unknown
    a name loses its row  its past is added to the others

So the rows always add up to all names.
"""

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from common.wire import RecordedLine, RecordedSeries, SeriesQuery
from neve import api

Floats = npt.NDArray[np.float32]
Values = Sequence[Mapping[str, float]]
"""One mapping per measure: name → value. Names without a value count as 0."""

FINE_COUNT: Final = int(api.SERIES_SPAN_S / api.SERIES_STEP_S)
MINUTE_COUNT: Final = int(api.SERIES_SPAN_MAX_S / api.SERIES_MINUTE_S)
FINE_OF_MINUTE: Final = int(api.SERIES_MINUTE_S / api.SERIES_STEP_S)
ROWS_OF_BLOCK: Final = 8
"""Rows that are allocated at once, and stored in one part of the snapshot."""
TABLES_MAX: Final = 447
"""Tables with a row of their own: 56 blocks of 0.4 MB with the row of the others."""
GROUPS_MAX: Final = 63
BIGGER: Final = 2.0
"""A table takes the row of a busy one if its backlog is more than so many times as large."""
FILLED_MAX: Final = FINE_OF_MINUTE - 1
"""Steps between two samples of one process that get the values of the later sample."""
MEMORY_BYTES_MAX: Final = 32 * 1024**2
"""Bound of the memory of all rings, whatever the number of tables."""
_FAILURES: Final = api.SERIES_MEASURES.index("failures")
_GROUP_MEASURES: Final = (*api.SERIES_MEASURES, *api.SERIES_OF_GROUPS)
_TOTAL_MEASURES: Final = (*_GROUP_MEASURES, *api.SERIES_OF_CONTROL)


# -------------------------------------------------------------------------------------------- Rings


class _Block:
    """The rings of up to eight rows."""

    __slots__ = ("fine", "minute")

    def __init__(self, rows: int, measures: int) -> None:
        self.fine: Floats = np.full((rows, measures, FINE_COUNT), np.nan, np.float32)
        self.minute: Floats = np.full((rows, measures, MINUTE_COUNT), np.nan, np.float32)

    @property
    def size_bytes(self) -> int:
        return self.fine.nbytes + self.minute.nbytes

    def skip(self, before: int, until: int) -> None:
        """End the minutes before step `until`, and clear the steps after `before` and before it."""
        if until // FINE_OF_MINUTE > before // FINE_OF_MINUTE:
            self._end_minute(before // FINE_OF_MINUTE)
        _clear(self.fine, before + 1, until)
        _clear(self.minute, before // FINE_OF_MINUTE + 1, until // FINE_OF_MINUTE)

    def _end_minute(self, minute: int) -> None:
        start = minute * FINE_OF_MINUTE % FINE_COUNT
        self.minute[:, :, minute % MINUTE_COUNT] = _combined(
            self.fine[:, :, None, start : start + FINE_OF_MINUTE]
        )[:, :, 0]


def _clear(ring: Floats, start: int, end: int) -> None:
    count = ring.shape[2]
    slots = [step % count for step in range(max(start, end - count), end)]
    ring[:, :, slots] = np.nan


def _combined(values: Floats) -> Floats:
    """Return the values of longer steps: sums of failures, averages of all other measures.

    Args:
        values: Rows, measures, long steps, short steps of each; NaN is left out.

    Returns:
        Rows, measures, long steps; NaN where every short step is NaN.
    """
    counts = np.count_nonzero(~np.isnan(values), axis=3)
    sums = np.nansum(values, axis=3, dtype=np.float64)
    divisors = np.where(counts, counts, 1)
    divisors[:, _FAILURES] = 1
    means: Floats = np.where(counts, sums / divisors, np.nan).astype(np.float32)
    return means


class NamedLines:
    """The rows of one kind of names.

    Invariant: every name has at most one row, and rows differ; row 0 belongs to the others.
    """

    def __init__(self, measures: tuple[str, ...], names_max: int) -> None:
        """Create an instance without rows; memory is allocated with the first values.

        Args:
            measures: The measures; those of `api.SERIES_MEASURES` come first.
            names_max: Maximum number of names with a row.
        """
        self.measures = measures
        self.rows: dict[str, int] = {}
        """Name → its row, from 1."""
        self.names_max = names_max
        self._free = list(range(names_max, 0, -1))
        self._busy: dict[str, int] = {}
        """Name with a row → the last step in which it had a value."""
        self.blocks: list[_Block] = []

    @property
    def size_bytes(self) -> int:
        """Memory of the rings."""
        return sum(block.size_bytes for block in self.blocks)

    def put(self, values: Values, step: int) -> None:
        """Write the values of a step; names may gain or lose rows."""
        self._require(0)
        if self.names_max:
            self._choose(values, step)
        slot = step % FINE_COUNT
        for block in self.blocks:
            block.fine[:, :, slot] = 0.0
        for measure, of_names in enumerate(values):
            others = 0.0
            for name, value in of_names.items():
                row = self.rows.get(name, 0)
                if row:
                    block = self.blocks[row // ROWS_OF_BLOCK]
                    block.fine[row % ROWS_OF_BLOCK, measure, slot] = value
                else:
                    others += value
            self.blocks[0].fine[0, measure, slot] = others

    def repeat(self, start: int, step: int) -> None:
        """Copy the values of a step to the steps from `start` on; failures are not repeated."""
        for block in self.blocks:
            for earlier in range(start, step):
                block.fine[:, :, earlier % FINE_COUNT] = block.fine[:, :, step % FINE_COUNT]
                block.fine[:, _FAILURES, earlier % FINE_COUNT] = 0.0

    def forget(self, name: str) -> None:
        """Take the row of a name, and add its values to the others."""
        row = self.rows.pop(name, None)
        if row is None:
            return
        self._busy.pop(name, None)
        self._free.append(row)
        others = self.blocks[0]
        block, number = block_of(self.blocks, row)
        others.fine[0] += np.nan_to_num(block.fine[number])
        others.minute[0] += np.nan_to_num(block.minute[number])

    def restore(self, number: int, names: Mapping[int, str]) -> _Block:
        """Return the block of a snapshot, for its values; `names` of the block get their rows."""
        self._require(number * ROWS_OF_BLOCK)
        for row, name in names.items():
            if name not in self.rows and row in self._free and row // ROWS_OF_BLOCK == number:
                self._free.remove(row)
                self.rows[name], self._busy[name] = row, 0
        return self.blocks[number]

    def latest(self, step: int) -> dict[str, float]:
        """Return the first measure of each name with a row at a step; 0 if unknown."""
        slot = step % FINE_COUNT
        sizes = {}
        for name, row in self.rows.items():
            block, number = block_of(self.blocks, row)
            size = float(block.fine[number, 0, slot])
            sizes[name] = 0.0 if np.isnan(size) else size
        return sizes

    def _choose(self, values: Values, step: int) -> None:
        """Give rows to names with values: to all, or once per minute to the largest ones."""
        active = set[str]().union(*values)
        self._busy.update(dict.fromkeys(active & self.rows.keys(), step))
        unnamed = active - self.rows.keys()
        if not unnamed or (not self._free and step % FINE_OF_MINUTE):
            return
        sizes = values[0]

        def size_of(name: str) -> tuple[float, str]:
            return sizes.get(name, 0.0), name

        quietest_first = sorted(
            self.rows,
            key=lambda name: (name in active, *size_of(name)[:1], self._busy.get(name, 0)),
        )
        victims = iter(quietest_first)
        for name in nlargest(self.names_max, unnamed, key=size_of):
            if not self._free:
                victim = next(victims, None)
                is_bigger = victim is not None and (
                    victim not in active or size_of(name)[0] > BIGGER * size_of(victim)[0]
                )
                if victim is None or not is_bigger:
                    return
                self.forget(victim)
            self._add(name, step)

    def _add(self, name: str, step: int) -> None:
        row = self._free.pop()
        self._require(row)
        self.rows[name], self._busy[name] = row, step
        others = self.blocks[0]
        block, number = block_of(self.blocks, row)
        block.fine[number] = unknown_or_zero(others.fine[0])
        block.minute[number] = unknown_or_zero(others.minute[0])

    def _require(self, row: int) -> None:
        while len(self.blocks) <= row // ROWS_OF_BLOCK:
            rows = min(ROWS_OF_BLOCK, self.names_max + 1)
            self.blocks.append(_Block(rows, len(self.measures)))


def block_of(blocks: Sequence[_Block], row: int) -> tuple[_Block, int]:
    """Return the block of a row, and the position of the row in it."""
    return blocks[row // ROWS_OF_BLOCK], row % ROWS_OF_BLOCK


def unknown_or_zero(others: Floats) -> Floats:
    """Return the past of a name without a row: 0 where the others were 0, else NaN."""
    past: Floats = np.where(others == 0.0, np.float32(0.0), np.float32(np.nan))
    return past


# ------------------------------------------------------------------------------------------- Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSample:
    """What the coordinator knows at one time; each mapping lacks names whose value is 0."""

    tables: Mapping[str, Mapping[str, float]]
    """Measure → id of a table → value, without rates and failures."""
    groups: Mapping[str, Mapping[str, float]]
    """Measure → group → value, without rates and failures."""
    total: Mapping[str, float]
    """Measure → value of the whole service, where it is not the sum of the groups."""
    attempts: Mapping[str, tuple[str, str, float, float]] = field(default_factory=dict)
    """Running attempt → table, group, start, and bytes of its inputs that it has rewritten."""


class _Work:
    """Rewritten bytes and failures since the last sample, by table and by group."""

    def __init__(self) -> None:
        self.bytes = Counter[tuple[str, str]]()
        self.failures = Counter[tuple[str, str]]()
        self.done: dict[str, float] = {}
        """Running attempt → bytes that earlier samples have counted."""

    def take(
        self, attempts: Mapping[str, tuple[str, str, float, float]], since_s: float
    ) -> list[tuple[str, str, float, float]]:
        """Return table, group, bytes and failures since the last call, and begin again."""
        for attempt, (table, group, started_s, done) in attempts.items():
            # A new coordinator does not know when the work of an older attempt was done.
            before = self.done.get(attempt, 0.0 if started_s >= since_s else done)
            self.bytes[table, group] += round(max(0.0, done - before))
        self.done = {attempt: done for attempt, (*_, done) in attempts.items()}
        keys = self.bytes.keys() | self.failures.keys()
        work = [(*key, float(self.bytes[key]), float(self.failures[key])) for key in sorted(keys)]
        self.bytes.clear()
        self.failures.clear()
        return work


# -------------------------------------------------------------------------------------------- Store


class SeriesStore:
    """Values of the last hour and day.

    Invariant: all rows are written up to the same step, and memory stays below
    `MEMORY_BYTES_MAX`.
    """

    def __init__(self) -> None:
        self.total = NamedLines(_TOTAL_MEASURES, 0)
        self.groups = NamedLines(_GROUP_MEASURES, GROUPS_MAX)
        self.tables = NamedLines(api.SERIES_MEASURES, TABLES_MAX)
        self._kinds = {"total": self.total, "groups": self.groups, "tables": self.tables}
        self._work = _Work()
        self._step: int | None = None
        self._sampled_s: float | None = None
        """Time of the last sample of this process."""

    @property
    def size_bytes(self) -> int:
        """Memory of all rings."""
        return sum(lines.size_bytes for lines in self._kinds.values())

    def is_due(self, now_s: float) -> bool:
        """Return whether a new step has begun since the last sample."""
        return self._step is None or int(now_s // api.SERIES_STEP_S) > self._step

    def note_end(
        self, attempt: str, table: str, group: str, rewritten_bytes: float, *, failed: bool
    ) -> None:
        """Count an attempt that has ended since the last sample.

        Args:
            attempt: Id of the attempt.
            table: Id of its table.
            group: Its group.
            rewritten_bytes: Size of its inputs; 0 if it did not commit or began before this
                coordinator.
            failed: Whether it failed.
        """
        before = self._work.done.pop(attempt, 0.0)
        if rewritten_bytes > before:
            self._work.bytes[table, group] += round(rewritten_bytes - before)
        if failed:
            self._work.failures[table, group] += 1

    def note(self, sample: SeriesSample, now_s: float) -> None:
        """Write a sample; does nothing before the next step."""
        if not self.is_due(now_s):
            return
        step, before = int(now_s // api.SERIES_STEP_S), self._step
        if before is not None:
            for lines in self._kinds.values():
                for block in lines.blocks:
                    block.skip(before, step)
        passed_s = api.SERIES_STEP_S if self._sampled_s is None else now_s - self._sampled_s
        since_s = now_s if self._sampled_s is None else self._sampled_s
        work = self._work.take(sample.attempts, since_s)
        for lines, values in (
            (self.total, _total_values(sample, work, passed_s)),
            (self.groups, _values(_GROUP_MEASURES, sample.groups, work, 1, passed_s)),
            (self.tables, _values(api.SERIES_MEASURES, sample.tables, work, 0, passed_s)),
        ):
            lines.put(values, step)
            is_gap = before is None or self._sampled_s is None or step - before - 1 > FILLED_MAX
            if before is not None and not is_gap:
                lines.repeat(before + 1, step)
        self._step, self._sampled_s = step, now_s

    def forget_table(self, table: str) -> None:
        """Add the values of a dropped table to the others."""
        self.tables.forget(table)

    # ------------------------------------------------------------------------------------ Reading

    def read(self, query: SeriesQuery, names: Mapping[str, str]) -> RecordedSeries:
        """Return recorded values.

        Args:
            query: What to return.
            names: Id → name of the tables that exist. The values of others are part of sums only.
        """
        reader = _Reader(query, -1 if self._step is None else self._step)
        ids = {names[table]: table for table in self.tables.rows if table in names}
        is_whole = query.visible is None
        if query.visible is not None:
            visible = frozenset(query.visible)
            ids = {name: table for name, table in ids.items() if name in visible}
        listed = self._listed(query, ids)
        lines = [reader.line("tables", self.tables, name, ids.get(name, "")) for name in listed]
        if is_whole:
            lines.append(reader.whole("total", self.total))
        else:
            lines.append(reader.sum("total", self.tables, sorted(ids.values()), with_others=False))
        if is_whole and query.groups:
            groups = sorted(self.groups.rows)
            lines += [reader.line("groups", self.groups, group, group) for group in groups]
        if query.count and not query.tables:
            shown = {ids[name] for name in listed}
            rest = self.tables.rows if is_whole else ids.values()
            unlisted = sorted(table for table in rest if table not in shown)
            lines.append(reader.sum("others", self.tables, unlisted, with_others=is_whole))
        return RecordedSeries(
            start_s=reader.start_s, step_s=reader.step_s, count=reader.count, lines=tuple(lines)
        )

    def _listed(self, query: SeriesQuery, ids: Mapping[str, str]) -> list[str]:
        """Return the names of the tables that a query asks for, the largest backlog first."""
        if query.tables:
            return list(dict.fromkeys(query.tables))
        sizes = self.tables.latest(-1 if self._step is None else self._step)
        return nlargest(query.count, sorted(ids), key=lambda name: sizes[ids[name]])

    # ----------------------------------------------------------------------------------- Snapshot

    def parts(self) -> list[str]:
        """Return the names of the parts of a snapshot."""
        kinds = self._kinds.items()
        return [f"{kind}:{number}" for kind, lines in kinds for number in range(len(lines.blocks))]

    def part(self, name: str) -> "SeriesPart":
        """Return a copy of a part of the snapshot, so that a thread can pack it."""
        kind, _, number = name.partition(":")
        lines, block = self._kinds[kind], self._kinds[kind].blocks[int(number)]
        own = {
            row: named for named, row in lines.rows.items() if row // ROWS_OF_BLOCK == int(number)
        }
        return SeriesPart(
            step=-1 if self._step is None else self._step,
            measures=lines.measures,
            names=own,
            fine=block.fine.copy(),
            minute=block.minute.copy(),
        )

    def load(self, parts: Mapping[str, "SeriesPart"], now_s: float) -> None:
        """Take the values of a snapshot; the time since then is a gap. Call it before `note`.

        Args:
            parts: Name → part. Parts of unknown names, and of the future, are left out.
            now_s: The current time.
        """
        newest = int(now_s // api.SERIES_STEP_S)
        taken = {
            name: part
            for name, part in parts.items()
            if self._has(name, len(part.fine)) and part.step < newest
        }
        if not taken:
            return
        self._step = max(part.step for part in taken.values())
        # In order of age: if a table is in two parts, the newer one is right.
        for name, part in sorted(taken.items(), key=lambda entry: -entry[1].step):
            kind, _, number = name.partition(":")
            lines = self._kinds[kind]
            block = lines.restore(int(number), part.names)
            # A part of another release may have other measures.
            common = [name for name in part.measures if name in lines.measures]
            targets = [lines.measures.index(name) for name in common]
            sources = [part.measures.index(name) for name in common]
            block.fine[:, targets] = part.fine[:, sources]
            block.minute[:, targets] = part.minute[:, sources]
            block.skip(part.step, self._step + 1)

    def _has(self, part: str, rows: int) -> bool:
        """Return whether a part of so many rows belongs to this store."""
        kind, _, number = part.partition(":")
        lines = self._kinds.get(kind)
        return (
            lines is not None
            and number.isdigit()
            and int(number) * ROWS_OF_BLOCK <= lines.names_max
            and rows == min(ROWS_OF_BLOCK, lines.names_max + 1)
        )


def _values(
    measures: Sequence[str],
    sampled: Mapping[str, Mapping[str, float]],
    work: Iterable[tuple[str, str, float, float]],
    key: int,
    passed_s: float,
) -> list[Mapping[str, float]]:
    """Return the values of tables (`key` 0) or groups (1), by measure."""
    rates, failures = defaultdict[str, float](float), defaultdict[str, float](float)
    for table, group, rewritten_bytes, failed in work:
        name = (table, group)[key]
        rates[name] += rewritten_bytes / passed_s
        failures[name] += failed
    counted: dict[str, Mapping[str, float]] = {"rewritten_bytes_s": rates, "failures": failures}
    return [counted.get(measure, sampled.get(measure, {})) for measure in measures]


def _total_values(
    sample: SeriesSample, work: Sequence[tuple[str, str, float, float]], passed_s: float
) -> list[Mapping[str, float]]:
    """Return the values of the whole service: sums over groups unless the sample has them."""
    of_groups = _values(_GROUP_MEASURES, sample.groups, work, 1, passed_s)
    sums = {
        measure: sum(of_names.values())
        for measure, of_names in zip(_GROUP_MEASURES, of_groups, strict=True)
    }
    sums.update(sample.total)
    return [{"": sums.get(measure, np.nan)} for measure in _TOTAL_MEASURES]


# ------------------------------------------------------------------------------------------- Reader


class _Reader:
    """Reads the steps of a query from rows."""

    def __init__(self, query: SeriesQuery, step: int) -> None:
        self._query = query
        self._is_fine = query.span_s <= api.SERIES_SPAN_S
        ring_count = FINE_COUNT if self._is_fine else MINUTE_COUNT
        short_s = api.SERIES_STEP_S if self._is_fine else api.SERIES_MINUTE_S
        last = step if self._is_fine else step // FINE_OF_MINUTE - 1
        wanted = min(ring_count, max(1, round(query.span_s / short_s)))
        self._factor = -(-wanted // max(1, query.points))
        self.count = wanted // self._factor
        first = last + 1 - self.count * self._factor
        self._slots = [number % ring_count for number in range(first, last + 1)]
        self.step_s = short_s * self._factor
        self.start_s = first * short_s

    def line(self, kind: str, lines: NamedLines, name: str, key: str) -> RecordedLine:
        """Return the values of a name; without a row they are those of a name at rest."""
        row = lines.rows.get(key)
        values = self._row(lines, row or 0)
        if row is None:
            values = unknown_or_zero(values)
        return self._packed(kind, name, lines, values)

    def sum(
        self, kind: str, lines: NamedLines, keys: Iterable[str], *, with_others: bool
    ) -> RecordedLine:
        """Return the sum of names with rows, and of the others if they are included."""
        others = self._row(lines, 0)
        # A value is unknown where nothing was recorded; elsewhere an unknown part is in the others.
        values = others.astype(np.float64) if with_others else np.where(np.isnan(others), np.nan, 0)
        rows_of_blocks = defaultdict[int, list[int]](list)
        for key in keys:
            number, row = divmod(lines.rows[key], ROWS_OF_BLOCK)
            rows_of_blocks[number].append(row)
        chosen = self._chosen(lines)
        for number, rows in rows_of_blocks.items():
            ring = self._ring(lines.blocks[number])
            values[chosen] += np.nansum(ring[np.ix_(rows, chosen, self._slots)], axis=0)
        return self._packed(kind, "", lines, values)

    def whole(self, kind: str, lines: NamedLines) -> RecordedLine:
        """Return the row of the others, which has everything where no name has a row."""
        return self._packed(kind, "", lines, self._row(lines, 0))

    def _row(self, lines: NamedLines, row: int) -> Floats:
        if not lines.blocks:
            return np.full((len(lines.measures), len(self._slots)), np.nan, np.float32)
        block, number = block_of(lines.blocks, row)
        values: Floats = self._ring(block)[number][:, self._slots]
        return values

    def _ring(self, block: _Block) -> Floats:
        return block.fine if self._is_fine else block.minute

    def _chosen(self, lines: NamedLines) -> list[int]:
        """Return the indexes of the measures that the query asks for."""
        wanted = self._query.measures
        named = enumerate(lines.measures)
        return [number for number, measure in named if not wanted or measure in wanted]

    def _packed(
        self, kind: str, name: str, lines: NamedLines, values: npt.NDArray[np.floating]
    ) -> RecordedLine:
        chosen = self._chosen(lines)
        if self._factor > 1:
            values = _combined(values.reshape(1, len(values), self.count, self._factor))[0]
        return RecordedLine(
            kind=kind,
            name=name,
            measures=tuple(lines.measures[number] for number in chosen),
            values=values[chosen].astype("<f4").tobytes(),
        )


# ----------------------------------------------------------------------------------------- Snapshot

MEASURES_MAX: Final = 100
"""Measures that a part of another release may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPart:
    """A copy of a block. A part of a snapshot is packed and read without the store."""

    step: int
    """The last step with values."""
    measures: tuple[str, ...]
    names: Mapping[int, str]
    """Row → its name."""
    fine: Floats
    minute: Floats

    def packed(self) -> bytes:
        """Return the part, compressed: a header of JSON, a line break, and the bytes of the rings.

        Bytes of equal significance are stored together, which halves the size.
        """
        header = {
            "step": self.step,
            "measures": self.measures,
            "names": self.names,
            "rows": len(self.fine),
        }
        rings = _shuffled(self.minute) + _shuffled(self.fine)
        return json.dumps(header).encode() + b"\n" + zlib.compress(rings, 1)

    @classmethod
    def unpacked(cls, packed: bytes) -> "SeriesPart":
        """Return the part that `packed` has written.

        Raises:
            ValueError: The part is damaged.
        """
        head, _, body = packed.partition(b"\n")
        try:
            header = json.loads(head)
            measures = tuple(str(measure) for measure in header["measures"][:MEASURES_MAX])
            names = {int(row): str(name) for row, name in header["names"].items()}
            rows = min(int(header["rows"]), ROWS_OF_BLOCK)
            shapes = [(rows, len(measures), count) for count in (MINUTE_COUNT, FINE_COUNT)]
            sizes = [4 * prod(shape) for shape in shapes]
            inflater = zlib.decompressobj()
            rings = inflater.decompress(body, sum(sizes))
            if not inflater.eof or len(rings) != sum(sizes):
                raise ValueError(f"{len(rings)} bytes of rings, expected {sum(sizes)}")
            return cls(
                step=int(header["step"]),
                measures=measures,
                names=names,
                fine=_read(rings[sizes[0] :], shapes[1]),
                minute=_read(rings[: sizes[0]], shapes[0]),
            )
        except (KeyError, TypeError, AttributeError, zlib.error) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def _shuffled(ring: Floats) -> bytes:
    return np.ascontiguousarray(ring.astype("<f4").view(np.uint8).reshape(-1, 4).T).tobytes()


def _read(shuffled: bytes, shape: tuple[int, ...]) -> Floats:
    by_significance = np.frombuffer(shuffled, np.uint8).reshape(4, -1)
    values = np.ascontiguousarray(by_significance.T).view("<f4").reshape(shape)
    return values.astype(np.float32)
