"""Results for people and programs: JSON, CSV, pictures, and a self-contained HTML page."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from math import ceil, floor, log2, log10
from typing import Any, TypeVar

from common.units import format_bytes, format_count, format_duration
from neve import api
from neve.simulate.figures import Outcome, Sample, WaitHistogram

# ------------------------------------------------------------------------------------------- Charts
# Line charts over time as SVG, for a page or for separate files.
#
# Colours come from the page (`--line-0`, `--ink`, …), which can be light or dark. Lines also differ
# by their dashes, for readers who cannot distinguish the colours.


WIDTH, HEIGHT = 560, 236
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 14, 34
TICKS_MAX = 5
POINTS_MAX = 400
"""Maximum number of points of a line; longer lines keep the largest point of each part."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 4")
COLOURS = {
    "light": ("#1f6f9f", "#c2571a", "#3d7f3a", "#8a4fa3", "#a8324a", "#6b6b22"),
    "dark": ("#6cb8e6", "#f0a26b", "#8ccf84", "#cda0e6", "#f08ba0", "#d3d36b"),
}

Point = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: hours and values."""

    name: str
    points: Sequence[Point]


def chart(
    title: str, lines: Sequence[Line], form: Callable[[float], str], base: float = 10.0
) -> str:
    """Return a chart as an SVG element.

    Args:
        title: Text alternative of the chart.
        lines: The lines, in the order of their colours.
        form: Formats a value.
        base: Base of the units of values: 1024 for bytes.
    """
    right = max((line.points[-1][0] for line in lines if line.points), default=1.0) or 1.0
    step, top = axis(max((y for line in lines for _, y in line.points), default=0.0), base)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="11">',
        *value_marks(step, top, form),
        *_time_marks(right),
    ]
    for at, line in enumerate(lines):
        path = " ".join(f"{_x(x, right):.1f},{_y(y, top):.1f}" for x, y in _thinned(line.points))
        dash = DASHES[at % len(DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="var(--line-{at % len(DASHES)})" '
            f'stroke-width="1.8" stroke-linejoin="round"{dashed}>'
            f"<title>{escape(line.name)}</title></polyline>"
        )
    return "\n".join([*parts, "</svg>"])


def picture(
    title: str, lines: Sequence[Line], form: Callable[[float], str], base: float = 10.0
) -> str:
    """Return a chart as a complete SVG file, with its title and the names of its lines."""
    inner = chart(title, lines, form, base).partition("\n")[2].removesuffix("</svg>")
    rows = 1 + (len(lines) + 2) // 3
    head = 20 + 16 * rows
    colours = "".join(f"--line-{at}:{colour};" for at, colour in enumerate(COLOURS["light"]))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + head}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        f"<style>:root{{{colours}--ink:#222;--faint:#777;--rule:#ddd}}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="600" fill="#222">{escape(title)}</text>',
    ]
    for at, line in enumerate(lines):
        x, y = 12 + at % 3 * 182, 40 + at // 3 * 16
        parts.append(_key(at, x, y))
        parts.append(f'<text x="{x + 34}" y="{y}" fill="#222">{escape(line.name[:24])}</text>')
    return "\n".join([*parts, f'<g transform="translate(0 {head - 16})">', inner, "</g></svg>\n"])


def key_mark(at: int) -> str:
    """Return a sample of a line, for the legend."""
    return (
        f'<svg viewBox="0 0 28 10" width="28" height="10" aria-hidden="true">{_key(at, 0, 9)}</svg>'
    )


def _key(at: int, x: float, y: float) -> str:
    dash = DASHES[at % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path d="M{x} {y - 4}h28" stroke="var(--line-{at % len(DASHES)})" '
        f'stroke-width="2.4"{dashed}/>'
    )


def value_marks(step: float, top: float, form: Callable[[float], str]) -> list[str]:
    """Return horizontal grid lines with their values."""
    parts: list[str] = []
    for at in range(round(top / step) + 1):
        y = _y(at * step, top)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="var(--rule)"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="var(--faint)">'
            f"{escape(form(at * step))}</text>"
        )
    return parts


def _time_marks(right: float) -> list[str]:
    """Return the marks of the time axis and the name of its unit."""
    step, unit, name = _time_step(right)
    parts = [
        f'<text x="{_x(at * step, right):.1f}" y="{HEIGHT - 14}" text-anchor="middle" '
        f'fill="var(--faint)">{at * step / unit:g}</text>'
        for at in range(int(right / step + 1e-9) + 1)
    ]
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end" fill="var(--faint)">'
        f"{name}</text>"
    )
    return parts


def _time_step(right: float) -> tuple[float, float, str]:
    """Return the hours between two marks, the hours per unit, and the unit's name."""
    for unit, name in ((24.0, "days"), (1.0, "hours"), (1 / 60, "minutes")):
        if right / unit >= 2.5:
            return unit * max(1.0, _round_step(right / unit / 8)), unit, name
    return max(right / 4, 1e-6), 1 / 3600, "seconds"


