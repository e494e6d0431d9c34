"""`neve simulate`, `neve record`: simulate days of compaction in seconds, and record arrivals."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from common.errors import RequestError
from common.runtime import SystemClock
from common.units import format_bytes, format_count, format_duration, parse_duration_s
from neve.cli.render import RIGHT, grid, lines
from neve.cli.session import Name, Panel, Session, TerminalConsole, document_text, name_values, verb

if TYPE_CHECKING:
    from neve.simulate.figures import Outcome
    from neve.simulate.specification import Specification

HISTORY_MAX = 10_000
"""Maximum number of attempts that a service returns per call."""
LOOK_S = 2.0
"""Minimum interval between two samples of `neve record`; longer if a sample takes long."""
LOOKED_BACK = 1_000
"""Number of attempts that a sample looks back."""
LOOK_SHARE = 20
"""A sample takes at most this fraction of the time: one part in 20."""


Planners = Annotated[
    list[str] | None,
    typer.Option(
        "--planner", help="Simulate this planner in place of the variants; may be repeated."
    ),
]
Controllers = Annotated[
    list[str] | None,
    typer.Option(
        "--controller", help="Simulate this controller in place of the variants; may be repeated."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help=(
            "Number of variants to simulate in parallel, one process each. Default: the number "
            "of cores; one if few files arrive."
        ),
        min=1,
        max=64,
    ),
]
PlannerSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="With --from: option of the planner, `name=value`; may be repeated."
    ),
]


# --------------------------------------------------------------------------------------- The verbs


@verb("simulate", Panel.SEE, "neve simulate spec.toml --report report.html")
def simulate(
    session: Session,
    specification: Annotated[
        Path | None,
        typer.Argument(help="TOML file with the specification.", metavar="[SPECIFICATION]"),
    ] = None,
    *,
    example: Annotated[
        bool, typer.Option("--example", help="Print a commented specification and exit.")
    ] = False,
    planners: Planners = None,
    controllers: Controllers = None,
    settings: PlannerSettings = None,
    table: Annotated[
        str | None,
        typer.Option("--from", help="Simulate the current state of this table of a service."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(help="Number of days to simulate; overrides the file.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; overrides the file.")] = None,
    workers: Workers = None,
    csv: Annotated[Path | None, typer.Option(help="Write the samples to this CSV file.")] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Write a chart of each measure to this folder, as SVG.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the full report to this file, as one HTML page.")
    ] = None,
) -> None:
    """Simulate days of compaction in seconds, with the decision code of the service.

    The file describes tables, arrivals and a cluster; --example prints one. --from uses the current
    state of a service's table instead and compares other planners with the present one.
    """
    # Imported here so that verbs of the client start without loading the planners.
    from neve.simulate.specification import EXAMPLE

    if example:
        session.write(EXAMPLE)
        return
    if (specification is None) == (table is None):
        raise RequestError(
            "give either a specification or --from; --example prints a specification"
        )
    if table is None and settings:
        raise RequestError("--set needs --from; a specification contains its own settings")
    if table is not None and controllers:
        raise RequestError("--controller needs a specification, which has a [cluster] section")
    named = (planners or [], controllers or [])
    given = name_values(settings or [], "setting")
    source = (
        _of_file(specification, *named)
        if specification is not None
        else _of_service(session, str(table), named[0], given)
    )
    outcomes = _simulated(session, source, workers, days=days, seed=seed)
    _write(outcomes, source.text, csv=csv, plots=plots, report=report)
    session.show(_as_document(outcomes), lambda _: render_outcomes(outcomes))


@verb("record", Panel.SEE, "neve record users --for 10m")
def record(
    session: Session,
    name: Name,
    *,
    length: Annotated[
        str,
        typer.Option(
            "--for", help="Length of the recording, such as 10m or 1h. Ctrl-C ends it earlier."
        ),
    ] = "1h",
) -> None:
    """Record the files that arrive in a table of a running service, for `neve simulate`.

    The output is JSON for a specification: `arrivals = { recorded = "arrivals.json" }`.
    """
    from neve.simulate.recording import ArrivalRecorder, recording_document

    length_s = parse_duration_s(length, "--for")
    if not 1.0 <= length_s <= 30 * 86_400:
        raise RequestError(f"--for is {length}, expected 1s to 30d")
    clock, client, pause = SystemClock(), session.client, Event()
    recorder = ArrivalRecorder(name, clock.now_s())
    end_s = recorder.since_s + length_s
    recorder.note_files(client.files(name))
    look_s = 0.0
    try:
        while (left_s := end_s - clock.now_s()) > 0:
            pause.wait(min(left_s, max(LOOK_S, LOOK_SHARE * look_s)))
            begun_s = clock.now_s()
            recorder.note_history(client.history(name, LOOKED_BACK))
            recorder.note_files(client.files(name))
            look_s = clock.now_s() - begun_s
    except KeyboardInterrupt:
        session.say("recorded until now")
    recording = recorder.recording(clock.now_s())
    session.write(json.dumps(recording_document(recording), indent=1) + "\n")
    session.say(
        f"{format_count(len(recording.arrivals), 'file')} in "
        f"{format_duration(recording.length_s)}, {recording.estimated:,} of them estimated"
    )


# --------------------------------------------------------------------------------------- Reading


@dataclass(frozen=True, slots=True)
class _Source:
    """A document, its human-readable text, and a way to create runs from it."""

    document: dict[str, Any]
    text: str
    folder: Path = Path()
    """Folder of the files that the document names."""
    planners: Sequence[str] = ()
    controllers: Sequence[str] = ()


def _of_file(path: Path, planners: Sequence[str], controllers: Sequence[str]) -> _Source:
    from neve.simulate.specification import read_toml

    text = document_text(path)
    document = read_toml(text, f"file {path}")
    return _Source(document, text, path.parent, planners, controllers)


def _reader(folder: Path) -> Callable[[str], object]:
    """Return a function that reads the JSON files named by a specification in a folder."""

    def read(name: str) -> object:
        path = folder / name
        try:
            return json.loads(document_text(path))
        except (ValueError, RecursionError) as error:
            raise RequestError(f"file {path} is not JSON: {error}") from error

    return read


def _of_service(
    session: Session, table: str, planners: Sequence[str], settings: dict[str, str]
) -> _Source:
    """Return a specification made from a table of a service."""
    from neve.simulate.recording import described

    client = session.client
    document = described(
        client.describe(table),
        client.files(table),
        client.history(table, HISTORY_MAX),
        client.groups(),
        client.compactors(),
        planners=planners,
        settings=settings,
        now_s=SystemClock().now_s(),
    )
    # People do not read the files and arrivals: there are too many.
    tables = [
        {name: value for name, value in table.items() if name not in {"files", "arrivals"}}
        for table in document["table"]
    ]
    return _Source(document, json.dumps({**document, "table": tables}, indent=2))


# ------------------------------------------------------------------------------------ Running


def _simulated(
    session: Session, source: _Source, workers: int | None, **basics: float | None
) -> "list[Outcome]":
    """Run each variant and return the outcomes; progress bars show how far each is."""
    from neve.simulate.side_by_side import simulated, workers_for
    from neve.simulate.specification import read_specifications, with_basics

    document = with_basics(source.document, **basics)
    read = _reader(source.folder)
    runs = read_specifications(document, read, source.planners, source.controllers)
    at_a_time = workers or workers_for(runs)
    if session.as_json or not sys.stderr.isatty():
        return simulated(runs, at_a_time)
    with _bars(runs) as note:
        return simulated(runs, at_a_time, note)


@contextmanager
def _bars(runs: "Sequence[Specification]") -> "Iterator[Callable[[int, float], None]]":
    """Show a progress bar per variant; the yielded function updates one."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=TerminalConsole(stderr=True), transient=True) as bars:
        tasks = [
            bars.add_task(run.variant or run.tables[0].planner_name, total=run.length_s)
            for run in runs
        ]
        yield lambda at, now_s: bars.update(tasks[at], completed=now_s)


