"""The time-chunk planner: few files per hour, day or week, each within one such chunk.

For tables with a time column and without a key. Time is divided into chunks of equal length. A
chunk is stable if its files lie inside it, no file is larger than the target, and fewer files do
not suffice. Other chunks are rewritten together with the chunks that they share files with, and
outputs are cut at the ends of chunks; see `chunks.py`. Rules of the option `rules` score a chunk
first. Druid's policies decide which chunks may be compacted, and in which order.

The files and bytes of a job are bounded. A larger task is done in steps: files that span chunks are
cut first, then the smallest files of each chunk are merged. A file that spans very many chunks is
first cut into long pieces. Files whose rows have all expired are dropped.

Fixed point: regardless of output sizes, a job removes files that span ends of chunks, files above
the target that were not cut before, or at least one file of a chunk. Outputs have a tag; an output
that is still too large counts as full. A job that would repeat the last one is not planned.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from common.documents import FieldKind, FieldRule
from common.errors import ConfigError
from common.model.file import ChunkGrid, DataFile, total_bytes
from common.model.job import (
    TIME_CUTS_MAX,
    IntervalState,
    JobAction,
    Kind,
    Plan,
    PlannedInterval,
    PlannedJob,
    job_priority,
    time_outputs_max,
)
from common.model.table import TableSettings
from common.spi.options import (
    OptionRule,
    of_table,
    option,
    option_names,
    read_options,
    read_rules,
    settings_of,
)
from common.spi.planner import PlanParameters
from common.units import exact_duration, format_bytes, format_count
from coordinator.plugins.planners.chunks import (
    FULL,
    MINOR,
    RULES,
    ChunkState,
    Contents,
    Extent,
    Interval,
    Rule,
    Score,
    Segment,
    Task,
    TaskLimits,
    Thresholds,
    TimeChunk,
    chunk_numbers,
    depend_on_neighbours,
    depend_on_previous,
    eligibility,
    fixed_place,
    fragmentation_index,
    in_order,
    merge_intervals,
    occupied_chunks,
    overlapped,
    read_intervals,
    score,
    skip_interval,
    tasks_of,
)
from coordinator.plugins.planners.size_tiered import is_result, moment

# ------------------------------------------------------------------------------------------ Options


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChunkOptions:
    """Options and settings of the planner."""

    granularity_s: float = option(86_400.0, at_least=1)
    origin_s: float = option(0.0, at_least=0)
    target_bytes: int = of_table("target_bytes", at_least=1)
    small_cost_bytes: int = option(64 * 1024**2, at_least=0)
    max_cost_bytes: int = option(10 * 1024**3, at_least=1)
    skip_offset_s: float = option(86_400.0, at_least=0)
    skip_intervals: str = option("")
    order: str = option("newest", one_of=("newest", "priority", "fragmented", "fixed"))
    intervals: str = option("")
    dependencies: str = option("multi", one_of=("multi", "simple"))
    rules: str = option("", at_most=2000)
    min_count: int = option(1, at_least=1)
    min_uncompacted_bytes: int = option(0, at_least=0)
    max_average_bytes: int = option(0, at_least=0)
    minor_bytes_percent: float = option(0.0, at_least=0, at_most=100)
    minor_rows_percent: float = option(0.0, at_least=0, at_most=100)
    max_files: int = of_table("max_files", at_least=2)  # One file is no merge.
    file_limit: int = of_table("file_limit", at_least=0)

    @property
    def thresholds(self) -> Thresholds | None:
        """Thresholds for the compaction of a chunk; None if they have no effect."""
        configured = Thresholds(
            min_count=self.min_count,
            min_bytes=self.min_uncompacted_bytes,
            max_avg=self.max_average_bytes or 1 << 62,
            pct_bytes=self.minor_bytes_percent,
            pct_rows=self.minor_rows_percent,
        )
        neutral = Thresholds(min_count=1, min_bytes=0, max_avg=1 << 62)
        return None if configured == neutral else configured


_NAME = "planner time-chunk"


def _options(
    given: Mapping[str, object], settings: TableSettings | None = None
) -> TimeChunkOptions:
    options = read_options(TimeChunkOptions, _NAME, given, settings)
    for name in ("granularity_s", "origin_s"):
        if getattr(options, name) % 1:
            raise ConfigError(
                f"{_NAME}: option {name} is {getattr(options, name)}, expected whole seconds"
            )
    _rules_of(options.rules)
    read_intervals(f"{_NAME}: option skip_intervals", options.skip_intervals)
    fixed = read_intervals(f"{_NAME}: option intervals", options.intervals)
    if bool(fixed) != (options.order == "fixed"):
        raise ConfigError(
            f"{_NAME}: option intervals is {options.intervals!r} and order is {options.order}; "
            "expected intervals with order=fixed, and only then"
        )
    return options


_MEASURES = {
    **dict.fromkeys(("files", "excess"), FieldRule(kind=FieldKind.COUNT, least=0)),
    **dict.fromkeys(("bytes", "largest", "mean"), FieldRule(kind=FieldKind.SIZE)),
    "overlap": FieldRule(kind=FieldKind.FLAG),
}
_OUTCOMES: Mapping[str, FieldRule | None] = {
    ChunkState.STABLE.value: None,
    ChunkState.NO_OPINION.value: None,
    ChunkState.COMPACT.value: FieldRule(kind=FieldKind.NUMBER, least=0, most=1),
}


@lru_cache(maxsize=64)
def _rules_of(written: str) -> tuple[Rule, ...]:
    """Return the rules of the option `rules`."""
    rules = read_rules(f"{_NAME}: option rules", written, _OUTCOMES, _MEASURES)
    return tuple(partial(_score_by, rule) for rule in rules)


def _score_by(rule: OptionRule, contents: Contents) -> Score | None:
    """Return the score by a rule of the option; None if it does not apply."""
    if not contents.segments or not rule.applies(_measured(contents)):
        return None
    default, outcome = score(contents), ChunkState(rule.outcome)
    settled = all(segment.settled for segment in contents.segments)
    if outcome is ChunkState.COMPACT and default.state is not outcome and settled:
        return None  # Jobs of this planner have made the files, as few as needed.
    return Score(outcome, default.priority if rule.number is None else rule.number, rule.text)


def _measured(contents: Contents) -> Mapping[str, float]:
    sizes = [segment.size for segment in contents.segments]
    return {
        "files": len(sizes),
        "excess": len(sizes) - contents.ideal,
        "bytes": sum(sizes),
        "largest": max(sizes),
        "mean": sum(sizes) / len(sizes),
        "overlap": contents.overlap,
    }


# -------------------------------------------------------------------------------------- The planner


CHUNKS_MAX = TIME_CUTS_MAX // 2
"""Maximum number of chunks of a task, because a job cuts at both ends of separate chunks."""
OUTPUTS_MAX = 5000
"""Maximum number of outputs of a job that cuts by size."""
TAG, STEP_TAG = "chunk", "chunk-step"
"""Tags of outputs: of a final job, and of an intermediate step."""
EXPIRY_MARGIN_S = 2.0
"""Margin for rounded times of files; rows that are older by this margin have certainly expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A future job."""

    segments: tuple[Segment, ...]
    start_s: float
    end_s: float
    """End of the range of chunks that the job compacts."""
    cuts_at_s: tuple[float, ...] = ()
    final: bool = True
    """Whether its chunks are stable after the job."""
    priority: float = 0.0
    why: str = ""

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(segment.id for segment in self.segments)


@dataclass(slots=True)
class _Work:
    """State of one plan."""

    parameters: PlanParameters
    options: TimeChunkOptions
    rules: tuple[Rule, ...]
    units: list[_Unit] = field(default_factory=list)
    depends: dict[int, tuple[int, ...]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    """Chunk → why it is left, if its score is not the reason."""
    chunks: list[tuple[TimeChunk, TimeChunk]] = field(default_factory=list)
    """Each chunk in its current form, and in the form that may be compacted."""
    in_use: list[Interval] = field(default_factory=list)
    skipped: list[Interval] = field(default_factory=list)
    fixed: list[Interval] = field(default_factory=list)

    @property
    def is_user(self) -> bool:
        return self.parameters.kind is Kind.USER

    def leave(self, segments: Iterable[Segment], why: str) -> None:
        self.left.update((segment.id, why) for segment in segments)

    def fits(self, segments: Sequence[Segment]) -> bool:
        """Return whether the segments fit into one job."""
        most = self.parameters.job_bytes_max
        size = sum(segment.size for segment in segments)
        return len(segments) <= self.options.max_files and (most is None or size <= most)

    def sizes(self, segments: Iterable[Segment]) -> int:
        return sum(segment.size_up_to(self.options.target_bytes) for segment in segments)

    def ideal(self, segments: Iterable[Segment]) -> int:
        return max(1, math.ceil(self.sizes(segments) / self.options.target_bytes))

    def priority(self, dirty: int, points: int) -> int:
        kind, limit = self.parameters.kind, self.options.file_limit
        return job_priority(kind, files_in_tablet=dirty, files_in_job=points, file_limit=limit)

    def chunk_text(self, start_s: float, end_s: float) -> str:
        count = round((end_s - start_s) / self.options.granularity_s)
        length = exact_duration(self.options.granularity_s)
        return f"{format_count(count, 'chunk')} of {length} from {moment(start_s)}"


class TimeChunkPlanner:
    """Plans by time chunks; see the module. Keeps no state between plans."""

    option_names = option_names(TimeChunkOptions)
    setting_names = settings_of(TimeChunkOptions) | {"ttl_s"}

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        """Create a planner with the given rules.

        Args:
            rules: Rules that score chunks; the first rule with an answer decides.
        """
        self._rules = tuple(rules)

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made; see `DeclaredPlanner`."""
        _options(options)

    def chunk_grid(self, options: Mapping[str, object], settings: TableSettings) -> ChunkGrid:
        """Return the chunks of time by which it plans."""
        read = _options(options, settings)
        return ChunkGrid(read.granularity_s, read.origin_s)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left; see `Planner`."""
        options = _options(parameters.options, parameters.settings)
        if why := _no_chunks(parameters):
            return Plan(left=dict.fromkeys((file.path for file in parameters.candidates), why))
        rules = (_rule_of_request(parameters), *_rules_of(options.rules), *self._rules)
        work = _Work(parameters, options, rules)
        work.in_use = _in_use(work)
        if parameters.kind is Kind.SYSTEM:
            work.skipped = _skipped(work)
            work.fixed = read_intervals("intervals", options.intervals)
        expired, files = _expired(parameters)
        timed = [_segment(file, options) for file in files if file.time_min_s is not None]
        _plan_untimed(work, [file for file in files if file.time_min_s is None])
        _cut_wide(work, [segment for segment in timed if _is_wide(segment, options)], timed)
        _plan_chunks(work, [segment for segment in timed if not _is_wide(segment, options)])
        return _plan_of(work, expired, files)


def _no_chunks(parameters: PlanParameters) -> str:
    """Return why a table has no time chunks; empty if it has."""
    if parameters.keyed:
        return "time-chunk needs a table without a key: with a key, outputs are cut at keys"
    return "" if parameters.timed else "time-chunk needs a table with a time column"


def _rule_of_request(parameters: PlanParameters) -> Rule:
    """Return the rule that a request rewrites all chunks with files that are not its results."""
    is_user = parameters.kind is Kind.USER

    def rule(contents: Contents) -> Score | None:
        files = (parameters.files[segment.id] for segment in contents.segments)
        wanted = is_user and any(not is_result(file, parameters) for file in files)
        return Score(ChunkState.COMPACT, 1.0) if wanted else None

    return rule


def _segment(file: DataFile, options: TimeChunkOptions) -> Segment:
    """Return a file as a segment; a file without times is at time 0."""
    start_s, last_s = file.time_min_s or 0.0, file.time_max_s or file.time_min_s or 0.0
    target = str(options.target_bytes)
    return Segment(
        id=file.path,
        start=start_s,
        end=math.nextafter(max(start_s, last_s), math.inf),
        size=file.size_bytes,
        settled=any(
            name in {TAG, STEP_TAG} and tag.split(":")[0] == target for name, tag in file.tags
        ),
    )


def _is_wide(segment: Segment, options: TimeChunkOptions) -> bool:
    return len(chunk_numbers(segment, options.granularity_s, options.origin_s)) > CHUNKS_MAX


# ------------------------------------------------------------------ Expired, untimed and wide files


def _expired(parameters: PlanParameters) -> tuple[list[DataFile], list[DataFile]]:
    """Split the candidates into files whose rows have all expired, and other files."""
    ttl_s = parameters.settings.ttl_s
    if ttl_s is None or parameters.kind is Kind.USER:
        return [], list(parameters.candidates)
    limit_s = parameters.now_s - ttl_s - EXPIRY_MARGIN_S
    over, others = list[DataFile](), list[DataFile]()
    for file in parameters.candidates:
        gone = file.time_max_s is not None and file.time_max_s <= limit_s
        (over if gone else others).append(file)
    return over, others


def _plan_untimed(work: _Work, files: Sequence[DataFile]) -> None:
    """Merge files without times as if they were one chunk."""
    segments = tuple(in_order(_segment(file, work.options) for file in files))
    scored = score(Contents(segments, work.options.target_bytes), work.rules)
    if scored.state is ChunkState.COMPACT:
        _add_contained(work, segments, _Unit(segments=(), start_s=0, end_s=0, why="no times"))
    else:
        work.leave(segments, "has no times, and no smaller number of such files would do")


def _cut_wide(work: _Work, wide: Sequence[Segment], timed: Sequence[Segment]) -> None:
    """Cut files that span very many chunks into long pieces, unless they may stay unchanged."""
    options = work.options
    for segment in wide:
        chunks = chunk_numbers(segment, options.granularity_s, options.origin_s)
        alone = not any(
            other.start < segment.end and segment.start < other.end and other is not segment
            for other in timed
        )
        stays = score(Contents((segment,), options.target_bytes, overlap=True), work.rules)
        if not work.fits([segment]):
            work.leave([segment], _too_large(work))
        elif alone and stays.state is not ChunkState.COMPACT:
            work.leave([segment], f"spans {len(chunks)} chunks, and there is no other file")
        else:
            step = math.ceil(len(chunks) / TIME_CUTS_MAX)
            work.units.append(
                _Unit(
                    segments=(segment,),
                    start_s=_start_s(chunks.start, options),
                    end_s=_start_s(chunks.stop, options),
                    cuts_at_s=tuple(_start_s(at, options) for at in chunks[step::step]),
                    final=False,
                    why="a file that spans very many chunks is cut into pieces",
                )
            )


def _start_s(index: int, options: TimeChunkOptions) -> float:
    return options.origin_s + index * options.granularity_s


def _too_large(work: _Work) -> str:
    return f"is more than any group accepts ({format_bytes(work.parameters.job_bytes_max or 0)})"


# ------------------------------------------------------------------------------------------- Chunks


def _plan_chunks(work: _Work, segments: Sequence[Segment]) -> None:
    """Add the jobs that compact chunks; record why other files are left."""
    options, most = work.options, work.parameters.job_bytes_max
    occupied = occupied_chunks(
        segments,
        options.granularity_s,
        options.target_bytes,
        rules=work.rules,
        origin=options.origin_s,
    )
    work.chunks = [(chunk, _allowed(work, chunk)) for chunk in occupied]
    chunks = [allowed for _, allowed in work.chunks]
    for chunk in reversed(chunks):
        work.leave(chunk.segments, work.notes.get(chunk.index) or _why_left(work, chunk))
    limits = TaskLimits(
        small_cost=options.small_cost_bytes,
        max_cost=min(options.max_cost_bytes, math.inf if most is None else most),
        chunks_max=CHUNKS_MAX,
    )
    first = len(work.units)
    stepwise = False
    for task in tasks_of(chunks, limits):
        before = len(work.units)
        _add_task(work, task)
        stepwise = stepwise or len(work.units) != before + 1
    units = [unit.ids for unit in work.units[first:]]
    simple = options.dependencies == "simple" and not stepwise
    waits = (depend_on_previous if simple else depend_on_neighbours)(units)
    for at, others in enumerate(waits):
        work.depends[first + at] = tuple(first + other for other in others)


def _allowed(work: _Work, chunk: TimeChunk) -> TimeChunk:
    """Apply the policies: mark a forbidden chunk as stable; reduce a minor one to new files."""
    if why := _forbidden(work, chunk):
        work.notes[chunk.index] = why
        return replace(chunk, score=Score(ChunkState.STABLE))
    thresholds = work.options.thresholds
    if work.is_user or thresholds is None or chunk.state is not ChunkState.COMPACT:
        return chunk
    fresh = tuple(segment for segment in chunk.segments if not _is_compacted(segment, chunk, work))
    rest = [segment for segment in chunk.segments if segment not in fresh]
    verdict = eligibility(_extent(fresh, work), _extent(rest, work), thresholds)
    if verdict == FULL:
        return chunk
    if not verdict.startswith(MINOR) or (len(fresh) == 1 and not (chunk.prior or chunk.later)):
        work.notes[chunk.index] = (
            f"its chunk has {format_count(len(fresh), 'file')} that no job has compacted, of "
            f"{format_bytes(_extent(fresh, work).bytes)}: too few or too little ({verdict})"
        )
        return replace(chunk, score=Score(ChunkState.STABLE))
    work.leave(rest, f"is compacted; {format_count(len(fresh), 'newer file')} of its chunk will be")
    return replace(
        chunk, segments=fresh, prior=any(segment.start < chunk.start for segment in fresh)
    )


def _forbidden(work: _Work, chunk: TimeChunk) -> str:
    """Return why a chunk may not be compacted now; empty if it may."""
    if overlapped(chunk.start, chunk.end, work.in_use):
        return "waits for a file of its chunk that is in use"
    if overlapped(chunk.start, chunk.end, work.skipped):
        return "is in an interval that is skipped (skip_offset, skip_intervals)"
    if work.fixed and fixed_place(chunk.start, chunk.end, work.fixed) is None:
        return "is in no interval of the fixed order"
    return ""


def _in_use(work: _Work) -> list[Interval]:
    """Return the intervals of files that are in use or held."""
    parameters = work.parameters
    busy = {file.path for job in parameters.running for file in job.files}
    if not work.is_user:
        busy |= parameters.files.keys() - {file.path for file in parameters.candidates}
    files = (parameters.files[path] for path in sorted(busy) if path in parameters.files)
    segments = [_segment(file, work.options) for file in files if file.time_min_s is not None]
    return merge_intervals((segment.start, segment.end) for segment in segments)


def _skipped(work: _Work) -> list[Interval]:
    options, parameters, now_s = work.options, work.parameters, work.parameters.now_s
    intervals = read_intervals("skip_intervals", options.skip_intervals)
    times = [parameters.latest_s, *(file.time_max_s for file in parameters.files.values())]
    # Ignore times in the future, so that such a row does not make all other data old.
    latest = [at_s for at_s in times if at_s is not None and at_s <= now_s]
    offset = skip_interval(
        max(latest, default=now_s), options.skip_offset_s, options.granularity_s, options.origin_s
    )
    return merge_intervals([*intervals, *([(offset[0], math.inf)] if offset else [])])


def _is_compacted(segment: Segment, chunk: TimeChunk, work: _Work) -> bool:
    """Return whether a job with the same options wrote a file for exactly this chunk."""
    words = dict(work.parameters.files[segment.id].tags).get(TAG, "").split(":")
    if len(words) < 4 or ":".join(words[:2]) != _tag_head(work):
        return False
    return float(words[2]) <= chunk.start and chunk.end <= float(words[3])


def _extent(segments: Iterable[Segment], work: _Work) -> Extent:
    files = [work.parameters.files[segment.id] for segment in segments]
    return Extent(count=len(files), bytes=total_bytes(files), rows=sum(f.rows for f in files))


def _why_left(work: _Work, chunk: TimeChunk) -> str:
    count = format_count(len(chunk.segments), "file")
    target = format_bytes(work.options.target_bytes)
    summary = f"its chunk from {moment(chunk.start)} has {count}"
    if chunk.score.rule and chunk.state is not ChunkState.COMPACT:
        return f"{summary}: rule {chunk.score.rule!r}"
    if chunk.state is ChunkState.NO_OPINION:
        return f"{summary} of at most {target}, and one that spans chunks: no neighbour needs it"
    if chunk.state is ChunkState.STABLE:
        return f"{summary} of at most {target}, and no smaller number would do"
    return f"{summary}, and waits for others of its chunk"


# ----------------------------------------------------------------------------------- Tasks in steps


def _add_task(work: _Work, task: Task) -> None:
    """Add the job of a task, or the jobs of its first step if the task is too large for one job."""
    segments = in_order({segment for chunk in task.chunks for segment in chunk.segments})
    ends = sorted({end for chunk in task.chunks for end in (chunk.start, chunk.end)})
    scores = (chunk.score for chunk in task.chunks if chunk.state is ChunkState.COMPACT)
    rules = ", ".join(dict.fromkeys(f"rule {score.rule!r}" for score in scores if score.rule))
    unit = _Unit(
        segments=tuple(segments),
        start_s=task.chunks[0].start,
        end_s=task.chunks[-1].end,
        priority=task.priority,
        why="more bytes than max_cost, in one chunk" if task.oversize else rules,
    )
    if work.fits(segments):
        work.units.append(replace(unit, cuts_at_s=_inside(ends, segments)))
        return
    spanning = [segment for segment in segments if _inside(ends, [segment])]
    if not spanning:
        for chunk in task.chunks:
            whole = replace(unit, start_s=chunk.start, end_s=chunk.end)
            _add_contained(work, chunk.segments, whole)
        return
    work.leave(segments, "is merged in a later step, when files that span chunks are cut")
    for group in _groups(work, spanning):
        step = replace(unit, segments=tuple(group), final=False, why="files that span chunks")
        work.units.append(replace(step, cuts_at_s=_inside(ends, group)))


def _inside(ends: Iterable[float], segments: Iterable[Segment]) -> tuple[float, ...]:
    """Return the ends of chunks that lie inside the range of some segments."""
    chosen = list(segments)
    start, end = min(segment.start for segment in chosen), max(segment.end for segment in chosen)
    return tuple(at for at in ends if start < at < end)


def _groups(work: _Work, segments: Sequence[Segment]) -> list[list[Segment]]:
    """Group segments in the given order; each group fits into one job."""
    groups: list[list[Segment]] = []
    for segment in segments:
        if not work.fits([segment]):
            work.leave([segment], _too_large(work))
        elif groups and work.fits([*groups[-1], segment]):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _add_contained(work: _Work, segments: Sequence[Segment], unit: _Unit) -> None:
    """Add the jobs of files inside one chunk: a single job, or the first step of several.

    Each file that is too large is cut in its own job. The smallest other files are merged if that
    saves a file. A request also rewrites all other files.
    """
    if work.fits(segments):
        work.units.append(replace(unit, segments=tuple(segments)))
        return
    step = replace(unit, final=False, why="the smallest files of a chunk with many")
    work.leave(segments, "is merged in a later step, or no merge of so few would save a file")
    target = work.options.target_bytes
    large = [segment for segment in segments if segment.size_up_to(target) > target]
    rest = sorted(
        (segment for segment in segments if segment not in large),
        key=lambda segment: (segment.size, segment.id),
    )
    for segment in large:
        if work.fits([segment]):
            why = "a file above the target is cut"
            work.units.append(replace(step, segments=(segment,), why=why))
        else:
            work.leave([segment], _too_large(work))
    for group in _groups(work, rest):
        files = [work.parameters.files[segment.id] for segment in group]
        wanted = work.is_user and any(not is_result(file, work.parameters) for file in files)
        if wanted or work.ideal(group) < len(group):
            work.units.append(replace(step, segments=tuple(group)))


# ----------------------------------------------------------------------------------------- The plan


def _plan_of(work: _Work, expired: Sequence[DataFile], files: Sequence[DataFile]) -> Plan:
    """Return the plan: drops first, then jobs without dependencies, then the others."""
    depends = {at: work.depends.get(at, ()) for at in range(len(work.units))}
    for at in [at for at, unit in enumerate(work.units) if _is_repeated(work, unit)]:
        work.leave(work.units[at].segments, "is as the last job left it: another would do the same")
        depends = {
            n: tuple(m for m in before if m != at) for n, before in depends.items() if n != at
        }
    ranks = {at: rank for rank, at in enumerate(sorted(depends, key=lambda at: _rank(work, at)))}
    places = sorted(depends, key=lambda at: (bool(depends[at]), at if depends[at] else ranks[at]))
    dirty = sum(len(work.units[at].segments) for at in depends)
    drops = _drops(work, expired, dirty, len(places))
    at_place = {at: len(drops) + number for number, at in enumerate(places)}
    after = {at: tuple(sorted(at_place[n] for n in depends[at])) for at in places}
    jobs = [_job(work, at, after[at], dirty, len(places) - ranks[at]) for at in places]
    planned = {path for job in (*drops, *jobs) for path in job.files}
    left = {path: why for path, why in work.left.items() if path not in planned}
    return Plan(
        jobs=(*drops, *jobs),
        left=left,
        due_at_s=_next_expiry_s(work.parameters, files),
        intervals=_intervals(work, (*drops, *jobs), left),
    )


def _intervals(
    work: _Work, jobs: Sequence[PlannedJob], left: Mapping[str, str]
) -> tuple[PlannedInterval, ...]:
    """Return the state of the chunks with files; empty for a request."""
    if work.is_user:
        return ()
    planned = {path: job.reason for job in jobs for path in job.files}
    running = merge_intervals(
        (segment.start, segment.end)
        for job in work.parameters.running
        for segment in (_segment(file, work.options) for file in job.files)
    )
    numbers = [None, *(chunk.index for chunk, _ in work.chunks), None]
    intervals: list[PlannedInterval] = []
    for at, (chunk, allowed) in enumerate(work.chunks, 1):
        state, reason = _state_of(work, chunk, allowed, running)
        if state is IntervalState.PENDING:
            reasons = [planned[path] for path in allowed.ids if path in planned]
            reason = reasons[0] if reasons else left.get(allowed.ids[0], "")
        intervals.append(
            PlannedInterval(
                start_s=chunk.start,
                end_s=chunk.end,
                state=state,
                reason=reason,
                files=len(chunk.segments),
                size_bytes=sum(segment.size for segment in chunk.segments),
                index=chunk.index,
                previous=numbers[at - 1],
                next=numbers[at + 1],
                overlaps_previous=chunk.prior,
                overlaps_next=chunk.later,
            )
        )
    return tuple(intervals)


def _state_of(
    work: _Work, chunk: TimeChunk, allowed: TimeChunk, running: Sequence[Interval]
) -> tuple[IntervalState, str]:
    """Return the first state in the order of Druid's checks that a chunk has, and the reason."""
    if overlapped(chunk.start, chunk.end, running):
        return IntervalState.RUNNING, "a job on its files is running"
    note = work.notes.get(chunk.index, "")
    if overlapped(chunk.start, chunk.end, work.in_use) or overlapped(
        chunk.start, chunk.end, work.skipped
    ):
        return IntervalState.SKIPPED, note
    if note:
        return IntervalState.POLICY_EXCLUDED, note
    if allowed.state is ChunkState.COMPACT:
        return IntervalState.PENDING, ""
    return IntervalState.COMPLETE, _why_left(work, chunk)


