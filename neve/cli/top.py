"""`neve top`: the service in a terminal, refreshed until `q`; or one frame with `--once`.

A thread reads the service, so that a slow answer delays no key. Frames are functions of values.
"""

from __future__ import annotations

import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from shutil import get_terminal_size
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from common.errors import RequestError
from common.runtime import SystemClock
from common.units import format_bytes, format_count, format_duration
from neve import api
from neve.cli.render import RIGHT, TabletKeys, quarantine_texts, queue_place, shortened
from neve.cli.session import Panel, Session, TerminalConsole, verb
from neve.client import Client
from neve.client.errors import ForbiddenError, NeveError, UnavailableError

QUEUE_MAX = 200
"""Queued jobs that are read; a terminal shows fewer."""
POINTS_MAX = 720
"""Points of the backlog's plot: the hour that the service has recorded."""
KEY_WAIT_S = 0.2
NODE_CHARS = 17
"""Ids of nodes are longer; their beginnings and ends differ."""

Part = TypeVar("Part")


class TopView(StrEnum):
    """What the lower part of the frame lists."""

    OVERVIEW = "overview"
    TABLES = "tables"
    QUEUE = "queue"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the service answered at one time. None: the caller may not see it."""

    at_s: float
    status: api.Status | None = None
    control: api.Control | None = None
    backlog: tuple[api.Backlog, ...] | None = None
    activity: tuple[api.TableActivity, ...] | None = None
    queue: tuple[api.PlannedJob, ...] | None = None
    jobs: tuple[api.Job, ...] | None = None
    series: api.Series | None = None


def read_service(client: Client, now_s: float) -> Reading:
    """Read the service once.

    Raises:
        NeveError: The service does not answer, or the caller may see nothing of it.
    """
    reading = Reading(
        at_s=now_s,
        status=_allowed(client.status),
        control=_allowed(client.control),
        backlog=_allowed(lambda: tuple(client.backlog())),
        activity=_allowed(lambda: tuple(client.activity())),
        queue=_allowed(lambda: tuple(client.queue(None, QUEUE_MAX))),
        jobs=_allowed(lambda: tuple(client.jobs())),
        series=_allowed(
            lambda: client.series(
                points=POINTS_MAX, measures=["backlog_bytes"], count=0, groups=False
            )
        ),
    )
    if reading == Reading(at_s=now_s):
        client.status()  # Raises the refusal.
    return reading


def _allowed(read: Callable[[], Part]) -> Part | None:
    """Return what `read` returns, or None if the caller may not see it."""
    try:
        return read()
    except ForbiddenError:
        return None


# ------------------------------------------------------------------------------ Sentences and plots


def needs(status: api.Status) -> list[str]:
    """Return what an operator has to attend to, a sentence each, with the command that helps."""
    texts = quarantine_texts(status)
    texts += [*status.errors, *status.store_warnings, *status.warnings]
    texts += [
        f"group {group.group}: {group.scaling.blocked}"
        for group in status.groups
        if group.scaling is not None and group.scaling.blocked
    ]
    return texts


def headline(reading: Reading) -> str:
    """Return the state of the service in one sentence."""
    status = reading.status
    if status is None:
        return "this token may not see the status of the service"
    rows = sum(entry.rows for entry in status.buffered)
    buffered = f"; {format_count(rows, 'row is', 'rows are')} buffered" if rows else ""
    return f"{_work(reading, status)}{buffered}"


def _work(reading: Reading, status: api.Status) -> str:
    wanting = len(needs(status))
    if wanting:
        return f"{format_count(wanting, 'thing needs', 'things need')} you"
    queued = sum(group.queued for group in status.groups)
    running = sum(group.running for group in status.groups)
    if status.tables_unscanned:
        return f"the first scan has {format_count(status.tables_unscanned, 'table')} left"
    if queued or running or reading.backlog:
        tables = len(table_rows(reading))
        return (
            f"{format_count(tables, 'table has', 'tables have')} work: "
            f"{format_count(queued, 'job')} queued, {running:,} running"
        )
    if not status.tables:
        return "there is no table"
    return (
        "the table is at rest"
        if status.tables == 1
        else f"all {status.tables:,} tables are at rest"
    )


BARS, GAP = " ▁▂▃▄▅▆▇█", "┄"
BARS_ASCII, GAP_ASCII = " .:-=+*#@", "~"


def plot(values: Sequence[float | None], width: int, *, plain: bool) -> str:
    """Return values as a line of bars, oldest first; each bar is the largest of its span.

    Args:
        values: Values from 0, oldest first; a span without values is a dash.
        width: Maximum number of bars.
        plain: Whether to use ASCII characters only.
    """
    bars, gap = (BARS_ASCII, GAP_ASCII) if plain else (BARS, GAP)
    most = max((value for value in values if value is not None), default=0.0)
    if width <= 0 or not values:
        return ""
    count = min(width, len(values))
    edges = [len(values) * number // count for number in range(count + 1)]
    spans = [values[start:end] for start, end in pairwise(edges)]
    tops = [max((value for value in span if value is not None), default=None) for span in spans]
    steps = len(bars) - 1
    # A small value is not nothing, so it gets the lowest bar.
    return "".join(
        gap if top is None else bars[0 if top <= 0 else max(1, round(top / most * steps))]
        for top in tops
    )


def progress_bar(fraction: float, width: int, *, plain: bool) -> str:
    """Return a bar of `width` characters, filled to a fraction from 0 to 1."""
    done = round(min(max(fraction, 0.0), 1.0) * width)
    full, empty = ("#", ".") if plain else ("█", "░")
    return full * done + empty * (width - done)


# ----------------------------------------------------------------------------------------- Listings


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A column of a listing; `order` gives a row's sort key, largest first unless `ascends`."""

    heading: str
    text: Callable[[Any], str]
    order: Callable[[Any], Any]
    style: str = ""
    ascends: bool = False
    width: int | None = None
    """Width that is never cut; None: the column shares what is left."""


