"""A tablet of a simulation: its files, its arrivals, and the results of commits.

Files have the metadata that planners use. If the table has a key, a `Content` describes the rows of
a file. Otherwise rows are evenly spread between the first and last time of a file.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import cos, exp, inf, pi
from random import Random  # noqa: TID251  seeded by the specification: the same run every time
from typing import Any

from common.model.file import DataFile
from common.model.job import Job, JobAction
from common.model.tablet import PLUS_INFINITY, TabletId
from common.spi.planner import RunningJob
from coordinator.core.shadow import TimedPart, timed_outputs
from neve.simulate.recording import Recording, key_behind, key_fraction, simulated_key
from neve.simulate.rows import Content, merged, rows_in
from neve.simulate.specification import DAY_S, ArrivalRule, TableRule

# ----------------------------------------------------------------------------------------- Arrivals
# When files arrive, in which tablet, and how large: drawn from a seed or replayed.
#
# Rates are piecewise constant: pieces last a quarter of an hour for the daily curve, and are cut at
# the start and end of bursts. Within a piece, flushes are a Poisson process or arrive at equal
# intervals. The rest of an interval at the end of a piece continues at the rate of the next piece,
# so that the boundaries of pieces have no effect.


PIECE_S = 900.0
SIZE_FACTOR_MAX = 64.0
"""Limit of a file's size, as a multiple of the mean."""


@dataclass(slots=True)
class ArrivingFile:
    """A file from a writer. Row counts are numbers of writes, before duplicate keys merge."""

    size_bytes: int
    rows: float
    deletes: float
    updates: float
    late_s: float = 0.0


@dataclass(slots=True)
class Flush:
    """Files that arrive in one tablet at the same time."""

    at_s: float
    tablet: int
    files: list[ArrivingFile]


def flushes(table: TableRule, seed: int, length_s: float) -> Iterator[Flush]:
    """Yield all flushes of a table, ordered by time.

    Args:
        table: The table.
        seed: Seed of the run. Tables of a run draw independently of each other.
        length_s: End of the arrivals, in seconds.
    """
    chance = Random(f"{seed}/{table.name}")
    rule = table.arrivals
    if rule.recording is not None:
        yield from _played(rule, rule.recording, table.tablets, length_s)
        return
    choose = _TabletChoice(table, chance)
    for at_s in _times(rule, chance, length_s):
        files = [_file(rule, table.row_bytes, chance) for _ in range(rule.files)]
        yield Flush(at_s, choose.next(), files)


class _TabletChoice:
    """Chooses tablets: round-robin, uniformly, or by a Zipf distribution."""

    def __init__(self, table: TableRule, chance: Random) -> None:
        self._tablets, self._chance = table.tablets, chance
        self._in_turn = table.arrivals.regular and not table.tablet_skew
        self._turn = -1
        ranks = range(1, table.tablets + 1)
        self._weights = (
            list(accumulate(rank**-table.tablet_skew for rank in ranks))
            if table.tablet_skew
            else None
        )

    def next(self) -> int:
        if self._in_turn:
            self._turn = (self._turn + 1) % self._tablets
            return self._turn
        if self._weights is None:
            return int(self._chance.random() * self._tablets)
        drawn = self._chance.random() * self._weights[-1]
        return min(bisect_right(self._weights, drawn), self._tablets - 1)


def _file(rule: ArrivalRule, row_bytes: int, chance: Random) -> ArrivingFile:
    size = float(rule.size_bytes)
    if spread := rule.size_spread:
        # The mean of a log-normal distribution exceeds its median by a factor of exp(spread² / 2).
        size *= min(SIZE_FACTOR_MAX, exp(chance.gauss(0.0, spread) - spread * spread / 2))
    rows = max(1.0, size / row_bytes)
    is_late = rule.late > 0 and chance.random() < rule.late
    late_s = chance.random() * rule.late_max_s if is_late else 0.0
    size_bytes = max(1, round(size))
    return ArrivingFile(size_bytes, rows, rows * rule.deletes, rows * rule.updates, late_s)


# -------------------------------------------------------------------------------------------- Times


