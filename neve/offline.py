"""Runs a planner or a backlog tracker on a tablet in a JSON file, without a service.

Pure functions over a document. Every error names the position, the value, and what was expected.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from common.config import checked_groups, parse_group
from common.documents import FieldKind, FieldRule, read_list, read_object
from common.errors import ConfigError, RequestError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Job, JobAction, Kind, Plan, PlannedInterval, TabletPlan
from common.model.outcome import TabletStatistics
from common.model.tablet import PLUS_INFINITY, TabletId
from common.plugins import DEFAULT_PLANNER, TRACKERS, load_planner, load_tracker, request_errors
from common.runtime import SystemClock
from common.spi.controller import PartialOutput, WorkUnderWay
from common.spi.planner import (
    COLD,
    Heat,
    Planner,
    PlanParameters,
    RequestFacts,
    RunningJob,
    with_derived,
)
from common.units import shown
from coordinator.core.planning import checked_jobs, within_space
from coordinator.plugins.planners.chunks import Segment, hidden
from neve.setting_values import read_settings

TIME_MAX_S = 1e18
"""Limit of a time, before or after 1970, because time windows are counted in whole numbers."""
NUMBER = FieldRule(kind=FieldKind.NUMBER)
COUNT = FieldRule(kind=FieldKind.COUNT, least=0)
SIZE = FieldRule(kind=FieldKind.SIZE)
TEXT = FieldRule(kind=FieldKind.TEXT, least=1)
_WHOLE = FieldRule(kind=FieldKind.COUNT)
_FLAG = FieldRule(kind=FieldKind.FLAG)
_RATE = FieldRule(kind=FieldKind.NUMBER, least=0)
_SHARE = FieldRule(kind=FieldKind.NUMBER, least=0, most=1)


def read_time(value: object, where: str) -> float:
    """Return a time in seconds since 1970; it may be negative."""
    time_s: float = NUMBER.read(value, where)
    if abs(time_s) > TIME_MAX_S:
        raise RequestError(f"{where} is {time_s:g}, expected seconds since 1970")
    return time_s


# -------------------------------------------------------------------- The description of one tablet


_FIELDS = frozenset({
    "table", "kind", "files", "chunks", "candidates", "running", "groups", "keyed", "now",
    "compacted", "partial", "heat", "free_bytes", "statistics",
})  # fmt: skip
"""`compacted` and `partial` belong to `neve backlog`, which reads the same document."""
_FILE_COUNTS = {"rows": "rows", "tombstones": "tombstones"}
_FILE_TIMES = {
    "time_min": "time_min_s",
    "time_max": "time_max_s",
    "added_at": "added_at_s",
    "tombstones_since": "tombstones_since_s",
}
_LISTED_NAMES = {
    "size_bytes": "size",
    "added_at_s": "added_at",
    "time_min_s": "time_min",
    "time_max_s": "time_max",
    "live_bytes": "live",
    "min_key": "key_min",
    "max_key": "key_max",
}
"""Field names of `neve table files --json`, and of other systems."""
_LISTED_ONLY = frozenset({"tablet", "schema_id", "job", "request", "measured_at_s"})
"""Fields of that listing that no planner uses."""
_FILE_TAGS = ("level", "run", "window", "segment")
"""Tags that may be given as fields."""
_FILE_KEYS = ("key_min", "key_max", "version_min", "version_max")
_FILE_SWITCHES = ("clean", "open")
_FILE_VERSIONS = ("version", "minor_version", "partitions")
"""Fields that say which files hide others; see `Segment`."""
_FILE_FIELDS = frozenset({
    "path", "size", "live", "tags", *_FILE_TAGS,
    *_FILE_COUNTS, *_FILE_TIMES, *_FILE_KEYS, *_FILE_SWITCHES, *_FILE_VERSIONS,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletDocument:
    """One tablet as described by a user."""

    settings: Mapping[str, Any]
    kind: Kind
    files: Mapping[str, DataFile]
    """Without hidden files, unless a running job has them."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Path → why other files hide it."""
    candidates: tuple[DataFile, ...]
    running: tuple[RunningJob, ...]
    groups: tuple[Group, ...]
    keyed: bool
    now_s: float | None
    """The time of the plan; None if the document has none."""
    heat: Heat = COLD
    free_bytes: int | None = None
    statistics: TabletStatistics | None = None