def axis(value: float, base: float) -> tuple[float, float]:
    """Return the step between two marks and the top of an axis for values up to `value`."""
    if value <= 0:
        return 1.0, 1.0
    unit = base ** floor(log2(value) / log2(base) + 1e-9)
    step = unit * _round_step(value / unit / TICKS_MAX)
    return step, step * max(1, ceil(value / step - 1e-9))


def _round_step(value: float) -> float:
    """Return the smallest number of …, 0.5, 1, 2, 5, 10, … that is not below a value."""
    power = 10.0 ** floor(log10(value) + 1e-9)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _x(value: float, right: float) -> float:
    return LEFT + value / right * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Reduce the points to the highest one of each part, so that no peak is lost."""
    return [max(part, key=lambda point: point[1]) for part in _parts(points)]


def _parts(points: Sequence[T]) -> list[Sequence[T]]:
    """Return points in a row together, so that there are at most `POINTS_MAX` parts."""
    size = max(1, ceil(len(points) / POINTS_MAX))
    return [points[at : at + size] for at in range(0, len(points), size)]


# ------------------------------------------------------------------------------------- For programs


def as_document(outcomes: Sequence[Outcome], *, samples: bool = True) -> dict[str, Any]:
    """Return the results as a JSON document."""
    return {"variants": [_document(outcome, samples=samples) for outcome in outcomes]}


def _document(outcome: Outcome, *, samples: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "variant": outcome.variant,
        "planners": list(outcome.planners),
        "days": outcome.length_s / 86_400,
        "write_amplification": round(outcome.write_amplification, 4),
        "space_amplification": round(outcome.space_amplification, 4),
        "files_per_tablet": round(outcome.files_per_tablet, 3),
        "files_per_key": round(outcome.files_per_key, 3),
        "files_max": outcome.files_max,
        "backlog_bytes": round(outcome.backlog_bytes),
        "backlog_bytes_max": outcome.backlog_bytes_max,
        "wait_s": _percentiles(outcome.waits),
        "drain_s": round(outcome.drain_s, 3),
        "at_rest": outcome.at_rest,
        "compactor_hours": round(outcome.compactor_hours, 3),
        "busy_slot_hours": round(outcome.busy_slot_s / 3600, 3),
        "jobs": dict(sorted(outcome.jobs.items())),
        "plans": outcome.plans,
        "deferred": outcome.deferred,
        "arrived_files": outcome.arrived_files,
        "initial_bytes": outcome.initial_bytes,
        "arrived_bytes": outcome.arrived_bytes,
        "read_bytes": outcome.read_bytes,
        "rewritten_bytes": outcome.rewritten_bytes,
        "dropped_bytes": outcome.dropped_bytes,
        "stored_bytes": outcome.stored_bytes,
        "requests": {
            "done": outcome.requests_done,
            "failed": outcome.requests_failed,
            "wait_s": _percentiles(outcome.request_waits),
            "time_s": _percentiles(outcome.request_times),
        },
        "failures": {
            "failed_attempts": outcome.failed_attempts,
            "lost_compactors": outcome.lost_compactors,
            "lost_attempts": outcome.lost_attempts,
            "wasted_bytes": outcome.wasted_bytes,
        },
    }
    if samples:
        document["samples"] = [_sample(sample) for sample in outcome.samples]
    return document


def as_simulation(outcomes: Sequence[Outcome], begin_s: float) -> api.Simulation:
    """Return the results for the HTTP API: texts of the summary, and the values of all curves.

    Args:
        outcomes: The outcomes, in the order of the variants.
        begin_s: Start of the run, in seconds since 1970.
    """
    curves, columns = curves_of(outcomes), summary_of(outcomes)
    parts = [_parts(outcome.samples) for outcome in outcomes]
    return api.Simulation(
        text=what_text(outcomes),
        columns=tuple(name for name, _, _ in columns),
        meanings=tuple(meaning for _, meaning, _ in columns),
        variants=tuple(
            api.SimulatedVariant(
                name=outcome.variant or ", ".join(outcome.planners),
                figures=tuple(text(outcome) for _, _, text in columns),
                compactor_hours=outcome.compactor_hours,
                at_rest=outcome.at_rest,
                times_s=tuple(round(begin_s + part[0].at_s, 1) for part in own),
                values=tuple(
                    tuple(float(f"{max(map(value, part)):.6g}") for part in own)
                    for _, _, value, _ in curves.values()
                ),
            )
            for outcome, own in zip(outcomes, parts, strict=True)
        ),
        curves=tuple(
            api.SimulatedCurve(name=name, title=title, meaning=meaning, unit=UNITS.get(form, ""))
            for name, (title, meaning, _, form) in curves.items()
        ),
    )


def _percentiles(times: WaitHistogram) -> dict[str, float]:
    return {
        "p50": round(times.percentile_s(0.5), 3),
        "p95": round(times.percentile_s(0.95), 3),
        "p99": round(times.percentile_s(0.99), 3),
        "max": round(times.longest_s, 3),
    }


def _sample(sample: Sample) -> dict[str, Any]:
    plain = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in asdict(sample).items()
    }
    plain["write_amplification"] = round(sample.write_amplification, 4)
    plain["space_amplification"] = round(sample.space_amplification, 4)
    return plain


def as_csv(outcomes: Sequence[Outcome]) -> str:
    """Return all samples as CSV, one per line."""
    text = io.StringIO()
    names = [field.name for field in fields(Sample)]
    names += ["write_amplification", "space_amplification"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["variant", *names])
    for outcome in outcomes:
        for sample in outcome.samples:
            plain = _sample(sample)
            writer.writerow([outcome.variant, *(plain[name] for name in names)])
    return text.getvalue()


# ------------------------------------------------------------------------------------- The pictures


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f} k"
    return f"{value:,.0f}" if value >= 20 or value == int(value) else f"{value:.2g}"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


_Curve = tuple[str, str, Callable[[Sample], float], Callable[[float], str]]
BYTES_BASE = 1024.0
CURVES: Mapping[str, _Curve] = {
    "backlog": (
        "Backlog",
        "Bytes that remain to be rewritten, as measured by the planners' trackers.",
        lambda sample: float(sample.backlog_bytes),
        format_bytes,
    ),
    "files-per-tablet": (
        "Files per tablet",
        "Files that a scan of a whole tablet opens, on average.",
        lambda sample: sample.files_per_tablet,
        _number,
    ),
    "files-per-key": (
        "Files per key",
        "Files of a tablet that may hold one key: the files that a look-up opens.",
        lambda sample: sample.files_per_key,
        _number,
    ),
    "write-amplification": (
        "Write amplification",
        "Bytes written by jobs per byte that has arrived so far.",
        lambda sample: sample.write_amplification,
        _ratio,
    ),
    "space-amplification": (
        "Space amplification",
        "Bytes stored per byte that a reader could see.",
        lambda sample: sample.space_amplification,
        _ratio,
    ),
    "stored": (
        "Stored bytes",
        "Bytes of all files.",
        lambda sample: float(sample.stored_bytes),
        format_bytes,
    ),
    "queued-jobs": (
        "Queued jobs",
        "Jobs that wait for a slot.",
        lambda sample: float(sample.queued_jobs),
        _number,
    ),
    "oldest": (
        "Oldest queued job",
        "How long the oldest queued job has waited.",
        lambda sample: sample.oldest_s,
        format_duration,
    ),
    "compactors": (
        "Compactors",
        "Compactors that are running or starting.",
        lambda sample: float(sample.compactors),
        _number,
    ),
    "running-jobs": (
        "Running jobs",
        "Slots with a job.",
        lambda sample: float(sample.running_jobs),
        _number,
    ),
}
"""Name of a picture → title, description, value of a sample, and formatter of a value."""
MORE_CURVES: Mapping[str, _Curve] = {
    "open-requests": (
        "Requests",
        "Requests of users that are not finished.",
        lambda sample: float(sample.open_requests),
        _number,
    ),
    "wasted": (
        "Wasted bytes",
        "Bytes that failed attempts had read, since the start.",
        lambda sample: float(sample.wasted_bytes),
        format_bytes,
    ),
}
"""Pictures that are shown only if a sample has a non-zero value."""


UNITS: Mapping[Callable[[float], str], str] = {format_bytes: "bytes", format_duration: "seconds"}
"""Formatter of a value → its unit, for programs that format values themselves."""


def curves_of(outcomes: Sequence[Outcome]) -> Mapping[str, _Curve]:
    """Return the curves to draw for some runs."""
    samples = [sample for outcome in outcomes for sample in outcome.samples]
    more = {
        name: curve
        for name, curve in MORE_CURVES.items()
        if any(curve[2](sample) for sample in samples)
    }
    return {**CURVES, **more}


def _base(form: Callable[[float], str]) -> float:
    return BYTES_BASE if form is format_bytes else 10.0


def _lines(outcomes: Sequence[Outcome], value: Callable[[Sample], float]) -> list[Line]:
    return [
        Line(outcome.variant, [(sample.at_s / 3600, value(sample)) for sample in outcome.samples])
        for outcome in outcomes
    ]


def pictures(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return SVG pictures, keyed by file name."""
    return {
        f"{name}.svg": picture(title, _lines(outcomes, value), form, _base(form))
        for name, (title, _, value, form) in curves_of(outcomes).items()
    }


