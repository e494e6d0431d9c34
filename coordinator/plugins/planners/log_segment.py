"""The log-segment planner: copy the live rows of a range of segments, and free whole segments.

This is how LinkedIn's Ambry compacts the log of a store. Files are ordered from oldest to newest,
as segments of equal size. The live rows of a range of adjacent segments are copied to new segments,
and the range is freed. Three policies choose the range: all segments, the range with the lowest
cost per benefit, or the second with the first at intervals.

Three things differ, because files are immutable and of any size:

* A rewrite drops only rows that its inputs hide. In a table with a key, a job therefore also takes
  the files that may hide rows of its range. Outputs have the tag `reclaim=done`. They are rewritten
  for dead rows again only if the job includes all files that matter.
* A file is a segment; files with the same tag `segment` form one segment. A file larger than a
  segment counts as several segments.
* The time of the last full compaction is not stored. Periods start at fixed times that differ by
  tablet, and a file is due if it was added before the current period.

Fixed point: a job has at most as many outputs as inputs. A job that is chosen by statistics has
fewer outputs, or takes at least one file with statistics, which its outputs lack. A tablet of n
files therefore has no work left after at most 2n such jobs. `compact-all`, `hybrid` and the middle
range also rewrite a file once per period. A new analysis of the tablet restarts this count, for
files with enough dead rows.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.errors import ConfigError
from common.model.file import DataFile, total_bytes
from common.model.job import Kind, Plan
from common.model.keys import SPLIT_BYTES_MAX
from common.model.table import DERIVED_SETTINGS, TableSettings
from common.rows.rules import may_hold_older_between, may_share_keys
from common.spi.options import of_table, option, option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from common.units import format_bytes, format_count, format_duration, whole_number
from coordinator.plugins.planners.packing import capacity_bytes
from coordinator.plugins.planners.segments import (
    SegmentRange,
    by_ratio,
    divisors_near,
    middle_range,
    period_start_s,
    ranges,
    segments_needed,
    usable_bytes,
)
from coordinator.plugins.planners.size_tiered import PlanDraft, bring_to_one, is_under_way, moment

# ------------------------------------------------------------------------------------------ Options


COMPACT_ALL, STATS_BASED, HYBRID = "compact-all", "stats-based", "hybrid"
_NAME = "planner log-segment"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegmentOptions:
    """Options of the planner; defaults are Ambry's."""

    policy: str = option(STATS_BASED, one_of=(COMPACT_ALL, STATS_BASED, HYBRID))
    segment_bytes: int = of_table("target_bytes", at_least=1)
    capacity_bytes: int | None = option(None, at_least=1)
    min_used_percent: float = option(50.0, at_least=0, at_most=100)
    min_reclaim_segments: int = option(1, at_least=1)
    header_bytes: int = option(0, at_least=0)
    largest_record_bytes: int = option(0, at_least=0)
    weight_on_benefit: bool = option(False)
    cost_floor_share: float = option(0.06, at_least=0, at_most=1)
    middle_every_s: float | None = option(None, above=0)
    middle_live_share: float = option(0.3, at_least=0, at_most=1)
    check_every_s: float = option(7 * 86_400.0, above=0)
    full_every_s: float = option(6 * 86_400.0, above=0)
    skip_live_ends: bool = option(False)
    journal_s: float = option(0.0, at_least=0)
    close_after_s: float | None = option(None, at_least=0)
    deleted_retention_hours: float | None = option(None, at_least=0)
    deleted_retention_days: float | None = option(None, at_least=0)
    max_files: int = of_table("max_files", at_least=1)
    file_limit: int = of_table("file_limit", at_least=0)

    @property
    def usable_bytes(self) -> int:
        """Bytes that fit into a segment."""
        return usable_bytes(self.segment_bytes, self.header_bytes, self.largest_record_bytes)

    @property
    def floor_bytes(self) -> int:
        """Minimum cost of a segment."""
        return int(self.cost_floor_share * self.segment_bytes) if self.weight_on_benefit else 0

    @property
    def full_period_s(self) -> float | None:
        """Time between two full compactions; None: the policy has none."""
        if self.policy == STATS_BASED:
            return None
        return self.check_every_s if self.policy == COMPACT_ALL else self.full_every_s

    @property
    def retention_s(self) -> float | None:
        """Time for which jobs keep the row of a delete; None: no such time."""
        return retention_s(self.deleted_retention_hours, self.deleted_retention_days)