def read_document(document: object, tablet: str | None = None) -> TabletDocument:
    """Read the tablet that a JSON document describes.

    Args:
        document: The document of `neve plan --files`. If `candidates` is missing or null, every
            file that is neither open nor hidden is a candidate, including files of running jobs. A
            list is read as `files`. `chunks` replaces `files`: each chunk lists the files that have
            rows in it, so that a file may be listed several times.
        tablet: Use only files of this tablet.

    Raises:
        RequestError: Names the position, the value and what was expected.
    """
    if isinstance(document, list):
        document = {"files": document}
    body = read_object(document, "the document", _FIELDS)
    files, hidden_files = _all_files(body, tablet)
    listed = body.get("candidates")
    paths = [*files] if listed is None else read_list(listed, "candidates")
    candidates = _files_of_paths(paths, files, "candidates")
    running = tuple(
        _running(entry, files, f"running[{number}]")
        for number, entry in enumerate(read_list(body.get("running") or [], "running"))
    )
    kept = files.keys() - hidden_files.keys() | {file.path for job in running for file in job.files}
    files = {path: file for path, file in files.items() if path in kept}
    return TabletDocument(
        settings=read_object(body.get("table") or {}, "table"),
        kind=_kind(body.get("kind", Kind.SYSTEM.value), "kind"),
        files=files,
        hidden=hidden_files,
        candidates=tuple(
            file for file in candidates if not (file.open or file.path in hidden_files)
        ),
        running=running,
        groups=read_groups(body.get("groups")),
        keyed=_FLAG.read(body.get("keyed", True), "keyed"),
        now_s=None if body.get("now") is None else read_time(body["now"], "now"),
        heat=_heat(body.get("heat")),
        free_bytes=None
        if body.get("free_bytes") is None
        else SIZE.read(body["free_bytes"], "free_bytes"),
        statistics=_statistics(body.get("statistics"), files),
    )


def _heat(heat: object) -> Heat:
    """Return rates per second; missing rates are 0."""
    body = read_object(heat or {}, "heat", {"scans", "rows"})
    rates = {name: _RATE.read(value, f"heat.{name}") for name, value in body.items()}
    return Heat(scans_s=rates.get("scans", 0.0), rows_s=rates.get("rows", 0.0))


def _statistics(entries: object, files: Mapping[str, DataFile]) -> TabletStatistics | None:
    """Return the results of an analysis in the document; None if there was no analysis."""
    if entries is None:
        return None
    body = read_object(entries, "statistics", {"updated_rows", "changed", "merged", "compared"})
    changed = read_object(body.get("changed") or {}, "statistics.changed")
    shares = {
        name: _SHARE.read(value, f"statistics.changed.{name}") for name, value in changed.items()
    }
    merged = body.get("merged")
    return TabletStatistics(
        tablet_version=0,
        measured_at_s=0.0,
        rows=sum(file.rows for file in files.values()),
        updated_rows=COUNT.read(body.get("updated_rows", 0), "statistics.updated_rows"),
        compared_rows=COUNT.read(body.get("compared", 0), "statistics.compared"),
        changed_shares=tuple(sorted(shares.items())),
        merged_share=None if merged is None else _SHARE.read(merged, "statistics.merged"),
    )


def read_groups(written: object) -> tuple[Group, ...]:
    """Return groups, smallest first; the default group if the value is null.

    Raises:
        RequestError: A field is unknown or missing, a name or size is repeated, a size is not
            positive, two groups have no limit, or the list is empty.
    """
    if written is None:
        return (Group(name="default"),)
    try:
        groups = tuple(
            parse_group(_with_our_names(entry), f"groups[{number}]")
            for number, entry in enumerate(read_list(written, "groups"))
        )
        for group in groups:
            if not group.name[0].isalpha():
                raise RequestError(f"group name {group.name!r} must begin with a letter")
        return checked_groups("offline", groups)
    except ConfigError as error:
        raise RequestError(str(error)) from error


def _with_our_names(entry: object) -> object:
    """Rename Accumulo's `maxSize`, so that its group lists can be pasted."""
    if isinstance(entry, Mapping) and "maxSize" in entry and "max_size" not in entry:
        return {("max_size" if name == "maxSize" else name): entry[name] for name in entry}
    return entry