def _times(rule: ArrivalRule, chance: Random, length_s: float) -> Iterator[float]:
    """Yield the times of flushes."""
    needed = 1.0 if rule.regular else chance.expovariate(1.0)
    for begin_s, end_s in pairwise(_edges(rule, length_s)):
        rate = rate_at(rule, (begin_s + end_s) / 2)
        at_s = begin_s
        while rate > 0:
            step_s = needed / rate
            if at_s + step_s >= end_s:
                needed -= (end_s - at_s) * rate
                break
            at_s += step_s
            yield round(at_s, 3)
            needed = 1.0 if rule.regular else chance.expovariate(1.0)


def _edges(rule: ArrivalRule, length_s: float) -> list[float]:
    """Return the times at which the rate changes, from 0 to the end."""
    edges = {0.0, length_s}
    if rule.daily:
        edges.update(PIECE_S * at for at in range(1, int(length_s / PIECE_S) + 1))
    for burst in rule.bursts:
        edges.update((burst.at_s, burst.at_s + burst.length_s))
    return sorted(edge for edge in edges if edge <= length_s)


def rate_at(rule: ArrivalRule, at_s: float) -> float:
    """Return the flushes per second at a given time."""
    hour = at_s % DAY_S / 3600.0
    rate = rule.flushes_s * (1.0 + rule.daily * cos(2 * pi * (hour - rule.peak_hour) / 24.0))
    for burst in rule.bursts:
        if burst.at_s <= at_s < burst.at_s + burst.length_s:
            rate *= burst.times
    return rate


def _played(
    rule: ArrivalRule, recording: Recording, tablets: int, length_s: float
) -> Iterator[Flush]:
    """Yield the recorded arrivals; start over at the end of the recording."""
    begin_s = 0.0
    while begin_s < length_s:
        for arrival in recording.arrivals:
            if begin_s + arrival.at_s >= length_s:
                return
            rows = float(arrival.rows)
            deletes = float(arrival.tombstones) or rows * rule.deletes
            file = ArrivingFile(arrival.size_bytes, rows, deletes, rows * rule.updates)
            yield Flush(round(begin_s + arrival.at_s, 3), arrival.tablet % tablets, [file])
        begin_s += recording.length_s


# ------------------------------------------------------------------------------------------- Tablet


FIRST_KEY, LAST_KEY = simulated_key(0.0), simulated_key(1.0)


@dataclass(slots=True, eq=False)
class SimulatedTable:
    """A table, with the planner's parameters that are constant during a run."""

    rule: TableRule
    id: str
    tablets: "list[SimulatedTablet]"
    coming: Iterator[Flush]
    volume: str
    interval_s: float
    """Mean time between two flushes of a tablet."""
    parameters: dict[str, Any]
    """Planner parameters that depend only on the table."""


