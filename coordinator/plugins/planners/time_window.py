"""The time-window planner: merge files only with files of the same time window.

This is the rule of the strategy of the same name in Cassandra and ScyllaDB, for time series. A file
belongs to the window of its latest time. The newest window is size-tiered while it is written. Each
earlier window becomes one file. Files whose rows have all expired are dropped without being read.
Each byte is therefore rewritten a few times while it is new and once more when its window is over,
and rows that expire together are stored together. Four things differ:

* The newest window is also over when the clock has passed its end and it has received no file for
  `late_wait_s`.
* Files that arrive late in a merged window are size-tiered with each other first. They are merged
  with the window's file, which has the tag `window`, after `late_wait_s`. The wait is longer if
  much data would be rewritten for little new data.
* All windows get their jobs at once, because jobs run on many machines.
* One job drops many expired files. In a table with a key, an expired row hides older rows, so a
  file is dropped together with all files that may hold such rows.

Fixed point: a merge has at least two inputs and one output. A file that a drop kept although its
rows have expired is not dropped again before `tombstone_compaction_interval_s`. A tablet of n files
has no work left after at most n - 1 merges, n drops and, if enabled, n rewrites for tombstones. A
request ends in one file per window.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.job import JobAction, Kind, Plan
from common.model.table import TableSettings
from common.rows.rules import CLOCK_MARGIN_S, may_hold_older_between
from common.spi.options import option, option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from common.units import exact_duration, format_bytes, format_count
from coordinator.plugins.planners.packing import forced_merges, patient_wait_s
from coordinator.plugins.planners.size_tiered import (
    RETENTION_SLACK,
    PlanDraft,
    Tags,
    TierOptions,
    bring_to_one,
    by_size,
    check_tier_options,
    is_under_way,
    moment,
    pick_tiers,
    pick_tombstones,
    smallest_within,
    too_large,
)

_NAME = "planner time-window"
_UNITS_S = {"minutes": 60.0, "hours": 3600.0, "days": 86_400.0}
WINDOW_MAX_S = 1000 * 86_400.0
WINDOW_TAG = "window"
"""Tag of the merged file of a window; its value is the start of the window in seconds."""
KEPT = ("expired", "kept")
"""Tag of the outputs of a drop that turned into a rewrite."""


# ------------------------------------------------------------------------------------------ Options


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindowOptions(TierOptions):
    """Options of windows, and of tiers in the newest window."""

    enforce_min_threshold: bool = option(True)
    window_unit: str = option("days", one_of=tuple(_UNITS_S))
    window_size: int = option(1, at_least=1, at_most=1000)
    window_s: float | None = option(None, at_least=1, at_most=WINDOW_MAX_S)
    late_wait_s: float = option(3600.0, at_least=0)
    expired_check_s: float = option(600.0, at_least=1)
    tombstone_compaction: bool = option(False)

    @property
    def length_s(self) -> float:
        """Length of a window, in seconds."""
        return self.window_s or self.window_size * _UNITS_S[self.window_unit]


def _options(
    given: Mapping[str, object], settings: TableSettings | None = None
) -> TimeWindowOptions:
    options = read_options(TimeWindowOptions, _NAME, given, settings)
    check_tier_options(_NAME, options)
    twice = [name for name in ("window_unit", "window_size") if name in given]
    if options.window_s is not None and twice:
        raise ConfigError(
            f"{_NAME}: options {twice[0]} and window_s are both given; give the length of a"
            " window once"
        )
    return options


def window_start(at_s: float, window_s: float) -> float:
    """Return the start of the window that contains a time, which may be before the epoch.

    Args:
        at_s: Seconds since the epoch.
        window_s: Length of a window.
    """
    return math.floor(at_s / window_s) * window_s


# -------------------------------------------------------------------------------------- The planner


class TimeWindowPlanner:
    """Plans by time windows; see the module. Keeps no state between plans."""

    option_names = option_names(TimeWindowOptions)
    setting_names = settings_of(TimeWindowOptions) | {"ttl_s"}

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made; see `DeclaredPlanner`."""
        _options(options)

    def check_table(self, *, keyed: bool, timed: bool) -> None:
        """Reject tables without a time column.

        Raises:
            ConfigError: The message names alternatives.
        """
        if not timed:
            instead = "size-tiered or ratio" if keyed else "bin-pack or size-tiered"
            raise ConfigError(
                f"needs a time_column, and the table has none; choose {instead}, or create"
                " the table with a time_column"
            )

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left; see `Planner`."""
        options = _options(parameters.options, parameters.settings)
        draft = PlanDraft(parameters, options.file_limit)
        work = _Work(parameters, options, draft)
        if parameters.kind is Kind.USER:
            _plan_request(work)
            return draft.plan()
        dropped = _drop_expired(work)
        rest = [file for file in parameters.candidates if file.path not in dropped]
        for start, files in work.by_window(rest).items():
            _plan_window(work, start, files)
        for file in rest:
            if note := work.blocked.get(file.path):
                draft.add_note(file, note)
        _ask_at_expiry(work, rest)
        alone = not is_under_way(Kind.SYSTEM, parameters)
        if options.tombstone_compaction and alone and not draft.has_jobs:
            pick_tombstones(draft, rest, options, parameters, kept_tag=WINDOW_TAG)
        return draft.plan()


Window = float | None
"""Start of a window in seconds; None: the window of files without a time."""


class _Work:
    """State of one plan: parameters, files by window, and the draft."""

    def __init__(
        self, parameters: PlanParameters, options: TimeWindowOptions, draft: PlanDraft
    ) -> None:
        self.parameters = parameters
        self.options = options
        self.draft = draft
        self.blocked: dict[str, str] = {}
        """Path → why a file is not dropped although its rows have expired."""
        self.files = self.by_window(parameters.files.values())
        """All files by window, including files in use."""
        self.newest = next(iter(self.files), None)
        running = [file for job in parameters.running for file in job.files]
        self.busy = frozenset(self.by_window(running))
        """Windows with files of running jobs."""

    def by_window(self, files: Iterable[DataFile]) -> dict[Window, list[DataFile]]:
        """Return files by window, newest window first; files without a time come last."""
        windows: dict[Window, list[DataFile]] = {}
        for file in files:
            windows.setdefault(self._window_of(file), []).append(file)
        return dict(sorted(windows.items(), key=lambda item: (item[0] is None, -(item[0] or 0.0))))

    def _window_of(self, file: DataFile) -> Window:
        if not self.parameters.timed or file.time_max_s is None:
            return None
        return window_start(file.time_max_s, self.options.length_s)

    def named(self, window: Window) -> str:
        """Return a window's description for people."""
        if window is not None:
            newest = "newest " if window == self.newest else ""
            return (
                f"the {newest}{exact_duration(self.options.length_s)} window from {moment(window)}"
            )
        if self.parameters.timed:
            return "the files without a time, which form one window"
        return "the table, which has no time column and therefore forms one window"