# ----------------------------------------------------------------------------------------- The page


_Column = tuple[str, str, Callable[[Outcome], str]]
SUMMARY: Sequence[_Column] = (
    (
        "write",
        "bytes written by jobs per byte that arrived",
        lambda o: _ratio(o.write_amplification),
    ),
    ("space", "bytes stored per visible byte, mean", lambda o: _ratio(o.space_amplification)),
    ("files/tablet", "mean", lambda o: f"{o.files_per_tablet:.1f}"),
    ("files/key", "mean", lambda o: f"{o.files_per_key:.1f}"),
    ("most files", "that a tablet had", lambda o: f"{o.files_max:,}"),
    ("backlog", "mean", lambda o: short_bytes(o.backlog_bytes)),
    ("peak", "of the backlog", lambda o: short_bytes(o.backlog_bytes_max)),
    ("wait p50", "of jobs until they start", lambda o: format_duration(o.waits.percentile_s(0.5))),
    ("wait p99", "of jobs until they start", lambda o: format_duration(o.waits.percentile_s(0.99))),
    ("drain", "after the last arrival", lambda o: drain_text(o)),
    ("hours", "of compactors, also while they wait", lambda o: f"{o.compactor_hours:,.1f}"),
    ("jobs", "that were done", lambda o: f"{sum(o.jobs.values()):,}"),
)
"""Columns of the summary: name, meaning, and formatter of an outcome."""
REQUEST_COLUMNS: Sequence[_Column] = (
    ("done", "requests of users", lambda o: f"{o.requests_done:,}"),
    ("failed", "requests of users", lambda o: f"{o.requests_failed:,}"),
    ("wait p50", "until the first job starts", lambda o: _time(o.request_waits, 0.5)),
    ("wait p95", "until the first job starts", lambda o: _time(o.request_waits, 0.95)),
    ("wait p99", "until the first job starts", lambda o: _time(o.request_waits, 0.99)),
    ("time p50", "until they are done", lambda o: _time(o.request_times, 0.5)),
    ("time p99", "until they are done", lambda o: _time(o.request_times, 0.99)),
)
FAILURE_COLUMNS: Sequence[_Column] = (
    ("failed attempts", "that died by themselves", lambda o: f"{o.failed_attempts:,}"),
    ("lost compactors", "with all that they ran", lambda o: f"{o.lost_compactors:,}"),
    ("lost attempts", "that ended with their compactor", lambda o: f"{o.lost_attempts:,}"),
    ("wasted", "bytes that failed attempts had read", lambda o: short_bytes(o.wasted_bytes)),
)