def retention_s(hours: float | None = None, days: float | None = None) -> float | None:
    """Return the retention of deletes from Ambry's two options; None if neither is given.

    Raises:
        ConfigError: Both are given and differ.
    """
    if hours is not None and days is not None and hours != days * 24:
        raise ConfigError(
            f"{_NAME}: option deleted_retention_hours is {hours:g} and deleted_retention_days is "
            f"{days:g}, expected one of them, or days times 24 = hours"
        )
    if hours is None:
        return None if days is None else days * 86_400
    return hours * 3600


def _kept_deletes(options: LogSegmentOptions, settings: TableSettings) -> dict[str, Any]:
    """Return the settings by which jobs keep a row until its delete is past the retention."""
    if not options.retention_s:
        return {}
    retention_s = max(settings.tombstone_retention_s, options.retention_s)
    return {"keep_deleted_rows": True, "tombstone_retention_s": retention_s}


def read_segment_options(
    given: Mapping[str, object], settings: TableSettings | None = None
) -> LogSegmentOptions:
    """Read the options, and check that they are consistent.

    Args:
        given: Option → value.
        settings: Settings of the table, for defaults.

    Raises:
        ConfigError: Names the option, its value and what is expected.
    """
    options = read_options(LogSegmentOptions, _NAME, given, settings)
    if settings is not None or given.keys() & {"segment", "segment_bytes"}:
        _check_divides(options.segment_bytes, options.capacity_bytes)
    _check_room(options)
    options.retention_s  # noqa: B018 - rejects contradictory options
    return options


def _check_room(options: LogSegmentOptions) -> None:
    if options.usable_bytes < 1:
        raise ConfigError(
            f"{_NAME}: options header_bytes {options.header_bytes} and largest_record_bytes"
            f" {options.largest_record_bytes} leave no room in a segment of"
            f" {options.segment_bytes} bytes, expected a smaller sum"
        )


def _check_divides(segment_bytes: int, capacity: int | None) -> None:
    if capacity is None or capacity % segment_bytes == 0:
        return
    near = [f"{size} ({format_bytes(size)})" for size in divisors_near(segment_bytes, capacity)]
    raise ConfigError(
        f"{_NAME}: option segment_bytes is {segment_bytes} ({format_bytes(segment_bytes)}), "
        f"expected a size that divides capacity_bytes {capacity} ({format_bytes(capacity)}); "
        f"near it: {', '.join(near)}"
    )


# ----------------------------------------------------------------------------------------- Segments


RECLAIMED = ("reclaim", "done")
"""Tag of an output that was written to drop dead rows."""
POSITION = "log"
"""Tag that keeps an output at the log position of its first input."""
SIZE = "segment_bytes"
"""Tag with the segment size of a tablet's first compaction."""
TRIES_MAX = 64
"""Maximum number of ranges, best first, for which hiding files are searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """Files that are compacted together: one file, or the files with the same tag `segment`."""

    files: tuple[DataFile, ...]
    position: float
    """Position in the log: from a tag, or the time of its first row or file."""
    used: int
    """Number of segments that it occupies; a single live byte keeps a whole segment."""
    blocked: str = ""
    """Why it is not eligible; empty if it is."""

    @property
    def size_bytes(self) -> int:
        """Total size of its files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def live_bytes(self) -> int:
        """Bytes that a copy keeps; files without statistics count as fully live."""
        return sum(map(file_live_bytes, self.files))

    @property
    def is_measured(self) -> bool:
        """Whether all its files have statistics."""
        return all(file.live_bytes is not None for file in self.files)