def _write(
    outcomes: "Sequence[Outcome]",
    text: str,
    *,
    csv: Path | None,
    plots: Path | None,
    report: Path | None,
) -> None:
    from neve.simulate.report import as_csv, as_page, pictures

    if csv is not None:
        csv.write_text(as_csv(outcomes), "utf-8")
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures(outcomes).items():
            (plots / name).write_text(picture, "utf-8")
    if report is not None:
        report.write_text(as_page(outcomes, text), "utf-8")


def _as_document(outcomes: "Sequence[Outcome]") -> dict[str, Any]:
    from neve.simulate.report import as_document

    return as_document(outcomes)


def render_outcomes(outcomes: "Sequence[Outcome]") -> RenderableType:
    """Render one line per variant within 100 columns, and below it what does not fit."""
    from neve.simulate.report import days_text, drain_text

    table = grid(
        [("VARIANT", ""), *((name, RIGHT) for name in _COLUMNS)],
        [
            (
                outcome.variant[:20],
                f"{outcome.write_amplification:.2f}",
                f"{outcome.space_amplification:.2f}",
                f"{outcome.files_per_tablet:.1f}",
                f"{outcome.files_per_key:.1f}",
                format_bytes(outcome.backlog_bytes),
                format_bytes(outcome.backlog_bytes_max),
                format_duration(outcome.waits.percentile_s(0.99)),
                drain_text(outcome),
                f"{outcome.compactor_hours:,.1f}",
                f"{sum(outcome.jobs.values()):,}",
            )
            for outcome in outcomes
        ],
    )
    first = outcomes[0]
    arrived = (
        f"{days_text(first.length_s)}, {format_count(first.arrived_files, 'file')} of "
        f"{format_bytes(first.arrived_bytes)} arrive"
    )
    late = [outcome.variant for outcome in outcomes if not outcome.at_rest]
    notes = [f"work remains at the end: {', '.join(late)}"] if late else []
    notes += [note for outcome in outcomes for note in _notes_of(outcome)]
    return lines(arrived, "", table, *notes)


def _notes_of(outcome: "Outcome") -> list[str]:
    """Return notes on a run's requests and failures, if it had any."""
    notes: list[str] = []
    if outcome.requests_done or outcome.requests_failed:
        waits, times = outcome.request_waits, outcome.request_times
        notes.append(
            f"{outcome.variant}: {format_count(outcome.requests_done, 'request')} of users "
            f"done, {outcome.requests_failed:,} failed; wait p50 "
            f"{format_duration(waits.percentile_s(0.5))}, p99 "
            f"{format_duration(waits.percentile_s(0.99))}; done after p99 "
            f"{format_duration(times.percentile_s(0.99))}"
        )
    if outcome.failed_attempts or outcome.lost_compactors:
        notes.append(
            f"{outcome.variant}: {format_count(outcome.failed_attempts, 'attempt')} failed, "
            f"{format_count(outcome.lost_compactors, 'compactor')} lost with "
            f"{format_count(outcome.lost_attempts, 'attempt')}; "
            f"{format_bytes(outcome.wasted_bytes)} wasted"
        )
    return notes


_COLUMNS = (
    "WRITE", "SPACE", "FILES", "/KEY", "BACKLOG", "PEAK", "WAIT P99", "DRAIN", "HOURS", "JOBS",
)  # fmt: skip
