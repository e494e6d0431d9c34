"""Chunks of a timeline, their scores, and the tasks that compact them.

This is the algorithm of "Compaction Notes" for Apache Druid (Paul Rogers, 2023), as pure functions
over segments: files with a time range. The planner `time_chunk.py` uses these functions. Times are
numbers in any unit, but all in the same unit.

    segments ──► spans                    runs without a gap
             ──► chunks, each with a score
             ──► candidates               adjacent chunks that share segments
             ──► tasks                    small candidates joined, large ones split
             ──► dependencies             tasks that share a segment wait for each other

The notes leave some questions open, which are decided as follows. Candidates need at least one
chunk to compact. The size of a segment counts fully in each of its chunks, and once in the cost of
a task. A segment of exactly the maximum size is not too large. A segment that cannot be made
smaller (`settled`) counts with at most the maximum size, so that it is not cut repeatedly.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from typing import Any

from common.errors import ConfigError, RequestError
from common.model.file import ChunkGrid

# ------------------------------------------------------------------------------------- The timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows of a time range, `start` to before `end`."""

    id: str
    start: float
    end: float
    size: int
    """Bytes."""
    tombstone: bool = False
    """Whether it only marks its range as empty; it is then in no chunk."""
    settled: bool = False
    """Whether the last task made it as small as possible."""
    version: int = 0
    """Segments of a greater version hide those of smaller versions; see `visible`."""
    minor_version: int = 0
    """Within one version and range, a segment of a greater minor version hides its inputs."""
    partitions: tuple[int, int] = (0, 1)
    """Range of partitions that it was made of; the end is exclusive."""

    def __post_init__(self) -> None:
        """Reject invalid segments.

        Raises:
            RequestError: Names the segment, the value and what is expected.
        """
        if not (math.isfinite(self.start) and math.isfinite(self.end) and self.start < self.end):
            raise RequestError(
                f"segment {self.id}: range is {self.start} to {self.end}, "
                "expected two finite times, the second one later"
            )
        if self.size < 0:
            raise RequestError(f"segment {self.id}: size is {self.size}, expected at least 0")

    def size_up_to(self, max_size: int) -> int:
        """Return its size, limited to `max_size` if it is settled."""
        return min(self.size, max_size) if self.settled else self.size