def _time(times: WaitHistogram, share: float) -> str:
    return format_duration(times.percentile_s(share))


def short_bytes(size_bytes: float) -> str:
    """Return a size with at most three digits if it is below 1,000 of its unit: `106 MiB`."""
    number, _, unit = format_bytes(size_bytes).partition(" ")
    return f"{float(number):.0f} {unit}" if float(number) >= 100 else f"{number} {unit}"


def days_text(length_s: float) -> str:
    """Return the length of the arrivals in days, as text."""
    days = length_s / 86_400
    return "1 day" if days == 1 else f"{days:.4g} days"


def drain_text(outcome: Outcome) -> str:
    """Return how long a run continued after the arrivals; `>` if work remained."""
    text = format_duration(outcome.drain_s)
    return text if outcome.at_rest else f"> {text}"


def what_text(outcomes: Sequence[Outcome]) -> str:
    """Return what was simulated, as text."""
    first = outcomes[0]
    return (
        f"{format_count(len(outcomes), 'variant')}, {days_text(first.length_s)}, "
        f"{format_count(first.arrived_files, 'file')} of {format_bytes(first.arrived_bytes)} arrive"
    )


def as_page(outcomes: Sequence[Outcome], specification: str) -> str:
    """Return one self-contained HTML page, which loads no other resources.

    Args:
        outcomes: The outcomes, in the order of the variants.
        specification: Text of the specification, shown at the end.
    """
    sections = "".join(_section(*item, outcomes) for item in curves_of(outcomes).items())
    return _PAGE.format(
        style=STYLE,
        what=escape(what_text(outcomes)),
        legend=_legend(outcomes),
        summary=_summary(outcomes),
        kinds=_kinds(outcomes),
        sections=sections,
        specification=escape(specification),
    )