# ---------------------------------------------------------------------------------- Jobs of windows


def _plan_window(work: _Work, window: Window, files: list[DataFile]) -> None:
    """Plan the jobs of one window: tiers while it may grow, one file when it is over."""
    draft, busy = work.draft, window in work.busy
    draft.files_counted = len(work.files[window])
    if window is None or not _is_over(work, window):
        where = f", in {work.named(window)}"
        pick_tiers(draft, files, work.options, work.parameters, alone=not busy, where=where)
    elif busy:
        draft.leave(files, f"waits for the running job in {work.named(window)}")
    elif len(files) < 2:
        draft.leave(files, f"is the only usable file in {work.named(window)}")
    elif (ready_s := _late_files_until(work, window, files)) is None:
        _merge_whole(work, window, files)
    else:
        _gather_late_files(work, window, files, ready_s)


def _is_over(work: _Work, window: float) -> bool:
    """Return whether to merge a window into one file: it is not the newest, or its time is over.

    If the arrival times of the files are unknown, more files are expected.
    """
    if window != work.newest:
        return True
    options, files = work.options, work.files[window]
    last_s = max(file.added_at_s for file in files)
    over_s = max(window + options.length_s, last_s + options.late_wait_s)
    if last_s <= 0:
        return False
    if over_s > work.parameters.now_s and len(files) > 1:
        work.draft.ask_again(over_s)
    return over_s <= work.parameters.now_s