def _name(heading: str, value: Callable[[Any], str]) -> ListColumn:
    """Return a column of texts, in alphabetical order."""
    return ListColumn(heading, value, value, ascends=True)


def _number(
    heading: str,
    width: int,
    value: Callable[[Any], float | None],
    shown: Callable[[Any], str] = "{:,}".format,
) -> ListColumn:
    """Return a column of numbers, largest first; None is shown as a dash and counts as 0."""

    def text(row: Any) -> str:
        number = value(row)
        return "-" if number is None else shown(number)

    return ListColumn(heading, text, lambda row: value(row) or 0, RIGHT, width=width)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table with its backlog and its jobs."""

    table: str
    backlog: api.Backlog | None = None
    activity: api.TableActivity | None = None

    @property
    def owed_bytes(self) -> int:
        """Bytes that are still to be rewritten."""
        return self.backlog.size_bytes if self.backlog else 0

    @property
    def oldest_s(self) -> float | None:
        """Age of the oldest queued job; None: none is queued."""
        return self.activity.oldest_s if self.activity and self.activity.queued else None

    @property
    def running_bytes(self) -> int | None:
        """Size of the files that running jobs read; None: no job runs."""
        return self.activity.running_bytes if self.activity and self.activity.running else None


def table_rows(reading: Reading) -> list[TableRow]:
    """Return the tables with a backlog or with jobs."""
    rows = {entry.table: TableRow(entry.table, entry) for entry in reading.backlog or ()}
    for entry in reading.activity or ():
        rows[entry.table] = replace(rows.get(entry.table, TableRow(entry.table)), activity=entry)
    return list(rows.values())


TABLE_COLUMNS = (
    _number("BACKLOG", 10, lambda row: row.owed_bytes, format_bytes),
    _name("TABLE", lambda row: row.table or "(all others)"),
    _number("TABLETS", 7, lambda row: row.backlog and row.backlog.tablets),
    _number("QUEUED", 6, lambda row: row.activity and row.activity.queued),
    _number("OLDEST", 9, lambda row: row.oldest_s, format_duration),
    _number("RUNNING", 7, lambda row: row.activity and row.activity.running),
    _number("READS", 10, lambda row: row.running_bytes, format_bytes),
)
QUEUE_COLUMNS = (
    ListColumn(
        "PLACE",
        lambda row: queue_place(row.job),
        lambda row: (row.job.group, not row.job.place, row.job.paused, row.job.place or 0),
        RIGHT,
        ascends=True,
        width=6,
    ),
    _name("TABLE", lambda row: row.job.table),
    _name("TABLET", lambda row: row.keys),
    _name("GROUP", lambda row: row.job.group),
    _number("PRIORITY", 8, lambda row: row.job.priority),
    _number("FILES", 5, lambda row: len(row.job.files)),
    _number("SIZE", 10, lambda row: row.job.input_bytes, format_bytes),
    _number("AGE", 9, lambda row: row.job.age_s, format_duration),
)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A queued job, or a running one with its rate."""

    job: Any
    """An `api.PlannedJob` or an `api.Job`."""
    keys: str
    """Keys of its tablet."""
    now_s: float = 0.0
    bytes_s: float | None = None
    """Bytes read and written per second between the last two readings; None: not known."""
    plain: bool = False

    @property
    def runs_s(self) -> float:
        """Seconds since the job began."""
        since_s: float = self.job.since_s
        return max(self.now_s - since_s, 0.0)

    @property
    def left_s(self) -> float | None:
        """Seconds that the job still takes if it goes on as until now; None: not known."""
        done: float = self.job.fraction
        return self.runs_s * (1 - done) / done if done > 0 else None