def _options_of(parameters: PlanParameters) -> LogSegmentOptions:
    """Return the options with the segment size that is fixed for the tablet, if there is one.

    Ambry reads the size only when a store is created. The tag of a tablet's first compaction counts
    more than the setting: tables that are older than the setting have the tag only.

    Raises:
        ConfigError: An option or setting is invalid.
    """
    given, settings = parameters.options, parameters.settings
    sizes = (whole_number(dict(file.tags).get(SIZE, "")) for file in parameters.files.values())
    fixed = min(filter(None, sizes), default=settings.log_segment_bytes)
    if fixed:
        options = replace(
            read_options(LogSegmentOptions, _NAME, given, settings), segment_bytes=fixed
        )
        if options.usable_bytes >= 1:
            return options
    return read_segment_options(given, settings)


def file_live_bytes(file: DataFile) -> int:
    """Return the live bytes of a file; its size if there are no statistics."""
    return file.size_bytes if file.live_bytes is None else min(file.live_bytes, file.size_bytes)


def _segments(parameters: PlanParameters, options: LogSegmentOptions) -> list[LogSegment]:
    """Return the segments of a tablet's log, oldest first, with reasons if not eligible."""
    free = {file.path for file in parameters.candidates}
    made = dict[str, list[DataFile]]()
    for path, file in sorted(parameters.files.items()):
        tag = dict(file.tags).get("segment")
        made.setdefault(f"segment {tag}" if tag else f"file {path}", []).append(file)
    ordered = sorted(
        (min(_position(file, timed=parameters.timed) for file in files), name)
        for name, files in made.items()
    )
    segments = list[LogSegment]()
    for number, (position, name) in enumerate(ordered, 1):
        files = tuple(made[name])
        size_bytes = sum(file.size_bytes for file in files)
        blocked = (
            _busy(files, free)
            or _in_journal(files, options, parameters.now_s)
            or _young_deletes(files, options, parameters)
        )
        if number == len(ordered):
            blocked = blocked or _active(files, options, parameters.now_s)
        used = max(1, segments_needed(size_bytes, options.segment_bytes))
        segments.append(LogSegment(files=files, position=position, used=used, blocked=blocked))
    return segments


def _position(file: DataFile, *, timed: bool) -> float:
    tags = dict(file.tags)
    for name in (POSITION, "segment"):
        try:
            return float(tags[name])
        except (KeyError, ValueError):
            continue
    return file.time_min_s if timed and file.time_min_s is not None else file.added_at_s


def _busy(files: Sequence[DataFile], free: set[str]) -> str:
    if any(file.open for file in files):
        return "is still being written"
    busy = next((file.path for file in files if file.path not in free), "")
    return f"is in a segment with {busy}, which is in use" if busy else ""


def _in_journal(files: Sequence[DataFile], options: LogSegmentOptions, now_s: float) -> str:
    if any("journal" in dict(file.tags) for file in files):
        return "has entries in the journal (tag journal)"
    youngest_s = max(file.added_at_s for file in files)
    if options.journal_s and now_s - youngest_s < options.journal_s:
        since = format_duration(options.journal_s)
        return f"is in the journal until {moment(youngest_s + options.journal_s)}, {since} long"
    return ""


def _young_deletes(
    files: Sequence[DataFile], options: LogSegmentOptions, parameters: PlanParameters
) -> str:
    """Return why deletes keep a segment out of jobs: its table does not keep deleted rows."""
    ripe_s, settings = _ripe_at_s(files, options), parameters.settings
    if ripe_s is None or ripe_s <= parameters.now_s:
        return ""
    if settings.keep_deleted_rows and settings.tombstone_retention_s >= (options.retention_s or 0):
        return ""
    return (
        f"holds deletes that are inside their retention until {moment(ripe_s)}, and its table does "
        "not keep deleted rows so long"
    )