def _tags(window: Window) -> Tags:
    return () if window is None else ((WINDOW_TAG, f"{window:.0f}"),)


def _merge_whole(work: _Work, window: float, files: Sequence[DataFile]) -> None:
    """Merge files of a finished window, in steps if they do not fit into one job."""
    draft, width, cap = work.draft, work.options.width, work.parameters.job_bytes_max
    ordered = by_size(files)
    draft.leave(files, f"is merged in a later step of {work.named(window)}")
    for step in forced_merges(ordered, width):
        chosen = smallest_within(step, width, cap)
        if len(chosen) < 2:
            draft.leave(step, f"{too_large(cap)}, in {work.named(window)}")
            continue
        whole = len(chosen) == draft.files_counted
        size = format_bytes(sum(file.size_bytes for file in chosen))
        draft.add_job(
            chosen,
            f"{work.named(window)} is over: {format_count(len(chosen), 'file')} of {size}, "
            f"{'which are all of it' if whole else 'the smallest first'}",
            tags=_tags(window) if whole else (),
        )


def _late_files_until(work: _Work, window: float, files: Sequence[DataFile]) -> float | None:
    """Return until when late files of a merged window wait; None if no files wait."""
    (*merged,) = (file for file in files if _tags(window)[0] in file.tags)
    if len(merged) != 1:
        return None
    late = [file for file in files if file not in merged]
    late_bytes = sum(file.size_bytes for file in late)
    wait_s = patient_wait_s(work.options.late_wait_s, merged[0].size_bytes, late_bytes)
    ready_s = min(file.added_at_s for file in late) + wait_s
    return ready_s if ready_s > work.parameters.now_s else None


def _gather_late_files(
    work: _Work, window: float, files: Sequence[DataFile], ready_s: float
) -> None:
    """Merge late files of similar size with each other; the others wait."""
    draft, tag = work.draft, _tags(window)[0]
    late = [file for file in files if tag not in file.tags]
    where = f", and arrived late in {work.named(window)}"
    options = work.options
    pick_tiers(draft, late, options, work.parameters, alone=False, where=where)
    for file in late:
        draft.add_note(file, f"all of it is merged at {moment(ready_s)}")
    merged = [file for file in files if tag in file.tags]
    came = format_count(len(late), "file")
    draft.leave(
        merged,
        f"is {work.named(window)}; {came} arrived late, and all files are merged at"
        f" {moment(ready_s)}",
    )
    draft.ask_again(ready_s)


def _plan_request(work: _Work) -> None:
    """Merge the files of a request into one file per window."""
    for window, files in work.by_window(work.parameters.candidates).items():
        work.draft.files_counted = len(work.files[window])
        if window in work.busy:
            work.draft.leave(files, f"waits for the running job in {work.named(window)}")
            continue
        whole = len(files) == work.draft.files_counted
        bring_to_one(
            work.draft,
            files,
            work.options.width,
            work.parameters,
            tags=_tags(window) if whole else (),
            where=f" of {work.named(window)}",
        )


# ------------------------------------------------------------------------------------ Expired files


def _expires_at_s(file: DataFile, work: _Work) -> float | None:
    """Return when a file may be dropped; None if never."""
    parameters, ttl_s = work.parameters, work.parameters.settings.ttl_s
    if not parameters.timed or ttl_s is None or file.time_max_s is None:
        return None
    at_s = file.time_max_s + ttl_s + CLOCK_MARGIN_S
    if parameters.keyed:
        # Expired rows hide older rows, and are kept as long as tombstones.
        at_s += work.options.tombstone_retention_s * (1 + RETENTION_SLACK)
    if KEPT in file.tags:
        # A drop has kept rows, for a reason that is not in the metadata.
        return max(at_s, file.added_at_s + work.options.tombstone_compaction_interval_s)
    return at_s