def _all_files(
    body: Mapping[str, Any], tablet: str | None
) -> tuple[dict[str, DataFile], dict[str, str]]:
    """Return the files of `files` or `chunks` by path, and why some of them are hidden."""
    if "chunks" in body and "files" in body:
        raise RequestError("the document has files and chunks, expected one of them")
    entries = _entries_of_chunks(body) if "chunks" in body else _entries(body, "files")
    files: dict[str, tuple[DataFile, Segment | None]] = {}
    for where, entry in _of_one_tablet(entries, tablet):
        file = _file(entry, where)
        read = (file, _segment(entry, file, where))
        if file.path in files and "files" in body:
            raise RequestError(f"{where}.path {file.path!r} is listed twice")
        if files.setdefault(file.path, read) != read:
            raise RequestError(
                f"{where}.path {file.path!r} is listed with other fields in another chunk, "
                "expected the same fields in each"
            )
    segments = [segment for _, segment in files.values() if segment is not None]
    return {path: file for path, (file, _) in files.items()}, hidden(segments)


def _entries(body: Mapping[str, Any], name: str, where: str = "") -> list[tuple[str, Any]]:
    """Return the entries of a list with their positions."""
    listed = read_list(body.get(name), f"{where}{name}")
    return [(f"{where}{name}[{number}]", entry) for number, entry in enumerate(listed)]