def _next_expiry_s(parameters: PlanParameters, files: Iterable[DataFile]) -> float | None:
    """Return when the next file can be dropped."""
    ttl_s = parameters.settings.ttl_s
    if ttl_s is None or parameters.kind is Kind.USER:
        return None
    ends = [file.time_max_s for file in files if file.time_max_s is not None]
    return min((end + ttl_s + EXPIRY_MARGIN_S for end in ends), default=None)


def _rank(work: _Work, at: int) -> tuple[float, ...]:
    """Return the sort key of jobs, best first."""
    unit = work.units[at]
    first = {
        "newest": -unit.end_s,
        "priority": -unit.priority,
        "fragmented": -_fragmentation(work, unit),
        "fixed": _place(work, unit),
    }[work.options.order]
    return (first, -unit.priority, unit.start_s, at)


def _fragmentation(work: _Work, unit: _Unit) -> float:
    extent, thresholds = _extent(unit.segments, work), Thresholds()
    return fragmentation_index(extent.count, extent.bytes, thresholds.min_count, thresholds.max_avg)


def _place(work: _Work, unit: _Unit) -> float:
    at = fixed_place(unit.start_s, unit.start_s + work.options.granularity_s, work.fixed)
    return len(work.fixed) if at is None else at


def _tag_head(work: _Work) -> str:
    return f"{work.options.target_bytes}:{work.options.granularity_s:.0f}"


