"""Chunks of a timeline, their scores, and the tasks that bring them into shape.

The algorithm of "Compaction Notes" for Apache Druid (Paul Rogers, 2023), as pure functions over
segments: files with a time range. It is no planner; `time_chunk.py` is the one that uses it.
Times are numbers of any unit, the same one everywhere.

    segments ──► spans                    runs without a gap
             ──► chunks, each with a score
             ──► candidates               neighbouring chunks that share segments
             ──► tasks                    small ones joined, large ones split
             ──► dependencies             tasks that share a segment wait for each other

What the notes leave open is decided like this: candidates without a chunk that is to be compacted
are none. The size of a segment counts whole in each chunk, and once in the cost of a task. A
segment of exactly the largest size is not too large. A segment that was made as small as it can
be (`settled`) counts as one of the largest size, so that it is not cut again and again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from common.errors import RequestError

# ------------------------------------------------------------------------------------- The timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows of a range of time, `start` to before `end`."""

    id: str
    start: float
    end: float
    size: int
    """Bytes."""
    tombstone: bool = False
    """It only says that the range is empty: it is in no chunk."""
    settled: bool = False
    """It is as small as the last task could make it."""
    version: int = 0
    """Segments of a greater version hide those below it; see `visible`."""
    minor_version: int = 0
    """Among segments of one version and range: a greater one hides those that it was made of."""
    partitions: tuple[int, int] = (0, 1)
    """First partition that it was made of, and the first one after those."""

    def __post_init__(self) -> None:
        """Refuse what no segment can be.

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
        """Return its size; a settled one is not larger than any segment may be."""
        return min(self.size, max_size) if self.settled else self.size


def read_timeline(written: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """Return the segments of a timeline in order, each once.

    Args:
        written: Segments in any order, with the fields of `Segment`; or chunks, each with its
            `segments`, where a segment that spans chunks is listed in each of them.

    Raises:
        RequestError: Two segments have one id, or a range is none.
    """
    entries: list[Mapping[str, Any]] = []
    for entry in written:
        entries += entry.get("segments", [entry])
    found: dict[str, Segment] = {}
    for entry in entries:
        segment = Segment(**entry)
        if found.setdefault(segment.id, segment) != segment:
            raise RequestError(f"segment {segment.id} is listed with two ranges or sizes")
    return in_order(found.values())


def in_order(segments: Iterable[Segment]) -> list[Segment]:
    """Return segments by start, then end."""
    return sorted(segments, key=lambda each: (each.start, each.end, each.id))


def visible(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments that nothing hides, in order.

    A segment is hidden if segments of greater versions cover its whole range, or if one of the
    same version and range with a greater minor version was made of all its partitions.
    """
    ordered = in_order(segments)
    return [segment for segment in ordered if not _is_hidden(segment, ordered)]


def _is_hidden(segment: Segment, others: Sequence[Segment]) -> bool:
    covered_to = segment.start
    for other in others:  # By start.
        if other.version > segment.version and other.start <= covered_to:
            covered_to = max(covered_to, other.end)
    if covered_to >= segment.end:
        return True
    return any(
        (other.version, other.start, other.end) == (segment.version, segment.start, segment.end)
        and other.minor_version > segment.minor_version
        and other.partitions[0] <= segment.partitions[0]
        and other.partitions[1] >= segment.partitions[1]
        for other in others
    )


def spans_of(segments: Iterable[Segment]) -> list[tuple[float, float]]:
    """Return the runs of segments that touch or overlap, as ranges."""
    found: list[tuple[float, float]] = []
    for segment in in_order(segments):
        if found and segment.start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], segment.end))
        else:
            found.append((segment.start, segment.end))
    return found


# ------------------------------------------------------------------------------------------- Scores


class ChunkState(StrEnum):
    """What is to be done with a chunk."""

    EMPTY = "empty"
    STABLE = "stable"
    COMPACT = "compact"
    NO_OPINION = "no_opinion"
    """It is compacted with a neighbour, or not at all."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a rule says of a chunk."""

    state: ChunkState
    priority: float = 0.0
    """Of `COMPACT`: 0 to 1, larger first."""

    def __post_init__(self) -> None:
        """Refuse a priority that is none.

        Raises:
            RequestError: It is not within 0 and 1.
        """
        if not 0 <= self.priority <= 1:
            raise RequestError(f"priority of a chunk is {self.priority}, expected 0 to 1")


@dataclass(frozen=True, slots=True)
class Contents:
    """What a rule may look at: the segments of a chunk, tombstones left out."""

    segments: tuple[Segment, ...]
    max_size: int
    """Most bytes of a segment."""
    overlap: bool = False
    """Whether a segment is in a neighbouring chunk, too."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of each segment."""
        return [segment.size_up_to(self.max_size) for segment in self.segments]

    @property
    def ideal(self) -> int:
        """As many segments would do, at least 1."""
        return max(1, math.ceil(sum(self.sizes) / self.max_size))

    @property
    def oversize(self) -> int:
        """Bytes in segments that are too large."""
        return sum(size for size in self.sizes if size > self.max_size)


