"""`neve control`: readings and decision of the controller, and the share of each class of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import RenderableType

from common.units import format_bytes, format_count, format_duration
from neve import api
from neve.cli.render import RIGHT, facts, grid, lines, shortened, time_text
from neve.cli.session import Every, Panel, Session, Watch, verb

HISTORY_SHOWN = 12
"""Number of recent steps that are printed; `--json` has the last hour."""
HISTORY_COLUMNS = {
    "backlog_bytes": "BACKLOG",
    "shares_system": "SYSTEM SHARES",
    "limit_bytes_s": "MAY MOVE",
    "system_slots": "SLOTS",
    "busy_slots": "BUSY",
    "reader_wait_s": "READERS WAIT",
}
"""Measure → heading."""


@verb("control", Panel.SEE, "neve control --watch")
def control(
    session: Session,
    *,
    watch: Watch = False,
    every: Every = 2.0,
    history: Annotated[
        bool,
        typer.Option("--history", help="Show recent decisions as well; --json has the last hour."),
    ] = False,
) -> None:
    """Show how much compaction runs: readings, decision, reasons, and shares in use.

    With --watch and --json, each sample is one line.
    """
    client = session.client
    if not history:
        session.show_or_watch(client.control, render_control, watch=watch, every_s=every)
        return
    session.show_or_watch(
        lambda: ControlHistory(client.control(), client.series(count=0, groups=False)),
        render_with_history,
        watch=watch,
        every_s=every,
    )


@dataclass(frozen=True, slots=True)
class ControlHistory:
    """The state of the controller, and recorded values of the last hour."""

    control: api.Control
    series: api.Series


def render_control(control: api.Control) -> RenderableType:
    """Render readings and decision of the controller."""
    return lines(facts(_facts(control)), "", _classes(control))


def render_with_history(recent: ControlHistory) -> RenderableType:
    """Render readings and decision of the controller, and recent decisions."""
    return lines(render_control(recent.control), "", _history(recent.series))


def _facts(control: api.Control) -> list[tuple[str, str | None]]:
    slots = f"{control.busy_slots} of {control.living_slots} busy, at most {control.slots_max}"
    waits = [
        f"{shortened(name)} {_seconds(latency_s)}"
        for name, latency_s in control.latencies_s.items()
    ]
    limit = control.latency_limit_s
    heard = ", ".join(waits) or "no reading"
    readers = heard if limit is None else f"{heard}; limit {_seconds(limit)}"
    weights = [f"{name} x {weight:g}" for name, weight in sorted(control.table_weights.items())]
    return [
        ("controller", control.controller or "none"),
        ("backlog", format_bytes(control.backlog_bytes)),
        ("arrives", _rate(control.arrival_bytes_s, "not known")),
        ("rewritten", _rate(control.rewrite_bytes_s, "not known")),
        ("slots", slots),
        ("overlap", _overlap(control)),
        ("garbage", f"{control.garbage_fraction:.1%} of what is stored"),
        ("readers wait", readers),
        ("may move", _rate(control.bytes_s, "no limit")),
        ("system slots", "all" if control.slots is None else str(control.slots)),
        *(("why", reason) for reason in control.reasons),
        *([("table weights", ", ".join(weights))] if weights else []),
        *([("failure", control.failure)] if control.failure else []),
    ]


def _overlap(control: api.Control) -> str:
    files = control.deepest_files
    return f"{format_count(files, 'file')} in the deepest tablet" if files else "no work is waiting"


def _classes(control: api.Control) -> RenderableType:
    return grid(
        [
            ("CLASS", ""),
            ("SHARES", RIGHT),
            ("GRANTED", RIGHT),
            ("USED", RIGHT),
            ("LAST MINUTE", RIGHT),
            ("IN ALL", RIGHT),
        ],
        [
            (
                class_.name,
                f"{class_.shares:,.0f}",
                f"{class_.granted:.1%}",
                f"{class_.used:.1%}",
                format_bytes(class_.used_bytes),
                format_bytes(class_.total_bytes),
            )
            for class_ in control.classes
        ],
    )


def _history(series: api.Series) -> RenderableType:
    values = series.total.values
    rows = [
        (
            time_text(series.start_s + number * series.step_s),
            *(_shown(measure, values[measure][number]) for measure in HISTORY_COLUMNS),
        )
        for number in range(max(0, series.count - HISTORY_SHOWN), series.count)
        if values["backlog_bytes"][number] is not None
    ]
    headings = [(heading, RIGHT) for heading in HISTORY_COLUMNS.values()]
    return grid([("TIME (UTC)", ""), *headings], rows)


def _shown(measure: str, value: float | None) -> str | None:
    if value is None:
        return {"limit_bytes_s": "no limit", "system_slots": "all"}.get(measure)
    if measure == "backlog_bytes":
        return format_bytes(value)
    if measure == "limit_bytes_s":
        return f"{format_bytes(value)}/s"
    return _seconds(value) if measure == "reader_wait_s" else f"{value:,.0f}"


def _rate(bytes_s: float | None, absent: str) -> str:
    return absent if bytes_s is None else f"{format_bytes(bytes_s)}/s"


def _seconds(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 1 else f"{1000 * seconds:.0f} ms"