def _tag(work: _Work, unit: _Unit) -> tuple[str, str]:
    """Return the tag of a job's outputs: the options and, for a final job, the time range."""
    if not unit.final:
        return STEP_TAG, _tag_head(work)
    return TAG, f"{_tag_head(work)}:{unit.start_s:.0f}:{unit.end_s:.0f}"


def _is_repeated(work: _Work, unit: _Unit) -> bool:
    """Return whether a job would only repeat the last job that wrote its files."""
    files = [work.parameters.files[segment.id] for segment in unit.segments]
    made = {file.job for file in files}
    if unit.cuts_at_s or len(made) > 1 or made == {None} or work.ideal(unit.segments) < len(files):
        return False
    if work.is_user and any(not is_result(file, work.parameters) for file in files):
        return False
    return all(_tag(work, unit) in file.tags for file in files)


def _job(work: _Work, at: int, depends_on: tuple[int, ...], dirty: int, points: int) -> PlannedJob:
    unit, parameters, options = work.units[at], work.parameters, work.options
    files = [parameters.files[segment.id] for segment in unit.segments]
    size, rows, cuts = total_bytes(files), sum(file.rows for file in files), len(unit.cuts_at_s)
    ideal = min(work.ideal(unit.segments), OUTPUTS_MAX)
    full = math.ceil(rows * options.target_bytes / max(1, work.sizes(unit.segments)))
    rows_max = max(1, full, math.ceil(rows / OUTPUTS_MAX)) if cuts and ideal > 1 else 0
    return PlannedJob(
        kind=parameters.kind,
        files=tuple(sorted(unit.ids)),
        group=parameters.group_for(size),
        priority=work.priority(dirty, points),
        reason=_reason(work, unit, files),
        depends_on=depends_on,
        outputs_expected=time_outputs_max(cuts, rows, rows_max) if cuts else ideal,
        cuts_at_s=unit.cuts_at_s,
        output_rows_max=rows_max,
        output_tags=(_tag(work, unit),),
    )


def _reason(work: _Work, unit: _Unit, files: Sequence[DataFile]) -> str:
    summary = f"{format_count(len(files), 'file')} of {format_bytes(total_bytes(files))}"
    if unit.end_s > unit.start_s:
        summary = f"{work.chunk_text(unit.start_s, unit.end_s)}: {summary}"
    if unit.priority:
        summary += f", priority {unit.priority:.2f}"
    return f"{summary} ({unit.why})" if unit.why else summary


def _drops(work: _Work, expired: Sequence[DataFile], dirty: int, points: int) -> list[PlannedJob]:
    """Return the jobs that drop files whose rows have all expired."""
    ordered = sorted(expired, key=lambda file: (file.time_max_s or 0.0, file.path))
    width, parameters = work.options.max_files, work.parameters
    return [
        PlannedJob(
            kind=parameters.kind,
            files=tuple(sorted(file.path for file in group)),
            group=parameters.group_for(total_bytes(group)),
            priority=work.priority(dirty, points + 1),
            reason=f"all rows have expired: {format_count(len(group), 'file')}",
            outputs_expected=0,
            action=JobAction.DROP,
        )
        for group in (ordered[at : at + width] for at in range(0, len(ordered), width))
    ]