Rule = Callable[[Contents], Score | None]
"""Returns a score, or None to leave the question to the next rule."""


def is_empty(contents: Contents) -> Score | None:
    """Say that a chunk without segments is empty."""
    return None if contents.segments else Score(ChunkState.EMPTY)


def is_stable(contents: Contents) -> Score | None:
    """Say that a chunk is stable if no size is too large and no smaller number would do."""
    if contents.oversize or len(contents.segments) != contents.ideal:
        return None
    return Score(ChunkState.NO_OPINION if contents.overlap else ChunkState.STABLE)


def is_to_be_compacted(contents: Contents) -> Score | None:
    """Compact, the more urgently the more segments are too many or bytes in too large ones."""
    count = len(contents.segments)
    excess = (count - contents.ideal) / count
    return Score(
        ChunkState.COMPACT, max(0.0, excess, contents.oversize / max(1, sum(contents.sizes)))
    )


RULES: tuple[Rule, ...] = (is_empty, is_stable, is_to_be_compacted)
"""Of the notes, in order: the first one with an answer counts."""


def score(contents: Contents, rules: Sequence[Rule] = RULES) -> Score:
    """Return the answer of the first rule that has one; without any, a chunk has no opinion."""
    answers = (rule(contents) for rule in rules)
    return next((answer for answer in answers if answer is not None), Score(ChunkState.NO_OPINION))


def score_sizes(
    sizes: Iterable[int], max_size: int, *, overlap: bool = False, rules: Sequence[Rule] = RULES
) -> Score:
    """Return the score of a chunk with segments of these sizes."""
    segments = tuple(
        Segment(id=str(at), start=0.0, end=1.0, size=size) for at, size in enumerate(sizes)
    )
    return score(Contents(segments, max_size, overlap), rules)


# ------------------------------------------------------------------------------------------- Chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChunk:
    """A range of the timeline of the wanted length."""

    index: int
    """Its place among all chunks; its neighbours are one less and one more."""
    start: float
    end: float
    segments: tuple[Segment, ...]
    """Those that it shares a time with, in order; tombstones left out."""
    prior: bool
    """Whether one of them is in the chunk before, too."""
    later: bool
    """Whether one of them is in the chunk after, too."""
    score: Score

    @property
    def state(self) -> ChunkState:
        """What is to be done with it."""
        return self.score.state

    @property
    def ids(self) -> list[str]:
        """Of its segments, in order."""
        return [segment.id for segment in self.segments]