def read_timeline(written: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """Read the segments of a timeline, sorted and without duplicates.

    Args:
        written: Segments in any order, with the fields of `Segment`; or chunks with their
            `segments`, where each chunk lists all segments that overlap it.

    Raises:
        RequestError: Two segments have the same id, or a range is invalid.
    """
    entries: list[Mapping[str, Any]] = []
    for entry in written:
        entries += entry.get("segments", [entry])
    by_id: dict[str, Segment] = {}
    for entry in entries:
        segment = Segment(**entry)
        if by_id.setdefault(segment.id, segment) != segment:
            raise RequestError(f"segment {segment.id} is listed with two ranges or sizes")
    return in_order(by_id.values())


def in_order(segments: Iterable[Segment]) -> list[Segment]:
    """Return segments sorted by start, then end."""
    return sorted(segments, key=lambda segment: (segment.start, segment.end, segment.id))


def visible(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments that are not hidden, in order; see `hidden`."""
    ordered = in_order(segments)
    reasons = hidden(ordered)
    return [segment for segment in ordered if segment.id not in reasons]


def hidden(segments: Iterable[Segment]) -> dict[str, str]:
    """Return why segments are hidden, by id.

    A segment is hidden if segments of greater versions cover its whole range. It is also hidden if
    a segment of the same version and range, with a greater minor version, includes all its
    partitions.
    """
    newest_first = sorted(segments, key=lambda segment: (-segment.version, -segment.minor_version))
    same_range: dict[object, list[Segment]] = {}
    for segment in newest_first:
        same_range.setdefault((segment.version, segment.start, segment.end), []).append(segment)
    reasons: dict[str, str] = {}
    for parts in same_range.values():
        reasons |= _hidden_by_minor_versions(parts)
    return reasons | _hidden_by_versions(newest_first)


def _hidden_by_versions(segments: Iterable[Segment]) -> dict[str, str]:
    """Return why segments are hidden by greater versions; the greatest version comes first."""
    reasons: dict[str, str] = {}
    covered: list[tuple[float, float]] = []
    for version, group in groupby(segments, key=lambda segment: segment.version):
        members = list(group)
        for segment in members:
            over = overlapped(segment.start, segment.end, covered)
            if over and over[0] <= segment.start and segment.end <= over[1]:
                reasons[segment.id] = f"is hidden: versions above {version} cover its range of time"
        for segment in members:
            _cover(covered, segment.start, segment.end)
    return reasons


def _cover(covered: list[tuple[float, float]], start: float, end: float) -> None:
    """Add a range to sorted ranges that neither overlap nor touch."""
    first = bisect_left(covered, start, key=lambda interval: interval[1])
    last = bisect_right(covered, end, key=lambda interval: interval[0])
    if first < last:
        start, end = min(start, covered[first][0]), max(end, covered[last - 1][1])
    covered[first:last] = [(start, end)]


def _hidden_by_minor_versions(segments: Iterable[Segment]) -> dict[str, str]:
    """Return why segments of one version and range are hidden; the greatest minor comes first."""
    reasons: dict[str, str] = {}
    # In order of both ends of their partitions: none includes another.
    greater: list[Segment] = []
    for minor, group in groupby(segments, key=lambda segment: segment.minor_version):
        members = list(group)
        for segment in members:
            if (other := _including(greater, segment)) is not None:
                why = (
                    f"is hidden by {other.id}, of minor version {other.minor_version} over {minor}"
                )
                reasons[segment.id] = why
        for segment in members:
            if _including(greater, segment) is None:
                start, end = segment.partitions
                first = bisect_left(greater, start, key=lambda other: other.partitions[0])
                last = bisect_right(greater, end, key=lambda other: other.partitions[1])
                greater[first:last] = [segment]
    return reasons


def _including(greater: Sequence[Segment], segment: Segment) -> Segment | None:
    """Return one of these segments that has all partitions of another, or None."""
    start, end = segment.partitions
    at = bisect_right(greater, start, key=lambda other: other.partitions[0])
    return greater[at - 1] if at and greater[at - 1].partitions[1] >= end else None


def spans_of(segments: Iterable[Segment]) -> list[tuple[float, float]]:
    """Return the ranges of runs of adjacent or overlapping segments."""
    spans: list[tuple[float, float]] = []
    for segment in in_order(segments):
        if spans and segment.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], segment.end))
        else:
            spans.append((segment.start, segment.end))
    return spans


# ------------------------------------------------------------------------------------------- Scores


class ChunkState(StrEnum):
    """What to do with a chunk."""

    EMPTY = "empty"
    STABLE = "stable"
    COMPACT = "compact"
    NO_OPINION = "no_opinion"
    """The chunk is compacted only together with a neighbour."""


@dataclass(frozen=True, slots=True)
class Score:
    """Result of a rule for a chunk."""

    state: ChunkState
    priority: float = 0.0
    """Priority of `COMPACT`: 0 to 1, larger first."""
    rule: str = ""
    """Text of the rule, if it comes from an option."""

    def __post_init__(self) -> None:
        """Reject an invalid priority.

        Raises:
            RequestError: The priority is not between 0 and 1.
        """
        if not 0 <= self.priority <= 1:
            raise RequestError(f"priority of a chunk is {self.priority}, expected 0 to 1")


@dataclass(frozen=True, slots=True)
class Contents:
    """Input of a rule: the segments of a chunk, without tombstones."""

    segments: tuple[Segment, ...]
    max_size: int
    """Maximum bytes of a segment."""
    overlap: bool = False
    """Whether a segment is also in an adjacent chunk."""

    @property
    def sizes(self) -> list[int]:
        """Size of each segment, in bytes."""
        return [segment.size_up_to(self.max_size) for segment in self.segments]

    @property
    def ideal(self) -> int:
        """Smallest sufficient number of segments, at least 1."""
        return max(1, math.ceil(sum(self.sizes) / self.max_size))

    @property
    def oversize(self) -> int:
        """Bytes in segments that are too large."""
        return sum(size for size in self.sizes if size > self.max_size)


Rule = Callable[[Contents], Score | None]
"""Returns a score, or None to defer to the next rule."""


def is_empty(contents: Contents) -> Score | None:
    """Score a chunk without segments as empty."""
    return None if contents.segments else Score(ChunkState.EMPTY)


def is_stable(contents: Contents) -> Score | None:
    """Score a chunk as stable if no segment is too large and fewer segments do not suffice."""
    if contents.oversize or len(contents.segments) != contents.ideal:
        return None
    return Score(ChunkState.NO_OPINION if contents.overlap else ChunkState.STABLE)


def is_to_be_compacted(contents: Contents) -> Score | None:
    """Score a chunk as to be compacted; excess segments and oversize bytes raise the priority."""
    count = len(contents.segments)
    excess = (count - contents.ideal) / count
    return Score(
        ChunkState.COMPACT, max(0.0, excess, contents.oversize / max(1, sum(contents.sizes)))
    )


RULES: tuple[Rule, ...] = (is_empty, is_stable, is_to_be_compacted)
"""The rules of the notes; the first rule with an answer decides."""


def score(contents: Contents, rules: Sequence[Rule] = RULES) -> Score:
    """Return the answer of the first rule that has one; `NO_OPINION` if no rule has."""
    answers = (rule(contents) for rule in rules)
    return next((answer for answer in answers if answer is not None), Score(ChunkState.NO_OPINION))


def score_sizes(
    sizes: Iterable[int], max_size: int, *, overlap: bool = False, rules: Sequence[Rule] = RULES
) -> Score:
    """Return the score of a chunk whose segments have these sizes."""
    segments = tuple(
        Segment(id=str(at), start=0.0, end=1.0, size=size) for at, size in enumerate(sizes)
    )
    return score(Contents(segments, max_size, overlap), rules)


# ------------------------------------------------------------------------------------------- Chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChunk:
    """A range of the timeline with the configured length."""

    index: int
    """Its index among all chunks; neighbours differ by 1."""
    start: float
    end: float
    segments: tuple[Segment, ...]
    """Segments that overlap the chunk, in order, without tombstones."""
    prior: bool
    """Whether a segment is also in the previous chunk."""
    later: bool
    """Whether a segment is also in the next chunk."""
    score: Score

    @property
    def state(self) -> ChunkState:
        """What to do with the chunk."""
        return self.score.state

    @property
    def ids(self) -> list[str]:
        """Ids of its segments, in order."""
        return [segment.id for segment in self.segments]


def chunk_numbers(segment: Segment, granularity: float, origin: float = 0.0) -> range:
    """Return the indexes of a segment's chunks."""
    return ChunkGrid(granularity, origin).numbers(segment.start, segment.end)


def occupied_chunks(
    segments: Iterable[Segment],
    granularity: float,
    max_size: int,
    *,
    rules: Sequence[Rule] = RULES,
    origin: float = 0.0,
) -> list[TimeChunk]:
    """Return the chunks with segments, in order.

    Args:
        segments: Visible segments, in any order.
        granularity: Length of a chunk.
        max_size: Maximum bytes of a segment.
        rules: Rules that score the chunks.
        origin: Start of any chunk.
    """
    members: dict[int, list[Segment]] = {}
    for segment in in_order(segments):
        if not segment.tombstone:
            for index in chunk_numbers(segment, granularity, origin):
                members.setdefault(index, []).append(segment)
    return [
        _chunk(index, tuple(members[index]), granularity, max_size, rules, origin)
        for index in sorted(members)
    ]


def chunks_of(
    segments: Sequence[Segment],
    granularity: float,
    max_size: int,
    *,
    rules: Sequence[Rule] = RULES,
    origin: float = 0.0,
) -> list[TimeChunk]:
    """Return all chunks from the first segment to the last, including empty chunks.

    Use this only for timelines of bounded length; see `occupied_chunks`.
    """
    occupied = occupied_chunks(segments, granularity, max_size, rules=rules, origin=origin)
    by_index = {chunk.index: chunk for chunk in occupied}
    numbers = [chunk_numbers(segment, granularity, origin) for segment in segments]
    first = min((number.start for number in numbers), default=0)
    last = max((number.stop for number in numbers), default=0)
    return [
        by_index.get(index) or _chunk(index, (), granularity, max_size, rules, origin)
        for index in range(first, last)
    ]


def _chunk(  # noqa: PLR0917 - what a chunk is made of
    index: int,
    segments: tuple[Segment, ...],
    granularity: float,
    max_size: int,
    rules: Sequence[Rule],
    origin: float,
) -> TimeChunk:
    start, end = origin + index * granularity, origin + (index + 1) * granularity
    prior = any(segment.start < start for segment in segments)
    later = any(segment.end > end for segment in segments)
    return TimeChunk(
        index=index,
        start=start,
        end=end,
        segments=segments,
        prior=prior,
        later=later,
        score=score(Contents(segments, max_size, prior or later), rules),
    )


# -------------------------------------------------------------------------------------------- Tasks


Chunks = tuple[TimeChunk, ...]


def cost_of(chunks: Iterable[TimeChunk]) -> int:
    """Return the total bytes of the segments of some chunks; each segment counts once."""
    return sum(
        {segment.id: segment.size for chunk in chunks for segment in chunk.segments}.values()
    )


def _add_sizes(sizes: dict[str, int], chunks: Iterable[TimeChunk]) -> int:
    """Add the segment sizes of some chunks; return by how much the total has grown."""
    fresh = {segment.id: segment.size for chunk in chunks for segment in chunk.segments}
    added = sum(size for name, size in fresh.items() if name not in sizes)
    sizes.update(fresh)
    return added


def candidates_of(chunks: Iterable[TimeChunk]) -> list[Chunks]:
    """Return runs of chunks that share segments and include a chunk to compact."""
    runs: list[list[TimeChunk]] = []
    joins = False
    for chunk in chunks:
        if chunk.state in {ChunkState.EMPTY, ChunkState.STABLE}:
            joins = False
        elif joins and chunk.prior:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
            joins = True
    return [tuple(run) for run in runs if any(chunk.state is ChunkState.COMPACT for chunk in run)]


def join_small(candidates: Iterable[Chunks], small_cost: int) -> list[Chunks]:
    """Join each small candidate to the previous candidate if that is also small.

    Args:
        candidates: Candidates in order.
        small_cost: Maximum bytes of a small candidate. A joined candidate may exceed it.
    """
    joined: list[list[TimeChunk]] = []
    sizes: dict[str, int] = {}
    cost = 0
    for run in candidates:
        if not joined or max(cost_of(run), cost) > small_cost:
            joined.append([])
            sizes, cost = {}, 0
        joined[-1] += run
        cost += _add_sizes(sizes, run)
    return [tuple(run) for run in joined]


def split_large(
    candidates: Iterable[Chunks], max_cost: float, chunks_max: int | None = None
) -> list[Chunks]:
    """Split candidates at ends of chunks before they exceed a limit.

    A single chunk may exceed the limit. A part without a chunk to compact is kept: adjacent parts
    cut the segments that it shares with them, which may change its score.

    Args:
        candidates: Candidates in order.
        max_cost: Maximum bytes of a task.
        chunks_max: Maximum number of chunks of a task; None: no limit.
    """
    parts: list[Chunks] = []
    for run in candidates:
        part, sizes, cost = list[TimeChunk](), dict[str, int](), 0
        for chunk in run:
            added = sum(segment.size for segment in chunk.segments if segment.id not in sizes)
            full = chunks_max is not None and len(part) >= chunks_max
            if part and (full or cost + added > max_cost):
                parts.append(tuple(part))
                part, sizes, cost = [], {}, 0
            part.append(chunk)
            cost += _add_sizes(sizes, [chunk])
        parts.append(tuple(part))
    return parts


class Colour(StrEnum):
    """Whether a task can start at once."""

    RED = "red"
    BLACK = "black"
    """The task waits for other tasks."""


def depend_on_previous(tasks: Sequence[frozenset[str]]) -> list[tuple[int, ...]]:
    """Return the dependencies of each task: the previous task, if they share a segment.

    Args:
        tasks: The segments of each task, in order of time.
    """
    return [
        (at - 1,) if at and segments & tasks[at - 1] else () for at, segments in enumerate(tasks)
    ]


def depend_on_neighbours(tasks: Sequence[frozenset[str]]) -> list[tuple[int, ...]]:
    """Return the dependencies of each task; every second task of a chain starts at once.

    A task that shares a segment with an earlier red task is black. It waits for all red tasks that
    share a segment with it, and for earlier black tasks that do. Cycles are impossible.

    Args:
        tasks: The segments of each task, in order of time.
    """
    users: dict[str, list[int]] = {}
    for at, segments in enumerate(tasks):
        for segment in segments:
            users.setdefault(segment, []).append(at)
    near = [
        sorted({other for segment in segments for other in users[segment]} - {at})
        for at, segments in enumerate(tasks)
    ]
    red: list[bool] = []
    for at in range(len(tasks)):
        red.append(not any(other < at and red[other] for other in near[at]))
    return [
        () if red[at] else tuple(other for other in near[at] if red[other] or other < at)
        for at in range(len(tasks))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Chunks that are rewritten together. Rows outside the chunks are written to separate files."""

    name: str
    chunks: tuple[TimeChunk, ...]
    depends_on: tuple[str, ...] = ()
    """Names of tasks that must finish first."""
    oversize: bool = False
    """Whether it is a single chunk that exceeds the maximum cost of a task."""

    @property
    def color(self) -> Colour:
        """Black if it waits for other tasks."""
        return Colour.BLACK if self.depends_on else Colour.RED

    @property
    def priority(self) -> float:
        """The highest priority of its chunks."""
        return max(chunk.score.priority for chunk in self.chunks)

    @property
    def cost(self) -> int:
        """Total bytes of its segments."""
        return cost_of(self.chunks)

    @property
    def starts(self) -> list[float]:
        """Start times of its chunks."""
        return [chunk.start for chunk in self.chunks]

    @property
    def segments(self) -> list[str]:
        """Sorted ids of its segments."""
        return sorted({id_ for chunk in self.chunks for id_ in chunk.ids})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """Limits of task sizes, and the kind of dependencies."""

    small_cost: int = 0
    max_cost: float = math.inf
    chunks_max: int | None = None
    dependencies: str = "multi"
    """`simple`: see `depend_on_previous`. `multi`: see `depend_on_neighbours`."""


def tasks_of(chunks: Iterable[TimeChunk], limits: TaskLimits) -> list[Task]:
    """Return the tasks that compact chunks, in order of time.

    Args:
        chunks: Chunks in order.
        limits: Limits of the tasks.
    """
    joined = join_small(candidates_of(chunks), limits.small_cost)
    parts = split_large(joined, limits.max_cost, limits.chunks_max)
    shared = [
        frozenset(segment.id for chunk in part for segment in chunk.segments) for part in parts
    ]
    depend = depend_on_previous if limits.dependencies == "simple" else depend_on_neighbours
    return [
        Task(
            name=f"t{at}",
            chunks=part,
            depends_on=tuple(f"t{other}" for other in before),
            oversize=cost_of(part) > limits.max_cost,
        )
        for at, (part, before) in enumerate(zip(parts, depend(shared), strict=True))
    ]


@dataclass(frozen=True, slots=True)
class TimelinePlan:
    """All results of the algorithm for a timeline."""

    spans: list[tuple[float, float]]
    chunks: list[TimeChunk]
    tasks: list[Task] = field(default_factory=list)


def plan_timeline(
    segments: Iterable[Segment],
    granularity: float,
    max_size: int,
    limits: TaskLimits | None = None,
    *,
    rules: Sequence[Rule] = RULES,
) -> TimelinePlan:
    """Return spans, chunks and tasks of the visible segments.

    Args:
        segments: Segments in any order.
        granularity: Length of a chunk.
        max_size: Maximum bytes of a segment.
        limits: Limits of the tasks; None: no limits.
        rules: Rules that score the chunks.
    """
    seen = visible(segments)
    chunks = chunks_of(seen, granularity, max_size, rules=rules)
    return TimelinePlan(spans_of(seen), chunks, tasks_of(chunks, limits or TaskLimits()))


# ---------------------------------------------------------------------------------------- Intervals
# From here on: policies of Apache Druid's compaction, which the notes do not have.


Interval = tuple[float, float]
"""Start (inclusive) and end (exclusive)."""


def read_intervals(name: str, written: str) -> list[Interval]:
    """Parse intervals such as `2024-05-01/2024-05-08`, separated by blanks.

    Args:
        name: Name of the option, for error messages.
        written: Dates or times in UTC; the end is exclusive.

    Raises:
        ConfigError: Names the interval and what is expected.
    """
    intervals: list[Interval] = []
    for text in written.split():
        try:
            start, end = (
                (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
                for moment in map(datetime.fromisoformat, text.split("/"))
            )
        except ValueError:
            start, end = 0.0, 0.0
        if start >= end:
            raise ConfigError(
                f"{name} has {text!r}, expected two dates or times, the later "
                "one last: 2024-05-01/2024-05-08"
            )
        intervals.append((start, end))
    return intervals


def skip_interval(
    latest: float, offset: float, granularity: float, origin: float = 0.0
) -> Interval | None:
    """Return the interval to skip because new data still arrives; None if there is none.

    Args:
        latest: End of the newest segment.
        offset: Minimum length of the interval, back from `latest`; 0: skip nothing.
        granularity: Length of a chunk; the interval starts at the start of a chunk.
        origin: Start of any chunk.
    """
    if offset <= 0:
        return None
    start = (latest - offset - origin) // granularity * granularity + origin
    return (start, latest)


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return sorted intervals; overlapping and adjacent intervals are merged."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def search_intervals(timeline: Interval, skipped: Iterable[Interval]) -> list[Interval]:
    """Return the parts of a timeline outside the skipped intervals."""
    begin, finish = timeline
    searched: list[Interval] = []
    for start, end in merge_intervals(skipped):
        if begin < min(start, finish):
            searched.append((begin, min(start, finish)))
        begin = max(begin, end)
    return [*searched, (begin, finish)] if begin < finish else searched


def overlapped(start: float, end: float, intervals: Sequence[Interval]) -> Interval | None:
    """Return the last of merged intervals (`merge_intervals`) that overlaps a range, or None."""
    at = bisect_left(intervals, (end,))
    return intervals[at - 1] if at and intervals[at - 1][1] > start else None


# --------------------------------------------------------------------- Full, minor or no compaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds for the compaction of a chunk; names and defaults are Druid's."""

    min_count: int = 100
    """Minimum number of uncompacted files."""
    min_bytes: int = 10 * 1024**2
    """Minimum bytes of the uncompacted files."""
    max_avg: int = 2 * 1024**3
    """Maximum mean size of an uncompacted file, in bytes."""
    pct_bytes: float = 0.0
    """If uncompacted files hold less of all bytes, only they are compacted; 0: off."""
    pct_rows: float = 0.0
    """If uncompacted files hold less of all rows, only they are compacted; 0: off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Totals of some files of a chunk."""

    count: int = 0
    bytes: int = 0
    rows: int = 0


FULL, MINOR, NONE = "FULL", "MINOR", "NONE"


def eligibility(uncompacted: Extent | None, compacted: Extent, thresholds: Thresholds) -> str:
    """Return whether a chunk is compacted fully, partly or not at all, and why.

    Args:
        uncompacted: Files that no compaction has written; None if unknown.
        compacted: All other files.
        thresholds: The thresholds.

    Returns:
        `FULL`; `MINOR:bytes` or `MINOR:rows`: only uncompacted files, with the low share;
        `NONE:count`, `NONE:bytes` or `NONE:avg`: no compaction, with the threshold that is not met.
    """
    if uncompacted is None:
        return FULL
    if uncompacted.count < max(1, thresholds.min_count):
        return f"{NONE}:count"
    if uncompacted.bytes < thresholds.min_bytes:
        return f"{NONE}:bytes"
    if uncompacted.bytes // uncompacted.count > thresholds.max_avg:
        return f"{NONE}:avg"
    if _percent(uncompacted.bytes, compacted.bytes) < thresholds.pct_bytes:
        return f"{MINOR}:bytes"
    if _percent(uncompacted.rows, compacted.rows) < thresholds.pct_rows:
        return f"{MINOR}:rows"
    return FULL


def _percent(part: int, rest: int) -> float:
    return 100 * part / (part + rest) if part + rest else 100.0


def fragmentation_index(count: int, size_bytes: int, min_count: int, max_avg: int) -> float:
    """Return the fragmentation of uncompacted files: higher for more and smaller files.

    Args:
        count: Number of files.
        size_bytes: Total size of the files.
        min_count: Weight of small sizes; see `Thresholds`.
        max_avg: See `Thresholds`.
    """
    if count < 1:
        return 0.0
    return count + min_count * max_avg / max(1, size_bytes // count)


def compaction_slots(workers: int, ratio: float, cap: int) -> int:
    """Return how many workers may compact concurrently: a fraction, at least 1 and up to a cap."""
    return max(1, min(int(workers * ratio), cap))


def fixed_place(start: float, end: float, order: Sequence[Interval]) -> int | None:
    """Return the index of a range in a fixed order; None if no interval contains the range."""
    places = (
        at for at, interval in enumerate(order) if interval[0] <= start and end <= interval[1]
    )
    return next(places, None)