def _legend(outcomes: Sequence[Outcome]) -> str:
    if len(outcomes) < 2:
        return ""
    items = "".join(
        f"<li>{key_mark(at)} {escape(outcome.variant)}</li>" for at, outcome in enumerate(outcomes)
    )
    return f'<ul class="legend" aria-label="Lines of the charts">{items}</ul>'


def summary_of(outcomes: Sequence[Outcome]) -> list[_Column]:
    """Return the columns of a summary; those of requests and failures only if there were any."""
    columns = list(SUMMARY)
    if any(outcome.requests_done or outcome.requests_failed for outcome in outcomes):
        columns += [(f"requests: {name}", meaning, text) for name, meaning, text in REQUEST_COLUMNS]
    if any(outcome.failed_attempts or outcome.lost_compactors for outcome in outcomes):
        columns += FAILURE_COLUMNS
    return columns


def _summary(outcomes: Sequence[Outcome]) -> str:
    tables = [_columns("Results of the variants", SUMMARY, outcomes)]
    if any(outcome.requests_done or outcome.requests_failed for outcome in outcomes):
        tables.append(_columns("Requests of users", REQUEST_COLUMNS, outcomes))
    if any(outcome.failed_attempts or outcome.lost_compactors for outcome in outcomes):
        tables.append(_columns("Failures", FAILURE_COLUMNS, outcomes))
    return "\n".join(tables)


def _columns(
    caption: str,
    columns: Sequence[_Column],
    outcomes: Sequence[Outcome],
) -> str:
    """Return an HTML table with one row per variant."""
    head = "".join(
        f'<th scope="col" title="{escape(meaning)}">{escape(name)}</th>'
        for name, meaning, _ in columns
    )
    rows = "".join(
        f'<tr><th scope="row">{escape(outcome.variant)}</th>'
        + "".join(f"<td>{escape(text(outcome))}</td>" for _, _, text in columns)
        + "</tr>"
        for outcome in outcomes
    )
    return html_table(caption, f'<th scope="col">variant</th>{head}', rows)


def _kinds(outcomes: Sequence[Outcome]) -> str:
    kinds = sorted({kind for outcome in outcomes for kind in outcome.jobs})
    head = "".join(f'<th scope="col">{escape(kind)}</th>' for kind in kinds)
    rows = "".join(
        f'<tr><th scope="row">{escape(outcome.variant)}</th>'
        + "".join(f"<td>{outcome.jobs[kind]:,}</td>" for kind in kinds)
        + "".join(
            f"<td>{escape(short_bytes(size))}</td>"
            for size in (outcome.read_bytes, outcome.rewritten_bytes, outcome.dropped_bytes)
        )
        + "</tr>"
        for outcome in outcomes
    )
    rest = "".join(f'<th scope="col">{name}</th>' for name in ("read", "written", "dropped"))
    return html_table("Jobs and bytes", f'<th scope="col">variant</th>{head}{rest}', rows)