class SimulatedTablet:
    """State of one tablet. Invariant: `stored_bytes` and `spans` are the sums over its files."""

    __slots__ = (
        "contents", "due_s", "files", "id", "keys", "names", "planned_bytes", "queued", "reserved",
        "rule", "running", "spans", "stored_bytes", "table",
    )  # fmt: skip

    def __init__(self, table: SimulatedTable, number: int) -> None:
        """Create a tablet without files.

        Args:
            table: The table of the tablet.
            number: Number of the tablet, from 0.
        """
        rule = table.rule
        last = number == rule.tablets - 1
        self.id = TabletId(table.id, PLUS_INFINITY if last else number.to_bytes(4, "big"))
        self.rule, self.table = rule, table
        self.files: dict[str, DataFile] = {}
        self.contents: dict[str, Content] = {}
        self.running: dict[str, RunningJob] = {}
        """Running jobs, keyed by id."""
        self.reserved: set[str] = set()
        self.keys = float(rule.population.keys)
        """Size of the key population: existing keys, and keys that updates may add."""
        self.names = 0
        self.spans = 0.0
        """Mean number of files per key: the sum of the files' fractions of the key range."""
        self.stored_bytes = 0
        self.planned_bytes = 0
        """Input bytes of the jobs of the last plan."""
        self.queued = 0
        """Number of the tablet's queued jobs."""
        self.due_s = inf
        """When the tablet has to be planned again without a change."""

    # ------------------------------------------------------------------------------------- Arrivals

    def begin_with(self, file: DataFile, number: int) -> None:
        """Add an initial file."""
        start = key_fraction(file.key_min, 0.0)
        end = key_fraction(file.key_max, 1.0)
        content = Content(
            inserts=float(file.rows),
            start=start,
            end=max(end, start + 1e-9),
            first=number,
            last=number,
        )
        self._put(file, content)

    def begin_with_bytes(self, size_bytes: int, begin_s: float) -> None:
        """Add one initial file that holds each key once."""
        rows = max(1, size_bytes // self.rule.row_bytes)
        content = Content(inserts=float(min(rows, self.keys)))
        time_s = begin_s if not self.rule.keyed else None
        self._put(self._file(size_bytes, rows, content, begin_s, (time_s, time_s)), content)

    def arrive(self, coming: ArrivingFile, number: int, now_s: float, interval_s: float) -> int:
        """Add a file from a writer; return its size in bytes.

        Args:
            coming: The file.
            number: Number of the arrival; later arrivals have newer rows.
            now_s: The time now, since the epoch.
            interval_s: Time over which the rows of a flush were collected.
        """
        if not self.rule.keyed:
            to_s = now_s - coming.late_s
            content = Content(coming.rows, first=number, last=number)
            times = (to_s - interval_s, to_s)
            return self._put(
                self._file(coming.size_bytes, coming.rows, content, now_s, times), content
            )
        draws = coming.updates + coming.deletes
        inserts = max(0.0, coming.rows - draws)
        self.keys += inserts
        content = Content(
            inserts,
            draws,
            coming.deletes,
            first=number,
            last=number,
            deleted_from_s=now_s if coming.deletes else inf,
            deleted_to_s=now_s if coming.deletes else -inf,
        )
        size_bytes, rows, dead = coming.size_bytes, coming.rows, coming.deletes
        if draws:
            rows, dead = rows_in(inserts, draws, coming.deletes, self.keys, self.rule.population)
            size_bytes = max(1, round(size_bytes * rows / coming.rows))
        return self._put(self._file(size_bytes, rows, content, now_s, dead=dead), content)

    # ----------------------------------------------------------------------------------------- Jobs

    def reserve(self, job: Job) -> None:
        """Reserve the inputs of a job, which no other job may have."""
        assert self.reserved.isdisjoint(job.inputs), job
        self.reserved.update(job.inputs)
        files = tuple(self.files[path] for path in job.inputs)
        self.running[job.id] = RunningJob(kind=job.kind, files=files)

    def release(self, job: Job) -> None:
        """End a job without outputs; its input files are unchanged."""
        del self.running[job.id]
        self.reserved.difference_update(job.inputs)

    def commit(self, job: Job, now_s: float) -> int:
        """Replace the inputs of a job by its outputs; return the written bytes."""
        self.release(job)
        if job.action == JobAction.MOVE:
            for path in job.inputs:
                self.files[path] = replace(self.files[path], tags=job.output_tags)
            return 0
        inputs = [self.files[path] for path in job.inputs]
        contents = [self.contents[path] for path in job.inputs]
        for file in inputs:
            self._remove(file.path)
        if self.rule.keyed:
            return self._write_keyed(job, inputs, contents, now_s)
        return self._write_timed(job, inputs, contents, now_s)

    def _write_keyed(
        self, job: Job, inputs: Sequence[DataFile], contents: Sequence[Content], now_s: float
    ) -> int:
        size_bytes, rows = sum(file.size_bytes for file in inputs), sum(f.rows for f in inputs)
        cuts = [key_fraction(cut, 0.0) for cut in job.cuts]
        purged = self._purged_share(contents, now_s)
        outputs = merged(contents, self.keys, self.rule.population, cuts=cuts, purged=purged)
        # Row counts are rounded and keys have been added; outputs must not exceed the inputs.
        left = sum(output[1] for output in outputs)
        row_bytes = size_bytes / max(1.0, rows, left)
        written_bytes = 0
        for content, count, dead in outputs:
            size = max(1, round(count * row_bytes))
            written_bytes += self._put(
                self._file(size, count, content, now_s, dead=dead, job=job), content
            )
        return written_bytes

    def _purged_share(self, contents: Sequence[Content], now_s: float) -> float:
        """Return the fraction of tombstones to drop: old enough, and no older file is outside.

        This assumes that tombstones are evenly spread between the oldest and the newest one.
        """
        since_s = min(content.deleted_from_s for content in contents)
        if since_s == inf:
            return 0.0
        newest = max(content.last for content in contents)
        if any(content.first <= newest for content in self.contents.values()):
            return 0.0
        to_s = max(content.deleted_to_s for content in contents)
        old_s = now_s - self.rule.settings.tombstone_retention_s
        if old_s <= since_s:
            return 0.0
        return 1.0 if to_s <= old_s else (old_s - since_s) / (to_s - since_s)

    def _write_timed(
        self, job: Job, inputs: Sequence[DataFile], contents: Sequence[Content], now_s: float
    ) -> int:
        ttl_s = self.rule.settings.ttl_s
        expiry_s = -inf if ttl_s is None else now_s - ttl_s
        parts = (alive_part(file, expiry_s) for file in inputs)
        alive = [part for part in parts if part is not None]
        if not alive:
            return 0
        first, last = (
            min(content.first for content in contents),
            max(content.last for content in contents),
        )
        written_bytes = 0
        for from_s, to_s, size, rows in timed_outputs(alive, job):
            content = Content(rows, first=first, last=last)
            file = self._file(max(1, round(size)), rows, content, now_s, (from_s, to_s), job=job)
            written_bytes += self._put(file, content)
        return written_bytes

    # --------------------------------------------------------------------------------------- Inside

    def _file(
        self,
        size_bytes: int,
        rows: float,
        content: Content,
        now_s: float,
        times: tuple[float | None, float | None] = (None, None),
        *,
        dead: float = 0.0,
        job: Job | None = None,
    ) -> DataFile:
        self.names += 1
        keyed = self.rule.keyed
        key_min = key_max = None
        if keyed:
            # A cut is the last key of the output that ends there.
            key_min = key_behind(content.start) if content.start else FIRST_KEY
            key_max = simulated_key(content.end) if content.end < 1.0 else LAST_KEY
        return DataFile(
            path=f"{self.names:09x}",
            size_bytes=size_bytes,
            rows=max(1, round(rows)),
            key_min=key_min,
            key_max=key_max,
            time_min_s=times[0],
            time_max_s=times[1],
            tombstones=round(dead),
            tombstones_since_s=content.deleted_from_s if dead >= 0.5 else None,
            clean=keyed and dead < 0.5,
            added_at_s=now_s,
            job=None if job is None else job.id,
            request=None if job is None else job.request,
            tags=() if job is None else job.output_tags,
        )

    def _put(self, file: DataFile, content: Content) -> int:
        self.files[file.path] = file
        self.contents[file.path] = content
        self.stored_bytes += file.size_bytes
        self.spans += content.end - content.start
        return file.size_bytes

    def _remove(self, path: str) -> None:
        file, content = self.files.pop(path), self.contents.pop(path)
        self.stored_bytes -= file.size_bytes
        self.spans -= content.end - content.start

    def check(self) -> None:
        """Assert the invariants; for tests."""
        assert self.files.keys() == self.contents.keys()
        assert self.stored_bytes == sum(file.size_bytes for file in self.files.values())
        busy_paths = [file.path for job in self.running.values() for file in job.files]
        assert len(busy_paths) == len(set(busy_paths)), "a file is an input of two jobs"
        assert set(busy_paths) == self.reserved <= self.files.keys()

    def live_bytes(self, now_s: float) -> float:
        """Return the bytes that would be left if all files were merged into one."""
        if not self.rule.keyed:
            ttl_s = self.rule.settings.ttl_s
            if ttl_s is None:
                return float(self.stored_bytes)
            parts = (alive_part(file, now_s - ttl_s) for file in self.files.values())
            return sum(part[2] for part in parts if part is not None)
        contents = self.contents.values()
        draws = sum(content.draws for content in contents)
        rows = sum(file.rows for file in self.files.values())
        if not draws or not rows:
            return float(self.stored_bytes)
        left, dead = rows_in(
            sum(content.inserts for content in contents),
            draws,
            sum(content.deletes for content in contents),
            self.keys,
            self.rule.population,
        )
        return self.stored_bytes * min(1.0, max(0.0, left - dead) / rows)


# ---------------------------------------------------------------------------- Rows spread over time


def alive_part(file: DataFile, expiry_s: float) -> TimedPart | None:
    """Return the part of a file that has not expired; None if all of it has."""
    from_s, to_s = file.time_min_s or 0.0, file.time_max_s or 0.0
    if expiry_s <= from_s:
        return from_s, to_s, float(file.size_bytes), float(file.rows)
    if to_s <= expiry_s:
        return None
    share = (to_s - expiry_s) / (to_s - from_s)
    return expiry_s, to_s, file.size_bytes * share, file.rows * share