RUNNING_COLUMNS = (
    _number("SINCE", 9, lambda row: row.runs_s, format_duration),
    _name("TABLE", lambda row: row.job.table),
    _name("TABLET", lambda row: row.keys),
    _number("SIZE", 10, lambda row: row.job.input_bytes, format_bytes),
    ListColumn(
        "DONE",
        lambda row: f"{progress_bar(row.job.fraction, 6, plain=row.plain)} {row.job.fraction:4.0%}",
        lambda row: row.job.fraction,
        width=11,
    ),
    _number("LEFT", 9, lambda row: row.left_s, format_duration),
    _number("PER S", 10, lambda row: row.bytes_s, format_bytes),
    _name("STATE", lambda row: row.job.state or "assigned"),
)
LISTED = {
    TopView.TABLES: TABLE_COLUMNS,
    TopView.QUEUE: QUEUE_COLUMNS,
    TopView.RUNNING: RUNNING_COLUMNS,
}


# ------------------------------------------------------------------------------------------- Frames


@dataclass(slots=True)
class Board:
    """What is shown: the newest readings, the view, and its order."""

    keys: TabletKeys
    view: TopView = TopView.OVERVIEW
    plain: bool = False
    """Whether the terminal has ASCII characters only."""
    sort: dict[TopView, int] = field(default_factory=dict)
    """TopView → number of the column that its rows are sorted by."""
    reverse: bool = False
    silence: str = ""
    """Why the last reading failed; empty: it did not."""
    now: Reading | None = None
    before: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Take a reading as the newest."""
        self.before, self.now, self.silence = self.now, reading, ""

    def press(self, key: str) -> bool:
        """Act on a key; return whether it ends the display."""
        views = list(TopView)
        if key in ("q", "\x03", "\x04"):
            return True
        if key.isdigit() and 0 < int(key) <= len(views):
            self.view, self.reverse = views[int(key) - 1], False
        elif key == "\t":
            self.view = views[(views.index(self.view) + 1) % len(views)]
            self.reverse = False
        elif key == "s" and self.view in LISTED:
            count = len(LISTED[self.view])
            self.sort[self.view] = (self.sort.get(self.view, 0) + 1) % count
        elif key == "r":
            self.reverse = not self.reverse
        return False

    def frame(self, width: int, height: int, now_s: float) -> RenderableType:
        """Return the whole frame: at most `height` lines of `width` characters."""
        if self.now is None:
            return _line(self.silence or "waiting for the service …")
        head = [*self._head(self.now, width, now_s), Text("")]
        room = max(height - len(head) - 1, 1)
        body, used = self._body(self.now, width, room)
        gap = [Text("")] * max(room - used, 0)
        return Lines(*head, body, *gap, self._foot())

    def _head(self, reading: Reading, width: int, now_s: float) -> list[Text]:
        wanting = reading.status is not None and bool(needs(reading.status))
        lines = [_line(headline(reading), "bold red" if wanting else "bold")]
        if self.silence:
            age = format_duration(max(now_s - reading.at_s, 0.0))
            lines.append(_line(f"no answer, figures are {age} old: {self.silence}", "bold red"))
        control, series = reading.control, reading.series
        past = () if series is None else series.total.values["backlog_bytes"]
        bars = _line(plot(past, width, plain=self.plain), "cyan")
        if control is None:
            return [*lines, bars]
        rates = [f"backlog {format_bytes(control.backlog_bytes)}"]
        if control.arrival_bytes_s is not None:
            rates.append(f"arrives {format_bytes(control.arrival_bytes_s)}/s")
        if control.rewrite_bytes_s is not None:
            rates.append(f"rewritten {format_bytes(control.rewrite_bytes_s)}/s")
        rates.append(f"{control.busy_slots} of {format_count(control.living_slots, 'slot')} busy")
        return [*lines, _line(" · ".join(rates)), bars]

    def _body(self, reading: Reading, width: int, room: int) -> tuple[RenderableType, int]:
        """Return the lower part of the frame, and the number of its lines."""
        if self.view is TopView.OVERVIEW:
            texts = _overview(reading)
            if len(texts) > room:
                texts = [*texts[: room - 1], f"… {len(texts) - room + 1} more lines"]
            return Lines(*(_line(text) for text in texts)), len(texts)
        rows = self._rows(reading)
        if rows is None:
            return _line("this token may not see it"), 1
        if not rows:
            return _line("none"), 1
        columns, number = LISTED[self.view], self.sort.get(self.view, 0)
        rows.sort(key=columns[number].order, reverse=self.reverse == columns[number].ascends)
        shown = rows if len(rows) < room else rows[: max(room - 2, 1)]
        grid = Grid(box=None, padding=(0, 1, 0, 0), pad_edge=False, width=width)
        for position, column in enumerate(columns):
            grid.add_column(
                f"{column.heading}*" if position == number else column.heading,
                justify="right" if column.style == RIGHT else "left",
                no_wrap=True,
                overflow="ellipsis",
                width=column.width,
                ratio=None if column.width else 1,
            )
        for row in shown:
            grid.add_row(*(Text(column.text(row)) for column in columns))
        hidden = len(rows) - len(shown)
        if not hidden:
            return grid, len(shown) + 1
        return Lines(grid, _line(f"… {hidden:,} more")), len(shown) + 2

    def _rows(self, reading: Reading) -> list[Any] | None:
        """Return the rows of the view; None: the caller may not see them."""
        if self.view is TopView.TABLES:
            hidden = reading.backlog is None and reading.activity is None
            return None if hidden else table_rows(reading)
        if self.view is TopView.QUEUE:
            if reading.queue is None:
                return None
            return [JobRow(job, self.keys(job.table, job.tablet)) for job in reading.queue]
        if reading.jobs is None:
            return None
        return [
            JobRow(
                job,
                self.keys(job.table, job.tablet),
                now_s=reading.at_s,
                bytes_s=self._rate(job),
                plain=self.plain,
            )
            for job in reading.jobs
        ]

    def _rate(self, job: api.Job) -> float | None:
        """Return the bytes per second that a job has moved since the last reading."""
        if self.now is None or self.before is None or self.before.jobs is None:
            return None
        moved = {entry.attempt: entry.moved_bytes for entry in self.before.jobs}
        passed_s = self.now.at_s - self.before.at_s
        if job.attempt not in moved or passed_s <= 0:
            return None
        return max(job.moved_bytes - moved[job.attempt], 0) / passed_s

    def _foot(self) -> Text:
        names = [
            f"[{number} {view}]" if view is self.view else f" {number} {view} "
            for number, view in enumerate(TopView, 1)
        ]
        sorts = " · s sort · r reverse" if self.view in LISTED else ""
        return Text(f"{''.join(names)}{sorts} · q quit", style="reverse", no_wrap=True)


def _line(text: str, style: str = "") -> Text:
    """Return one line of text that is cut at the width of the terminal."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _overview(reading: Reading) -> list[str]:
    """Return what needs attention, and the groups and compactors of the service."""
    status = reading.status
    if status is None:
        return ["this token may not see it"]
    wanting = needs(status)
    texts = [*wanting, ""] if wanting else []
    texts.append(
        f"{format_count(status.tables, 'table')}, {format_count(status.tablets_known, 'tablet')}; "
        f"{format_count(status.committed, 'job')} committed, {status.failed:,} failed since the "
        f"coordinator started {format_duration(max(status.now_s - status.started_s, 0.0))} ago"
    )
    texts.append("")
    for group in status.groups:
        oldest = f", the oldest {format_duration(group.oldest_age_s)} ago" if group.queued else ""
        state = " · paused" if group.paused else ""
        texts.append(
            f"group {group.group}: {format_count(group.queued, 'job')} queued{oldest}, "
            f"{group.running:,} running, {format_count(group.compactors, 'compactor')}{state}"
        )
    texts.append("")
    for compactor in status.compactors:
        state = "" if compactor.ready else " · starting"
        state = " · draining" if compactor.draining else state
        texts.append(
            f"compactor {compactor.compactor}: {compactor.busy} of "
            f"{format_count(compactor.slots, 'slot')} busy, heard of "
            f"{format_duration(compactor.heard_ago_s)} ago{state} · "
            f"node {shortened(compactor.node, NODE_CHARS)}"
        )
    return texts