def chunk_numbers(segment: Segment, granularity: float, origin: float = 0.0) -> range:
    """Return the places of the chunks that a segment is in."""
    first = (segment.start - origin) // granularity
    last = -((origin - segment.end) // granularity) - 1
    return range(int(first), int(last) + 1)


def occupied_chunks(
    segments: Iterable[Segment],
    granularity: float,
    max_size: int,
    *,
    rules: Sequence[Rule] = RULES,
    origin: float = 0.0,
) -> list[TimeChunk]:
    """Return the chunks that have segments, in order.

    Args:
        segments: Visible ones, in any order.
        granularity: Length of a chunk.
        max_size: Most bytes of a segment.
        rules: By which they are scored.
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
    """Return all chunks from the first segment to the last, also empty ones; see `occupied_chunks`.

    A chunk for each step: for timelines of a bounded length.
    """
    occupied = occupied_chunks(segments, granularity, max_size, rules=rules, origin=origin)
    found = {chunk.index: chunk for chunk in occupied}
    numbers = [chunk_numbers(segment, granularity, origin) for segment in segments]
    first = min((number.start for number in numbers), default=0)
    last = max((number.stop for number in numbers), default=0)
    return [
        found.get(index) or _chunk(index, (), granularity, max_size, rules, origin)
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
    """Return the bytes of all segments of some chunks, each counted once."""
    return sum(
        {segment.id: segment.size for chunk in chunks for segment in chunk.segments}.values()
    )


def _add_sizes(sizes: dict[str, int], chunks: Iterable[TimeChunk]) -> int:
    """Note the sizes of segments of some chunks; return by how much their sum has grown."""
    fresh = {segment.id: segment.size for chunk in chunks for segment in chunk.segments}
    added = sum(size for name, size in fresh.items() if name not in sizes)
    sizes.update(fresh)
    return added


def candidates_of(chunks: Iterable[TimeChunk]) -> list[Chunks]:
    """Return runs of chunks that share segments and of which one is to be compacted."""
    found: list[list[TimeChunk]] = []
    joins = False
    for chunk in chunks:
        if chunk.state in {ChunkState.EMPTY, ChunkState.STABLE}:
            joins = False
        elif joins and chunk.prior:
            found[-1].append(chunk)
        else:
            found.append([chunk])
            joins = True
    return [tuple(run) for run in found if any(chunk.state is ChunkState.COMPACT for chunk in run)]


def join_small(candidates: Iterable[Chunks], small_cost: int) -> list[Chunks]:
    """Return candidates, each small one joined to the one before where that is small, too.

    Args:
        candidates: In order.
        small_cost: Most bytes of a small one. What was joined may be small no more.
    """
    found: list[list[TimeChunk]] = []
    sizes: dict[str, int] = {}
    cost = 0
    for run in candidates:
        if not found or max(cost_of(run), cost) > small_cost:
            found.append([])
            sizes, cost = {}, 0
        found[-1] += run
        cost += _add_sizes(sizes, run)
    return [tuple(run) for run in found]


def split_large(
    candidates: Iterable[Chunks], max_cost: float, chunks_max: int | None = None
) -> list[Chunks]:
    """Return candidates cut at ends of chunks, before they pass a limit.

    A single chunk may be over the limit. A part of which no chunk is to be compacted is kept:
    the parts beside it cut the segments that it shares with them, and that may change its score.

    Args:
        candidates: In order.
        max_cost: Most bytes of a task.
        chunks_max: Most chunks of a task; None: any number.
    """
    found: list[Chunks] = []
    for run in candidates:
        part, sizes, cost = list[TimeChunk](), dict[str, int](), 0
        for chunk in run:
            added = sum(segment.size for segment in chunk.segments if segment.id not in sizes)
            full = chunks_max is not None and len(part) >= chunks_max
            if part and (full or cost + added > max_cost):
                found.append(tuple(part))
                part, sizes, cost = [], {}, 0
            part.append(chunk)
            cost += _add_sizes(sizes, [chunk])
        found.append(tuple(part))
    return found


class Colour(StrEnum):
    """Which tasks run first."""

    RED = "red"
    BLACK = "black"
    """It waits for others."""


def depend_on_previous(tasks: Sequence[frozenset[str]]) -> list[tuple[int, ...]]:
    """Return which tasks each waits for: the one before, if they share a segment.

    Args:
        tasks: The segments of each, in order of time.
    """
    return [
        (at - 1,) if at and segments & tasks[at - 1] else () for at, segments in enumerate(tasks)
    ]


def depend_on_neighbours(tasks: Sequence[frozenset[str]]) -> list[tuple[int, ...]]:
    """Return which tasks each waits for, so that every other one of a chain begins at once.

    A task that shares a segment with an earlier red one is black. It waits for all red ones that it
    shares a segment with, and for such black ones before it. No cycle is possible.

    Args:
        tasks: The segments of each, in order of time.
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
    """Chunks that are rewritten together. What sticks out of them is written apart."""

    name: str
    chunks: tuple[TimeChunk, ...]
    depends_on: tuple[str, ...] = ()
    """Names of tasks that have to be done before."""
    oversize: bool = False
    """It is one chunk, and costs more than a task should."""

    @property
    def color(self) -> Colour:
        """Black if it waits for others."""
        return Colour.BLACK if self.depends_on else Colour.RED

    @property
    def priority(self) -> float:
        """The greatest one of its chunks."""
        return max(chunk.score.priority for chunk in self.chunks)

    @property
    def cost(self) -> int:
        """Bytes of its segments."""
        return cost_of(self.chunks)

    @property
    def starts(self) -> list[float]:
        """When its chunks begin."""
        return [chunk.start for chunk in self.chunks]

    @property
    def segments(self) -> list[str]:
        """Ids, sorted."""
        return sorted({id_ for chunk in self.chunks for id_ in chunk.ids})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """How large tasks are, and how they wait for each other."""

    small_cost: int = 0
    max_cost: float = math.inf
    chunks_max: int | None = None
    dependencies: str = "multi"
    """`simple`: each waits for the one before. `multi`: see `depend_on_neighbours`."""


def tasks_of(chunks: Iterable[TimeChunk], limits: TaskLimits) -> list[Task]:
    """Return the tasks that bring chunks into shape, in order of time.

    Args:
        chunks: In order.
        limits: Of the tasks.
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
    """All that the notes derive from a timeline."""

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
    """Return spans, chunks and tasks of the segments that nothing hides.

    Args:
        segments: In any order.
        granularity: Length of a chunk.
        max_size: Most bytes of a segment.
        limits: Of the tasks; None: no limit.
        rules: By which chunks are scored.
    """
    seen = visible(segments)
    chunks = chunks_of(seen, granularity, max_size, rules=rules)
    return TimelinePlan(spans_of(seen), chunks, tasks_of(chunks, limits or TaskLimits()))