def _entries_of_chunks(body: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the files of all chunks with their positions; a file may be in several chunks."""
    entries: list[tuple[str, Any]] = []
    for where, written in _entries(body, "chunks"):
        chunk = read_object(written, where, {"start", "end", "files"})
        for name in ("start", "end"):
            if chunk.get(name) is not None:
                read_time(chunk[name], f"{where}.{name}")
        entries += _entries(chunk, "files", f"{where}.")
    return entries


def _of_one_tablet(entries: Sequence[tuple[str, Any]], tablet: str | None) -> list[tuple[str, Any]]:
    """Return the files of one tablet with their positions.

    Raises:
        RequestError: The files are of several tablets and no tablet is named, or no file is of the
            named tablet.
    """
    named = {
        str(entry["tablet"])
        for _, entry in entries
        if isinstance(entry, Mapping) and "tablet" in entry
    }
    if tablet is None and len(named) < 2:
        return [*entries]
    names = ", ".join(sorted(named)[:10]) or "none"
    if tablet is None:
        raise RequestError(
            f"files are of {len(named)} tablets, and a plan is of one: name it (--tablet); "
            f"there are: {names}"
        )
    if tablet not in named:
        raise RequestError(f"no file is of tablet {tablet!r}; there are: {names}")
    return [
        (where, entry)
        for where, entry in entries
        if isinstance(entry, Mapping) and entry.get("tablet") == tablet
    ]


def _document_file(entry: object, where: str) -> object:
    """Rename the fields of `neve table files --json` to those of a document."""
    if not isinstance(entry, Mapping):
        return entry
    body = {name: value for name, value in entry.items() if name not in _LISTED_ONLY}
    for listed, name in _LISTED_NAMES.items():
        if listed in body:
            if name in body:
                raise RequestError(f"{where} has {name} and {listed}, expected one of them")
            body[name] = body.pop(listed)
    return body


def _file(entry: object, where: str) -> DataFile:
    body = read_object(_document_file(entry, where), where, _FILE_FIELDS)
    path = TEXT.read(body.get("path"), f"{where}.path")
    facts: dict[str, Any] = {"rows": 0}
    for name, value in body.items():
        if name in _FILE_COUNTS:
            facts[_FILE_COUNTS[name]] = COUNT.read(value, f"{where}.{name}")
        elif name in _FILE_TIMES and value is not None:
            facts[_FILE_TIMES[name]] = read_time(value, f"{where}.{name}")
        elif name in _FILE_KEYS and value is not None:
            facts[name] = _key(value, f"{where}.{name}")
        elif name in _FILE_SWITCHES:
            facts[name] = _FLAG.read(value, f"{where}.{name}")
    if body.get("live") is not None:
        facts["live_bytes"] = SIZE.read(body["live"], f"{where}.live")
    try:
        size_bytes = SIZE.read(body.get("size"), f"{where}.size")
        return DataFile(path=path, size_bytes=size_bytes, tags=_tags(body, where), **facts)
    except ValueError as error:
        raise RequestError(f"{where}: {error}") from error


def _segment(entry: Mapping[str, Any], file: DataFile, where: str) -> Segment | None:
    """Return a file as a segment of whole seconds; None if it has no times.

    Raises:
        RequestError: A version is invalid, or a file with a version has no times.
    """
    given = [name for name in _FILE_VERSIONS if entry.get(name) is not None]
    if file.time_min_s is None or file.time_max_s is None:
        if given:
            raise RequestError(
                f"{where} has {given[0]} and lacks time_min or time_max, expected both: a file "
                "hides others in its range of time"
            )
        return None
    last_s = max(file.time_min_s, file.time_max_s)
    return Segment(
        id=file.path,
        start=file.time_min_s,
        end=max(math.floor(last_s) + 1.0, math.nextafter(last_s, math.inf)),
        size=file.size_bytes,
        **{name: _version(name, entry[name], f"{where}.{name}") for name in given},
    )


def _version(name: str, written: object, where: str) -> Any:
    """Return a version, or the first and the end of a range of partitions."""
    if name != "partitions":
        return COUNT.read(written, where)
    numbers = [COUNT.read(number, where) for number in read_list(written, where)]
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise RequestError(
            f"{where} is {shown(written)}, expected two whole numbers, the first partition and the "
            "one after the last: [0, 2]"
        )
    return (numbers[0], numbers[1])


def _tags(body: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    tags = {name: str(value) for name, value in read_object(body.get("tags") or {}, where).items()}
    for name in _FILE_TAGS:
        if body.get(name) is not None:
            tags[name] = str(COUNT.read(body[name], f"{where}.{name}"))
    return tuple(sorted(tags.items()))


def _key(value: object, where: str) -> bytes:
    """Return bytes that sort like the value among values of the same type."""
    if isinstance(value, str):
        return value.encode()
    try:
        number = _WHOLE.parse(value, where)
    except RequestError as error:
        message = f"{where} is {shown(value)}, expected a text or a whole number of 64 bits"
        raise RequestError(message) from error
    return int(number + (1 << 63)).to_bytes(8, "big")


def _kind(value: object, where: str) -> Kind:
    try:
        return Kind(TEXT.read(value, where))
    except ValueError as error:
        raise RequestError(f"{where} is {shown(value)}, expected SYSTEM or USER") from error


def _running(entry: object, files: Mapping[str, DataFile], where: str) -> RunningJob:
    body = read_object(entry, where, {"kind", "files", "progress", "written"})
    paths = read_list(body.get("files"), f"{where}.files")
    inputs = _files_of_paths(paths, files, f"{where}.files")
    read = read_object(body.get("progress") or {}, f"{where}.progress", {*paths})
    return RunningJob(
        kind=_kind(body.get("kind"), f"{where}.kind"),
        files=inputs,
        read_bytes={
            path: SIZE.read(size, f"{where}.progress.{path}") for path, size in read.items()
        },
        written_bytes=SIZE.read(body.get("written", 0), f"{where}.written"),
    )


def _files_of_paths(
    paths: list[Any], files: Mapping[str, DataFile], where: str
) -> tuple[DataFile, ...]:
    for number, path in enumerate(paths):
        if TEXT.read(path, f"{where}[{number}]") not in files:
            raise RequestError(
                f"{where}[{number}] is {shown(path)}, expected the path of a file in files"
            )
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise RequestError(f"{where} names {twice!r} twice, expected once")
    return tuple(files[path] for path in paths)


# ----------------------------------------------------------------------------------------- The plan


_TABLET = TabletId("offline", PLUS_INFINITY)


def plan_offline(
    document: object,
    planner: str | None = None,
    overrides: Mapping[str, object] | None = None,
    tablet: str | None = None,
) -> dict[str, Any]:
    """Return the jobs of a planner, and why it leaves the other files.

    Args:
        document: The tablet: `table`, `kind`, `files` or `chunks`, `candidates`, `running`,
            `groups`, `keyed` (true), `now` (seconds since the epoch; the current time if omitted),
            `heat`, `free_bytes`, `statistics`. A list of files in the format of `neve table files
            --json` is also accepted.
        planner: Name of the planner; None: `ratio`.
        overrides: Settings that override those in `table`; values may be texts.
        tablet: Use only files of this tablet, if there are files of several tablets.

    Returns:
        `{"jobs": [{"files", "group", "priority", "kind", "reason"}], "left": {path: why}}`. A job
        that does more than merge files into one also has `action`, `outputs`, `cuts` (hex),
        `cuts_at` (seconds), `output_rows_max` or `tags`. A job that depends on others has `after`
        (indexes of jobs in the list). `intervals` is present if the planner uses time intervals.

    Raises:
        RequestError: The document, a setting or the planner's name is invalid.
        PluginError: The planner returns an invalid plan.
    """
    name = planner or DEFAULT_PLANNER
    described = read_document(document, tablet)
    with request_errors(f"planner {name!r} is unknown: "):
        loaded = load_planner(name)
    parameters = _parameters(described, loaded, overrides or {})
    plan = _plan(loaded, parameters)
    checked_plan = TabletPlan(jobs=checked_jobs(name, plan, parameters), left=plan.left)
    checked_plan = within_space(
        checked_plan, parameters.settings, parameters.free_bytes, parameters.now_s
    )
    jobs = checked_plan.jobs
    numbers = {job.id: number for number, job in enumerate(jobs)}
    planned = {path for job in jobs for path in job.inputs}
    left = {path: why for path, why in _left_files(described).items() if path not in planned}
    left.update(checked_plan.left)
    return {
        "jobs": [
            {
                "files": list(job.inputs),
                "group": job.group,
                "priority": job.priority,
                "kind": job.kind.value,
                "reason": job.reason,
                **_beyond_a_merge(job, numbers),
            }
            for job in jobs
        ],
        "left": left,
        **(
            {"intervals": [_interval(interval) for interval in plan.intervals]}
            if plan.intervals
            else {}
        ),
    }


def _interval(interval: PlannedInterval) -> dict[str, Any]:
    """Return an interval as JSON, without the fields of tables in a store."""
    fields, of_tables = asdict(interval), {"table", "tablet", "stored", "changes"}
    return {name: fields[name] for name in fields if name not in of_tables}


def _beyond_a_merge(job: Job, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of a job beyond a plain merge into one file.

    Args:
        job: A job of the plan.
        numbers: Job id → index of the job in the plan.
    """
    row: dict[str, Any] = {}
    if job.action != JobAction.REWRITE:
        row["action"] = job.action
    if job.outputs_expected != 1:
        row["outputs"] = job.outputs_expected
    if job.cuts:
        row["cuts"] = [cut.hex() for cut in job.cuts]
    if job.cuts_at_s:
        row["cuts_at"] = list(job.cuts_at_s)
    if job.output_rows_max:
        row["output_rows_max"] = job.output_rows_max
    if job.output_tags:
        row["tags"] = dict(job.output_tags)
    if job.depends_on:
        row["after"] = [numbers[depend] for depend in job.depends_on]
    return row


def _parameters(
    described: TabletDocument, planner: Planner, overrides: Mapping[str, object]
) -> PlanParameters:
    names = getattr(planner, "option_names", None)
    settings, options = read_settings(described.settings, names, overrides)
    settings = with_derived("offline", planner, options, settings)
    user = described.kind is Kind.USER
    return PlanParameters(
        tablet=_TABLET,
        table_name="offline",
        kind=described.kind,
        settings=settings,
        options=options,
        files=described.files,
        candidates=described.candidates,
        running=described.running,
        groups=described.groups,
        request=RequestFacts(request="offline") if user else None,
        now_s=SystemClock().now_s() if described.now_s is None else described.now_s,
        keyed=described.keyed,
        timed=any(file.time_max_s is not None for file in described.files.values()),
        heat=described.heat,
        free_bytes=described.free_bytes,
        statistics=described.statistics,
    )


def _plan(planner: Planner, parameters: PlanParameters) -> Plan:
    try:
        return planner.plan(parameters)
    except ConfigError as error:
        # In this command, the caller is the operator.
        raise RequestError(str(error)) from error


def _left_files(described: TabletDocument) -> dict[str, str]:
    """Return default reasons for files that are left, such as files in running jobs."""
    left = {**described.hidden, **dict.fromkeys(described.files, "is no candidate")}
    left.update(dict.fromkeys((file.path for file in described.candidates), "no reason was given"))
    for job in described.running:
        left.update(dict.fromkeys((file.path for file in job.files), "is in a running job"))
    left.update(
        (path, "is still being written") for path, file in described.files.items() if file.open
    )
    return left


# ---------------------------------------------------------------------------------- Offline backlog
# Computes the backlog of a tablet in a JSON file (`neve backlog`).
#
# The document is that of `neve plan --files`, with two more fields: `compacted`, the input bytes
# that are already rewritten, and `partial`, the outputs that are being written.


DEFAULT_STRATEGY = "size-tiered"
_PARTIAL_FIELDS = frozenset({"bytes", "time_max", "level"})
_NOW = ("now", "now_s")


def backlog_offline(
    document: object,
    strategy: str | None = None,
    mode: str | None = None,
    overrides: Mapping[str, object] | None = None,
    tablet: str | None = None,
) -> dict[str, Any]:
    """Return how many bytes remain to be rewritten.

    Args:
        document: The tablet, as for `neve.offline.plan_offline`, with `compacted` (path → bytes)
            and `partial` (a list of `bytes`, `time_max`, `level`). The progress of running jobs is
            included.
        strategy: Name of the tracker; None: `size-tiered`.
        mode: `seed` or `interesting`, for trackers with tiers; None: `interesting`.
        overrides: Options and settings that override those in `table`; values may be texts.
        tablet: Use only files of this tablet, if there are files of several tablets.

    Returns:
        `{"backlog": bytes}`, a number of at least 0, possibly fractional.

    Raises:
        RequestError: The document, an option or the strategy's name is invalid.
        PluginError: The tracker cannot be loaded.
    """
    name = strategy or DEFAULT_STRATEGY
    described = read_document(document, tablet)
    body = document if isinstance(document, Mapping) else {}
    with request_errors(f"strategy {name!r} is unknown: "):
        plugin = load_tracker(name)
    option_names = plugin.option_names
    given = dict(overrides or {})
    if mode is not None:
        if "backlog_mode" not in plugin.setting_names:
            raise RequestError(f"strategy {name!r} has no modes; leave --mode out")
        given["backlog_mode"] = mode
    now_s = _now_s(described, given)
    if now_s is not None and "now_s" in option_names:
        given["now_s"] = now_s
    written = _of_strategy(described.settings, option_names)
    settings, options = read_settings(written, option_names, given)
    try:
        tracker = plugin.tracker(settings, options)
    except ConfigError as error:
        # In this command, the caller is the operator.
        raise RequestError(str(error)) from error
    for file in described.files.values():
        tracker.add(file)
    return {"backlog": tracker.backlog_bytes(_work(described, body, now_s or 0.0))}


def _of_strategy(settings: Mapping[str, object], option_names: frozenset[str]) -> dict[str, object]:
    """Drop the options of other strategies, so that one document works for all strategies."""
    others = frozenset[str]().union(*(load_tracker(name).option_names for name in TRACKERS.names()))
    return {
        name: value
        for name, value in settings.items()
        if name not in _NOW and (name in option_names or name not in others)
    }


def _now_s(described: TabletDocument, given: dict[str, object]) -> float | None:
    """Remove the time from the options; fall back to the settings, then to the document."""
    times = [given.pop(name) for name in _NOW if name in given]
    times += [described.settings[name] for name in _NOW if name in described.settings]
    return read_time(times[0], "now") if times else described.now_s


def _work(described: TabletDocument, body: Mapping[Any, Any], now_s: float) -> WorkUnderWay:
    """Return the work in progress from the document's fields and its running jobs."""
    read: dict[str, int] = {}
    outputs: list[PartialOutput] = []
    for job in described.running:
        for path, size_bytes in job.read_bytes.items():
            read[path] = read.get(path, 0) + size_bytes
        if job.written_bytes:
            latest_s = max((file.time_max_s or 0.0 for file in job.files), default=0.0)
            outputs.append(PartialOutput(size_bytes=job.written_bytes, time_max_s=latest_s))
    for path, size in read_object(body.get("compacted") or {}, "compacted").items():
        if path not in described.files and path not in described.hidden:
            raise RequestError(f"compacted names {path!r}, expected the path of a file in files")
        read_bytes = SIZE.read(size, f"compacted.{path}")
        if path in described.files:
            read[path] = read.get(path, 0) + read_bytes
    for number, entry in enumerate(read_list(body.get("partial") or [], "partial")):
        outputs.append(_partial(entry, f"partial[{number}]"))
    return WorkUnderWay(read_bytes=read, outputs=tuple(outputs), now_s=now_s)


def _partial(entry: object, where: str) -> PartialOutput:
    body = read_object(entry, where, _PARTIAL_FIELDS)
    return PartialOutput(
        size_bytes=SIZE.read(body.get("bytes"), f"{where}.bytes"),
        time_max_s=read_time(body.get("time_max") or 0, f"{where}.time_max"),
        level=COUNT.read(body.get("level") or 0, f"{where}.level"),
    )