def _ripe_at_s(files: Sequence[DataFile], options: LogSegmentOptions) -> float | None:
    """Return when the deletes of a segment take effect; None if there are none or no retention."""
    if options.retention_s is None:
        return None
    since = [file.tombstones_since_s or file.added_at_s for file in files if file.tombstones]
    return max(since) + options.retention_s if since else None


def _active(files: Sequence[DataFile], options: LogSegmentOptions, now_s: float) -> str:
    closes_s = _closes_at_s(files, options)
    if closes_s is None:
        return "is the active segment, the last of the log"
    if now_s < closes_s:
        return f"is the active segment, which closes at {moment(closes_s)}"
    return ""


def _closes_at_s(files: Sequence[DataFile], options: LogSegmentOptions) -> float | None:
    if options.close_after_s is None:
        return None
    return max(file.added_at_s for file in files) + options.close_after_s


# -------------------------------------------------------------------------------------- The planner


class LogSegmentPlanner:
    """Plans by segments of a log; see the module. Keeps no state between plans."""

    option_names = option_names(LogSegmentOptions)
    setting_names = settings_of(LogSegmentOptions) | DERIVED_SETTINGS

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made; see `DeclaredPlanner`."""
        read_segment_options(options)

    def fixed_settings(
        self, options: Mapping[str, object], settings: TableSettings
    ) -> Mapping[str, Any]:
        """Return the segment size, which a table keeps for life, and what deletes require.

        Raises:
            ConfigError: An option is invalid, or gives another size than the fixed one.
        """
        fixed = settings.log_segment_bytes
        if not fixed:
            read = read_segment_options(options, settings)
            return {"log_segment_bytes": read.segment_bytes, **_kept_deletes(read, settings)}
        # Options of the service do not matter here: they may change after the size was fixed.
        own = read_segment_options(settings.planner_options, replace(settings, target_bytes=fixed))
        if own.segment_bytes != fixed:
            raise ConfigError(
                f"{_NAME}: option segment_bytes is {own.segment_bytes}, expected {fixed} "
                f"({format_bytes(fixed)}), which is fixed for this table; for another size, "
                "create another table and import the rows"
            )
        return _kept_deletes(read_options(LogSegmentOptions, _NAME, options, settings), settings)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left; see `Planner`."""
        options = _options_of(parameters)
        draft = PlanDraft(parameters, options.file_limit)
        if parameters.kind is Kind.USER:
            if is_under_way(Kind.USER, parameters):
                draft.leave(parameters.candidates, "waits for the running jobs of the request")
            elif parameters.candidates:
                bring_to_one(draft, parameters.candidates, max(2, options.max_files), parameters)
            return draft.plan()
        log = _Log(parameters, options, draft)
        if log.may_compact():
            log.compact()
        log.ask_again()
        return draft.plan()