def _has_expired(file: DataFile, work: _Work) -> bool:
    at_s = _expires_at_s(file, work)
    return at_s is not None and at_s <= work.parameters.now_s


def _ask_at_expiry(work: _Work, files: Sequence[DataFile]) -> None:
    """Request a plan when the next file expires, rounded up to `expired_check_s`."""
    step_s = work.options.expired_check_s
    for file in files:
        at_s = _expires_at_s(file, work)
        if at_s is not None:
            work.draft.ask_again(max(at_s, math.ceil(at_s / step_s) * step_s))


def drop_expired(
    parameters: PlanParameters, options: TimeWindowOptions, draft: PlanDraft
) -> tuple[list[DataFile], Mapping[str, str]]:
    """Plan the drop of files whose rows have all expired, for planners without windows.

    Returns:
        All other candidates, and path → why a file is not dropped although its rows have expired.
    """
    work = _Work(parameters, options, draft)
    dropped = _drop_expired(work)
    rest = [file for file in parameters.candidates if file.path not in dropped]
    _ask_at_expiry(work, rest)
    return rest, work.blocked


def _drop_expired(work: _Work) -> set[str]:
    """Plan the drop of files whose rows have all expired; return their paths.

    The size limit of groups does not apply, because only footers are read.
    """
    expired = [file for file in work.parameters.candidates if _has_expired(file, work)]
    taken: set[str] = set()
    for files in _sets_to_drop(expired, work):
        work.draft.files_counted = len(work.parameters.files)
        work.draft.add_job(files, _drop_reason(files, work), tags=(KEPT,), action=JobAction.DROP)
        taken.update(file.path for file in files)
    return taken


def _drop_reason(files: Sequence[DataFile], work: _Work) -> str:
    last_s = max(file.time_max_s or 0.0 for file in files)
    ttl = exact_duration(work.parameters.settings.ttl_s or 0.0)
    size = format_bytes(sum(file.size_bytes for file in files))
    return (
        f"all rows of {format_count(len(files), 'file')} of {size} have expired: the latest is of "
        f"{moment(last_s)}, and ttl is {ttl}"
    )


EXPIRED_MAX = 50
"""Maximum number of expired files per plan of a table with a key; each is compared with all files.
"""


def _sets_to_drop(expired: Sequence[DataFile], work: _Work) -> list[list[DataFile]]:
    """Return sets of files that may be dropped, one set per job.

    Without a key, any files form a set. With a key, a file is dropped together with all files that
    may hold rows that its own rows hide. If these files are too many or not all expired, the file
    is merged like any other.
    """
    most = work.options.max_files
    if not work.parameters.keyed:
        return [[*expired[at : at + most]] for at in range(0, len(expired), most)]
    droppable = {file.path: file for file in expired}
    oldest = sorted(expired, key=lambda file: (file.version_max or b"", file.path))
    closures = [_with_older_rows(file, droppable, work) for file in oldest[:EXPIRED_MAX]]
    sets: list[dict[str, DataFile]] = []
    taken: set[str] = set()
    for closure in sorted(filter(None, closures), key=len, reverse=True):
        if not closure.keys() & taken:
            room = (set_ for set_ in sets if len(set_) + len(closure) <= most)
            into = next(room, None)
            if into is None:
                sets.append(into := {})
            into.update(closure)
            taken.update(closure)
    return [[*set_.values()] for set_ in sets]


def _with_older_rows(
    file: DataFile, droppable: Mapping[str, DataFile], work: _Work
) -> dict[str, DataFile]:
    """Return a file and, transitively, all files that may hold rows that it hides.

    The result is empty if the files do not fit into one job, or one of them has not expired.
    """
    needed, new = {file.path: file}, [file]
    while new:
        covered = new.pop()
        for other in work.parameters.files.values():
            if other.path in needed or not may_hold_older_between(
                other, covered.key_min, covered.key_max, covered.version_max
            ):
                continue
            if other.path not in droppable or len(needed) == work.options.max_files:
                note = f"has expired, and {other.path} may hold older rows of its keys"
                work.blocked[file.path] = note
                return {}
            needed[other.path] = other
            new.append(other)
    return needed
