"""The view of a tablet: its files over the range of keys, what the planner says, and its story."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.errors import RequestError
from common.model.key_values import KeyType, key_type_of
from common.model.keys import parse_key
from common.units import format_bytes, utc_text
from neve import api
from neve.console.frame import Variables, View, page
from neve.console.pages.figures import LANE, WIDTH, bar_between, ranked
from neve.console.pages.tables import table_crumbs

TABLET = "/console/tables/{table}/tablets/{tablet}"
FILES_DRAWN_MAX = 300
ATTEMPTS_READ = 500
ATTEMPTS_SHOWN = 20
QUEUED_READ = 1000
LEVEL_TAGS = ("level", "window", "run", "segment")
"""Tags by which planners group files, the most telling first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBar:
    """A file over the range of keys, or of times."""

    file: api.File
    x: int
    y: int
    width: int
    state: str
    """`running`: a job has reserved it; `queued`: a queued job takes it; `left`: none does."""
    group: str
    """Its level, window or run; empty: it has none."""
    words: str
    """What the planner says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFigure:
    """The files of a tablet, one lane each."""

    axis: str
    """What the horizontal axis is, for people."""
    start: str
    end: str
    height: int
    bars: tuple[FileBar, ...]
    hidden: int
    """Files that are not drawn."""


def file_group(file: api.File) -> str:
    """Return the level, window, run or segment of a file; empty: it has none."""
    return next((f"{tag} {file.tags[tag]}" for tag in LEVEL_TAGS if tag in file.tags), "")


def file_states(
    explanation: api.Explanation, queued: Sequence[api.PlannedJob]
) -> Mapping[str, tuple[str, str]]:
    """Return path → state and what the planner says, for files that a plan or a job mentions."""
    states = {path: ("left", why) for path, why in explanation.left.items()}
    for job in queued:
        states.update(dict.fromkeys(job.files, ("queued", f"queued: {job.reason}")))
    for attempt, paths in zip(explanation.running, explanation.inputs, strict=False):
        states.update(dict.fromkeys(paths, ("running", f"reserved by attempt {attempt}")))
    return states


def key_types_of(table: api.Table) -> tuple[KeyType, ...]:
    """Return the type families of a table's key columns."""
    types = {column.name: column.type for column in table.schema}
    return tuple(key_type_of(types[name]) for name in table.key)


def _bound(text: str | None, types: Sequence[KeyType]) -> bytes | None:
    """Return the encoded key of a text, for its order; None: unknown."""
    try:
        if text is None or text.startswith("0x"):
            return None if text is None else bytes.fromhex(text[2:])
        return parse_key(text, types)
    except (RequestError, ValueError):
        return None


def file_figure(
    table: api.Table, files: Sequence[api.File], states: Mapping[str, tuple[str, str]]
) -> FileFigure:
    """Return the files of a tablet over their keys; without keys over time, or by size.

    Keys are spaced by rank: overlaps are what counts, and keys have no distance in general.
    """
    drawn = sorted(files, key=lambda file: (-file.size_bytes, file.path))[:FILES_DRAWN_MAX]
    axis, start, end, spans = _spans(table, drawn)
    bars = []
    ordered = sorted(drawn, key=lambda file: (file_group(file), spans[file.path], file.path))
    for lane, file in enumerate(ordered):
        x, width = bar_between(*spans[file.path])
        state, words = states.get(file.path, ("left", ""))
        bars.append(
            FileBar(
                file=file,
                x=x,
                y=lane * LANE,
                width=width,
                state=state,
                group=file_group(file),
                words=words,
            )
        )
    return FileFigure(
        axis=axis,
        start=start,
        end=end,
        height=max(1, len(bars)) * LANE,
        bars=tuple(bars),
        hidden=len(files) - len(bars),
    )


Spans = Mapping[str, tuple[float, float]]
"""Path → left and right end of its bar."""


def _spans(table: api.Table, files: Sequence[api.File]) -> tuple[str, str, str, Spans]:
    """Return the axis, the texts of its ends, and where each file lies."""
    if (by_key := _spans_by_key(table, files)) is not None:
        return by_key
    times = {
        file.path: (file.time_min_s, file.time_max_s)
        for file in files
        if file.time_min_s is not None and file.time_max_s is not None
    }
    if files and len(times) == len(files):
        first = min(low for low, _ in times.values())
        last = max(high for _, high in times.values())
        scale = WIDTH / ((last - first) or 1.0)
        spans = {
            path: ((low - first) * scale, (high - first) * scale)
            for path, (low, high) in times.items()
        }
        return "time", utc_text(first), utc_text(last), spans
    most = max((file.size_bytes for file in files), default=0) or 1
    sizes = {file.path: (0.0, WIDTH * file.size_bytes / most) for file in files}
    return "size", "0 B", format_bytes(most), sizes