class _Log:
    """The segments of a tablet during a plan."""

    def __init__(
        self, parameters: PlanParameters, options: LogSegmentOptions, draft: PlanDraft
    ) -> None:
        self._parameters = parameters
        self._options = options
        self._draft = draft
        self._segments = _segments(parameters, options)
        self._used = sum(segment.used for segment in self._segments)
        for number, segment in enumerate(self._segments, 1):
            self._leave(segment, f"segment {number} {segment.blocked or self._facts(segment)}")

    def _leave(self, segment: LogSegment, why: str) -> None:
        free = {file.path for file in self._parameters.candidates}
        self._draft.leave((file for file in segment.files if file.path in free), why)

    def _facts(self, segment: LogSegment) -> str:
        """Return the facts about an eligible segment, for reasons."""
        least = self._options.min_reclaim_segments
        reclaim = f"no range with it frees {least} segment" + ("s" if least > 1 else "")
        if self._options.policy == COMPACT_ALL:
            return "is compacted when its period is over"
        if not segment.is_measured:
            return (
                "has no count of live bytes and is assumed to be all live; count them with"
                f" `neve analyze`; {reclaim} with less to copy"
            )
        live = format_bytes(segment.live_bytes)
        return f"is live in {live} of {format_bytes(segment.size_bytes)}; {reclaim} at less cost"

    # ---- Preconditions

    def may_compact(self) -> bool:
        """Return whether the store is segmented and full enough; record a reason if not."""
        options, capacity = self._options, self._options.capacity_bytes
        if capacity is None:
            return True
        if capacity == options.segment_bytes:
            self._leave_all(
                f"is not segmented: segment_bytes is capacity_bytes, {format_bytes(capacity)}, and "
                "the active segment is never compacted"
            )
            return False
        used_bytes = self._used * options.segment_bytes
        percent = 100 * used_bytes / capacity
        if used_bytes * 100 >= options.min_used_percent * capacity:
            return True
        self._leave_all(
            f"the log uses {self._used} of {capacity // options.segment_bytes} segments "
            f"({percent:.4g} %), below min_used_percent {options.min_used_percent:g}"
        )
        return False

    def _leave_all(self, why: str) -> None:
        self._draft.leave(self._parameters.candidates, why)

    def ask_again(self) -> None:
        """Request another plan for the next time at which the result may change."""
        options, now_s = self._options, self._parameters.now_s
        if not self._segments or not self._parameters.candidates:
            return
        for every_s in (options.full_period_s, options.middle_every_s):
            if every_s is not None:
                began_s = period_start_s(now_s, every_s, self._parameters.tablet)
                self._draft.ask_again(began_s + every_s + 1)
        for segment in self._segments:
            if options.journal_s:
                youngest_s = max(file.added_at_s for file in segment.files)
                self._draft.ask_again(youngest_s + options.journal_s)
            ripe_s = _ripe_at_s(segment.files, options)
            if ripe_s is not None:
                self._draft.ask_again(ripe_s)
        closes_s = _closes_at_s(self._segments[-1].files, options)
        if closes_s is not None:
            self._draft.ask_again(closes_s)

    # ---- Choice of the range

    def compact(self) -> None:
        """Plan by the policy: all due segments, else the middle range, else the best range."""
        options = self._options
        if options.full_period_s is not None and self._compact_all(options.full_period_s):
            return
        if options.policy == COMPACT_ALL:
            return
        if options.middle_every_s is not None and self._compact_middle(options.middle_every_s):
            return
        self._compact_best()

    def _compact_all(self, every_s: float) -> bool:
        """Plan all segments older than the current period; return whether any job was planned."""
        due = self._due(every_s)
        why = f"{self._options.policy}: every {format_duration(every_s)} all closed segments"
        planned = False
        for run in _runs(self._segments, due):
            kept = _without_live_ends(run) if self._options.skip_live_ends else run
            for chunk in self._chunks(kept):
                self._add_job(chunk, why)
                planned = True
            stripped = [segment for segment in run if segment not in kept]
            for segment in stripped:
                self._leave(segment, "is all live, at an end of what is compacted")
        return planned

    def _compact_middle(self, every_s: float) -> bool:
        options, due = self._options, self._due(every_s)
        for run in _runs(self._segments, lambda segment: not segment.blocked):
            # Segments that were written since the start of the period count as fully live.
            live = [
                segment.live_bytes if due(segment) else options.segment_bytes * segment.used
                for segment in run
            ]
            middle = middle_range(
                live,
                options.segment_bytes,
                options.usable_bytes,
                live_share=options.middle_live_share,
                floor_bytes=options.floor_bytes,
                used=[segment.used for segment in run],
            )
            if middle is None:
                continue
            share = f"{options.middle_live_share:.0%}"
            why = f"middle range: from the first to the last segment with at most {share} live"
            planned = False
            for old in _runs(run[middle.first : middle.last + 1], due):
                for chunk in self._chunks(old):
                    self._add_job(chunk, why)
                    planned = True
            if planned:
                return True
        return False

    def _due(self, every_s: float) -> Callable[[LogSegment], bool]:
        began_s = period_start_s(self._parameters.now_s, every_s, self._parameters.tablet)

        def is_due(segment: LogSegment) -> bool:
            return not segment.blocked and all(
                file.added_at_s <= 0 or file.added_at_s < began_s for file in segment.files
            )

        return is_due

    def _chunks(self, run: Sequence[LogSegment]) -> Iterator[list[LogSegment]]:
        """Yield groups of adjacent segments that fit into one job; leave those that never fit."""
        chunk = list[LogSegment]()
        for segment in run:
            if not self._fits([segment]):
                self._leave(segment, self._too_large(segment))
                continue
            if chunk and not self._fits([*chunk, segment]):
                yield chunk
                chunk = []
            chunk.append(segment)
        if chunk:
            yield chunk

    def _fits(self, segments: Sequence[LogSegment]) -> bool:
        files = [file for segment in segments for file in segment.files]
        return len(files) <= self._options.max_files and total_bytes(files) <= capacity_bytes(
            self._parameters
        )

    def _too_large(self, segment: LogSegment) -> str:
        files = format_count(len(segment.files), "file")
        return (
            f"has {files} of {format_bytes(segment.size_bytes)} in its segment, more than a"
            f" job may have (max_files {self._options.max_files})"
        )

    def _compact_best(self) -> None:
        """Plan the range with the lowest cost per benefit whose dead rows a job can drop."""
        options = self._options
        for _, run, best in heapq.nsmallest(
            TRIES_MAX, self._ranges(), key=lambda candidate: candidate[0]
        ):
            chosen = run[best.first : best.last + 1]
            added, problem = self._hiding(chosen)
            if problem or not self._fits([*chosen, *added]):
                reason = problem or "with the files that may hide their rows, there are too many"
                for segment in chosen:
                    self._leave(segment, f"{self._facts(segment)}; {reason}")
                continue
            cost = best.cost + sum(segment.size_bytes for segment in added)
            used = sum(segment.used for segment in [*chosen, *added])
            benefit = used - segments_needed(cost, options.usable_bytes)
            if benefit < options.min_reclaim_segments:
                continue
            first = self._segments.index(chosen[0]) + 1
            why = (
                f"segments {first} to {first + len(chosen) - 1} of {len(self._segments)} have the "
                f"least cost per segment freed ({format_bytes(int(best.ratio))})"
            )
            if added:
                why += f"; {len(added)} more may hide rows of them"
            self._add_job([*chosen, *added], why, cost)
            return

    def _ranges(self) -> Iterator[tuple[tuple[float, int, int], list[LogSegment], SegmentRange]]:
        options = self._options
        before = 0
        for run in _runs(self._segments, lambda segment: not segment.blocked):

            def fits(first: int, last: int, run: list[LogSegment] = run) -> bool:
                return self._fits(run[first : last + 1])

            for candidate in ranges(
                [segment.live_bytes for segment in run],
                options.usable_bytes,
                floor_bytes=options.floor_bytes,
                used=[segment.used for segment in run],
                fits=fits,
            ):
                inside = [
                    file
                    for segment in run[candidate.first : candidate.last + 1]
                    for file in segment.files
                ]
                outputs = max(1, segments_needed(candidate.cost, options.usable_bytes))
                # If no input has statistics, outputs must be fewer than inputs; otherwise jobs
                # never end.
                most = len(inside) - all(file.live_bytes is None for file in inside)
                if candidate.benefit >= options.min_reclaim_segments and outputs <= most:
                    ratio, benefit, first = by_ratio(candidate)
                    yield (ratio, benefit, before + first), run, candidate
            before += len(run)

    def _hiding(self, chosen: Sequence[LogSegment]) -> tuple[list[LogSegment], str]:
        """Return the segments that a job needs to drop a range's dead rows, or why it cannot.

        A file that was rewritten before waits until all segments that matter are free.
        """
        dead = [
            file
            for segment in chosen
            for file in segment.files
            if file_live_bytes(file) < file.size_bytes
        ]
        if not self._parameters.keyed or not dead:
            return [], ""
        strict = any(RECLAIMED in file.tags for file in dead)
        added = list[LogSegment]()
        for segment in self._segments:
            if segment in chosen or not any(
                _matters(other, file) for file in dead for other in segment.files
            ):
                continue
            if not segment.blocked:
                added.append(segment)
            elif strict:
                path = segment.files[0].path
                return [], f"was rewritten before, and {path}, which may hide its rows, is not free"
        return added, ""

    # ---- Jobs

    def _add_job(self, segments: Sequence[LogSegment], why: str, cost: int | None = None) -> None:
        options, files = self._options, [file for segment in segments for file in segment.files]
        live = sum(segment.live_bytes for segment in segments) if cost is None else cost
        wanted = segments_needed(live, options.usable_bytes)
        outputs = max(1, min(len(files), wanted))
        keyed = self._parameters.keyed
        cuts = _cuts(files, outputs) if keyed else ()
        used = sum(segment.used for segment in segments)
        size = format_bytes(total_bytes(files))
        reason = (
            f"{why}; {format_count(len(files), 'file')} of {size}, {format_bytes(live)} live: "
            f"{format_count(used, 'segment')} become {wanted}, {used - wanted} freed"
        )
        self._draft.add_job(
            files,
            reason,
            outputs_expected=len(cuts) + 1 if keyed else outputs,
            cuts=cuts,
            tags=(
                (POSITION, f"{min(segment.position for segment in segments):.3f}"),
                RECLAIMED,
                (SIZE, str(options.segment_bytes)),
            ),
        )