# --------------------------------------------------------------------------------------------- Verb


class ServiceReader:
    """Reads the service again and again in a thread."""

    def __init__(self, client: Client, every_s: float) -> None:
        """Store what to read and how often; `start` begins."""
        self._client, self._every_s = client, every_s
        self._ended = threading.Event()
        self._changed = threading.Lock()
        self._news: list[Reading | NeveError] = []

    def take(self) -> list[Reading | NeveError]:
        """Return what was read since the last call: readings, and errors of failed readings."""
        with self._changed:
            news, self._news = self._news, []
        return news

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._run, name="neve top", daemon=True).start()

    def end(self) -> None:
        """Read no more after the current reading."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            news: Reading | NeveError
            try:
                news = read_service(self._client, SystemClock().now_s())
            except NeveError as error:
                news = error
            with self._changed:
                self._news.append(news)
            self._ended.wait(self._every_s)


@contextmanager
def single_keys(descriptor: int) -> Iterator[None]:
    """Deliver each key of a terminal at once and unseen, until the end of the block."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def show_board(board: Board, client: Client, every_s: float) -> None:
    """Show a board on the terminal until a key ends it.

    Raises:
        NeveError: The first reading failed for another reason than a silent service.
    """
    readings = ServiceReader(client, every_s)
    console = TerminalConsole(highlight=False)
    clock = SystemClock()
    descriptor = sys.stdin.fileno()
    readings.start()
    try:
        with (
            single_keys(descriptor),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                for news in readings.take():
                    if isinstance(news, Reading):
                        board.add(news)
                    elif board.now is None and not isinstance(news, UnavailableError):
                        raise news
                    else:
                        board.silence = str(news)
                width, height = console.size
                live.update(board.frame(width, height, clock.now_s()), refresh=True)
                if select.select([descriptor], [], [], KEY_WAIT_S)[0]:
                    key = sys.stdin.read(1)
                    if not key or board.press(key):
                        return
    finally:
        readings.end()


@verb("top", Panel.SEE, "neve top --once --view queue")
def top(
    session: Session,
    *,
    view: Annotated[TopView, typer.Option(help="The view to begin with.")] = TopView.OVERVIEW,
    every: Annotated[
        float, typer.Option(help="Seconds between refreshes.", min=0.2, max=3600)
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
) -> None:
    """Watch the service: what needs you, tables, queue and running jobs.

    Keys: `1` to `4` or Tab change the view, `s` sorts by the next column, `r` reverses the
    order, `q` quits. --json prints one reading.
    """
    if not (once or session.as_json or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise RequestError("`neve top` needs a terminal; give --once or --json for one frame")
    client = session.client
    if session.as_json:
        session.show(read_service(client, SystemClock().now_s()), str)
        return
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    board = Board(session.keys, view=view, plain=plain)
    if once:
        board.add(read_service(client, SystemClock().now_s()))
        size = get_terminal_size()
        console = TerminalConsole(highlight=False, width=size.columns)
        with console.capture() as capture:
            console.print(board.frame(size.columns, size.lines - 1, SystemClock().now_s()))
        session.write(capture.get())
        return
    show_board(board, client, every)