def _spans_by_key(
    table: api.Table, files: Sequence[api.File]
) -> tuple[str, str, str, Spans] | None:
    types = key_types_of(table)
    bounds: dict[str, tuple[bytes, bytes]] = {}
    texts: dict[bytes, str] = {}
    for file in files if types else ():
        low, high = _bound(file.key_min, types), _bound(file.key_max, types)
        if low is None or high is None:
            return None
        bounds[file.path] = low, high
        texts |= {low: file.key_min or "", high: file.key_max or ""}
    if not bounds:
        return None
    at = ranked(texts)
    spans = {path: (float(at[low]), float(at[high])) for path, (low, high) in bounds.items()}
    return "keys, spaced by rank", texts[min(texts)], texts[max(texts)], spans


def compact_range(
    table: api.Table, tablet: api.Tablet, files: Sequence[api.File]
) -> dict[str, str]:
    """Return the fields of a request form for a tablet: its partition, or the range of its keys.

    The range begins with the first key of its files: the start of a tablet is the last key of the
    tablet before it, and a range of a request includes its first key.
    """
    if tablet.partition is not None:
        return {"start": tablet.partition, "end": tablet.partition}
    types = key_types_of(table)
    lows = [(low, file.key_min) for file in files if (low := _bound(file.key_min, types))]
    first = min(lows, default=(b"", None))[1] if tablet.start is not None else None
    ends = {"start": first, "end": tablet.end}
    return {name: text for name, text in ends.items() if text not in (None, "", "+inf")}


@page(TABLET, "tablet.html", of="GET /v1/tables/{table}", title="Tablet")
async def tablet_page(view: View) -> Variables:
    """Read a tablet for its page."""
    name, text = view.path["table"], view.path["tablet"]
    table: api.Table = await view.read("GET /v1/tables/{table}", table=name, totals=False)
    tablets = "GET /v1/tables/{table}/tablets"
    page_of_one: api.TabletPage = await view.read(tablets, table=name, tablet=text)
    tablet = next(iter(page_of_one.tablets), None)
    end = text if tablet is None else tablet.tablet
    view.title, view.crumbs = f"Tablet {end}", table_crumbs(name)
    files: api.FilePage | None = None
    if tablet is not None:
        files = await view.maybe("GET /v1/tables/{table}/files", table=name, tablet=end)
    explained = await view.maybe("GET /v1/tables/{table}/explain", table=name, tablet=end)
    explanation = next(iter(explained["tablets"]), None) if explained else None
    story = await view.maybe("GET /v1/tables/{table}/story", table=name, tablet=end)
    queued = await _queued(view, name, end)
    states = {} if explanation is None else file_states(explanation, queued)
    return {
        "table": table,
        "tablet": tablet,
        "end": end,
        "unreadable": page_of_one.unreadable.get(end, ""),
        "explanation": explanation,
        "figure": None if files is None else file_figure(table, files.files, states),
        "story": () if story is None else tuple(reversed(story.entries)),
        "queued": queued,
        "attempts": await _attempts(view, name, end),
        "range": None
        if tablet is None or files is None or not files.files
        else compact_range(table, tablet, files.files),
        "operations": await _operations(view, name, end),
    }


async def _queued(view: View, table: str, tablet: str) -> list[api.PlannedJob]:
    listed = await view.maybe("GET /v1/queue", count=QUEUED_READ)
    jobs: Sequence[api.PlannedJob] = () if listed is None else listed["jobs"]
    own = (job for job in jobs if (job.table, job.tablet) == (table, tablet))
    return [job for job in own if not job.predecessors]


async def _attempts(view: View, table: str, tablet: str) -> list[api.Finished]:
    history = await view.maybe("GET /v1/tables/{table}/history", table=table, count=ATTEMPTS_READ)
    attempts: Sequence[api.Finished] = () if history is None else history["attempts"]
    return [attempt for attempt in attempts if attempt.tablet == tablet][:ATTEMPTS_SHOWN]


async def _operations(view: View, table: str, tablet: str) -> list[api.MaintenanceOperation]:
    """Return the maintenance of a tablet that has work or runs."""
    answer = await view.maybe("GET /v1/tables/{table}/maintenance", table=table, tablet=tablet)
    operations: Sequence[api.MaintenanceOperation] = () if answer is None else answer.operations
    kept = {"runnable", "running", "waiting"}
    return [operation for operation in operations if operation.state in kept]