def _runs(
    segments: Sequence[LogSegment], chosen: Callable[[LogSegment], bool]
) -> Iterator[list[LogSegment]]:
    """Yield the maximal runs of adjacent chosen segments."""
    run = list[LogSegment]()
    for segment in segments:
        if chosen(segment):
            run.append(segment)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _without_live_ends(run: list[LogSegment]) -> list[LogSegment]:
    """Return a range without the fully live segments at its ends; the result may be empty."""
    dead = [at for at, segment in enumerate(run) if segment.live_bytes < segment.size_bytes]
    return run[dead[0] : dead[-1] + 1] if dead else []


def _matters(other: DataFile, file: DataFile) -> bool:
    """Return whether a rewrite without `other` may have to keep dead rows of a file."""
    if not may_share_keys(other, file.key_min, file.key_max):
        return False
    hides = (
        other.version_max is None
        or file.version_min is None
        or other.version_max >= file.version_min
    )
    return hides or (
        file.tombstones > 0
        and may_hold_older_between(other, file.key_min, file.key_max, file.version_max)
    )


def _cuts(files: Sequence[DataFile], outputs: int) -> tuple[bytes, ...]:
    """Return keys that cut live bytes into similar outputs, at ends of key ranges."""
    if outputs < 2 or any(file.key_min is None or file.key_max is None for file in files):
        return ()
    ordered = sorted(
        ((file.key_min or b"", file.key_max or b"", file) for file in files),
        key=lambda entry: (entry[0], entry[1], entry[2].path),
    )
    each_bytes = sum(map(file_live_bytes, files)) / outputs
    cuts, gathered, end = list[bytes](), 0, b""
    for at, (_, high, file) in enumerate(ordered[:-1]):
        gathered, end = gathered + file_live_bytes(file), max(end, high)
        full = gathered >= each_bytes * (len(cuts) + 1)
        if full and end < ordered[at + 1][0] and len(end) <= SPLIT_BYTES_MAX:
            cuts.append(end)
    return tuple(cuts[: outputs - 1])