def _section(name: str, curve: _Curve, outcomes: Sequence[Outcome]) -> str:
    title, meaning, value, form = curve
    lines = _lines(outcomes, value)
    drawn = chart(title, lines, form, _base(form))
    return (
        f'<section id="{name}"><h2>{title}</h2><p>{meaning}</p>{drawn}'
        f"<details><summary>Figures of {title.lower()}</summary>{_figures(title, lines, form)}"
        "</details></section>\n"
    )


ROWS_SHOWN = 25


def _figures(title: str, lines: Sequence[Line], form: Callable[[float], str]) -> str:
    """Return a table of a chart's figures, thinned to a readable number of rows."""
    longest = max(lines, key=lambda line: len(line.points)).points
    step = max(1, -(-len(longest) // ROWS_SHOWN))
    head = '<th scope="col">hours</th>' + "".join(
        f'<th scope="col">{escape(line.name)}</th>' for line in lines
    )
    rows = "".join(
        f'<tr><th scope="row">{longest[at][0]:,.2f}</th>'
        + "".join(
            f"<td>{escape(form(line.points[at][1])) if at < len(line.points) else ''}</td>"
            for line in lines
        )
        + "</tr>"
        for at in range(0, len(longest), step)
    )
    return html_table(title, head, rows)


def html_table(caption: str, head: str, rows: str) -> str:
    """Return a table of a page; it scrolls sideways where it is too wide.

    Args:
        caption: Plain text above the table.
        head: HTML of the cells of its head.
        rows: HTML of its rows.
    """
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _variables(theme: str, ink: str, faint: str, rule: str, paper: str) -> str:
    lines = "".join(f"--line-{at}:{colour};" for at, colour in enumerate(COLOURS[theme]))
    return f"{lines}--ink:{ink};--faint:{faint};--rule:{rule};--paper:{paper};--edge:{faint}66"


STYLE = re.sub(
    r"\n\s*",
    "",
    f"""
    :root{{color-scheme:light dark;{_variables("light", "#1c2126", "#5a646e", "#dfe3e7", "#fff")}}}
    @media (prefers-color-scheme:dark){{
    :root{{{_variables("dark", "#e6e9ec", "#a3adb7", "#353c43", "#15191d")}}}}}
    body{{margin:0 auto;max-width:1240px;padding:1.5rem;background:var(--paper);color:var(--ink);
    font:15px/1.5 system-ui,sans-serif}}
    h1{{font-size:1.5rem;margin:0}}h2{{font-size:1.05rem;margin:0}}
    p{{margin:.1rem 0 .5rem;color:var(--faint)}}
    .charts{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));
    gap:1.6rem 2rem;margin-top:1rem}}
    section{{min-width:0}}section>svg{{width:100%;height:auto;display:block}}
    .legend{{list-style:none;display:flex;flex-wrap:wrap;gap:.3rem 1.4rem;padding:.4rem 0;margin:0;
    position:sticky;top:0;background:var(--paper)}}
    .wide{{overflow-x:auto;width:fit-content;max-width:100%;box-sizing:border-box;margin:.8rem 0;
    border:1px solid var(--rule);border-radius:4px;
    background:
    linear-gradient(to left,var(--paper) 35%,transparent) right/3rem 100% no-repeat local,
    linear-gradient(to left,var(--edge),transparent) right/1.1rem 100% no-repeat scroll}}
    table{{border-collapse:separate;border-spacing:0;font-size:.87rem;
    font-variant-numeric:tabular-nums}}
    caption{{text-align:left;font-weight:600;padding:.4rem .6rem .1rem}}
    th,td{{padding:.25rem .45rem;text-align:right;border-top:1px solid var(--rule);
    white-space:nowrap}}
    thead th{{color:var(--faint);font-weight:500;border-top:0;vertical-align:bottom}}
    th:first-child{{text-align:left;position:sticky;left:0;background:var(--paper);
    border-right:1px solid var(--rule)}}
    tbody th{{white-space:normal;min-width:6.5rem;max-width:11rem;overflow-wrap:anywhere}}
    summary{{cursor:pointer;color:var(--faint)}}
    pre{{overflow-x:auto;border:1px solid var(--rule);padding:1rem;border-radius:4px}}
    """,
).strip()

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Simulated compaction</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Simulated compaction</h1>
<p>{what}.</p>
{summary}
{legend}
<div class="charts">
{sections}</div>
{kinds}
<details><summary>Specification</summary><pre>{specification}</pre></details>
</main>
</body>
</html>
"""
