"""The report of a table: one HTML page without scripts, from its daily sums.

It says which time it covers, what compaction did, what it cost, what reads gained, and which
settings may be worth a change. Charts and style are those of `neve simulate --report`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from html import escape
from typing import Any

from common.units import format_bytes, format_count, format_duration
from neve import api
from neve.simulate.report import (
    BOTTOM,
    BYTES_BASE,
    DASHES,
    HEIGHT,
    LEFT,
    RIGHT,
    STYLE,
    TOP,
    WIDTH,
    axis,
    html_table,
    value_marks,
)

LABELS_MAX = 8
"""Days that are named below a chart."""
BAR_PART = 0.8
"""Part of a day's width that its bars fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """Everything that a report shows."""

    table: api.Table
    days: api.TableDays
    count: int
    """Days that were asked for."""

    @property
    def every_day(self) -> list[api.TableDay]:
        """One entry for each day that is covered, also for days without attempts."""
        by_name = {day.day: day for day in self.days.days}
        last = datetime.fromtimestamp(self.days.now_s, UTC).date()
        first = last - timedelta(days=self.count - 1)
        if self.days.since_s:
            first = max(first, datetime.fromtimestamp(self.days.since_s, UTC).date())
        names = [(first + timedelta(days=at)).isoformat() for at in range((last - first).days + 1)]
        return [by_name.get(name, api.TableDay(day=name)) for name in names]

    def sum(self, measure: str) -> Any:
        """Return the sum of a measure over the days."""
        return sum(getattr(day, measure) for day in self.days.days)


# --------------------------------------------------------------------------------------- Sentences


def span_text(facts: ReportFacts) -> str:
    """Return which time a report covers, and why it is shorter than what was asked for."""
    days = facts.every_day
    until = datetime.fromtimestamp(facts.days.now_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if not facts.days.since_s:
        return f"No attempt of this table has ended so far. Written {until}."
    text = f"{days[0].day} to {days[-1].day}, {format_count(len(days), 'day')}"
    if len(days) < facts.count:
        since = datetime.fromtimestamp(facts.days.since_s, UTC).strftime("%Y-%m-%d %H:%M")
        text += f" of {facts.count}: the first attempt that is counted ended at {since}"
    return f"{text}. Days are those of UTC. Written {until}."


def money(facts: ReportFacts, slot_s: float) -> str | None:
    """Return the price of time of slots, or None if no price is set.

    A slot costs its part of a compactor, also while the other slots are idle.
    """
    if not facts.days.hour_price:
        return None
    hours = slot_s / 3600 / facts.days.slots
    return f"{facts.days.hour_price * hours:,.2f} {facts.days.currency}".strip()


def did(facts: ReportFacts) -> list[tuple[str, str]]:
    """Return what compaction did."""
    rows_in, dropped = facts.sum("rows_in"), facts.sum("rows_dropped")
    share = f" ({dropped / rows_in:.1%})" if rows_in else ""
    return [
        ("jobs", f"{facts.sum('jobs'):,}"),
        ("files", f"{facts.sum('files_in'):,} became {facts.sum('files_out'):,}"),
        ("bytes read", format_bytes(facts.sum("bytes_in"))),
        ("bytes written", format_bytes(facts.sum("bytes_out"))),
        ("rows dropped", f"{dropped:,}{share}"),
        ("failed attempts", f"{facts.sum('failed'):,}"),
        ("other attempts without a commit", f"{facts.sum('released'):,}"),
    ]


def cost(facts: ReportFacts) -> list[tuple[str, str]]:
    """Return what compaction cost."""
    used_s, wasted_s = facts.sum("compactor_s"), facts.sum("wasted_s")
    rows = [
        ("time of committed jobs", _hours(used_s)),
        ("time of other attempts", _hours(wasted_s)),
    ]
    price = money(facts, used_s + wasted_s)
    if price is not None:
        hour = f"{facts.days.hour_price:g} {facts.days.currency}".strip()
        rows.append((f"at {hour} per compactor-hour", price))
    if facts.table.size_bytes:
        times = facts.sum("bytes_out") / facts.table.size_bytes
        rows.append(("bytes written per stored byte", f"{times:.2f}"))
    return rows


def gained(facts: ReportFacts) -> list[tuple[str, str]]:
    """Return what readers gained."""
    files, saved = facts.table.files or 0, facts.sum("files_in") - facts.sum("files_out")
    rows = [
        ("files now", f"{files:,}"),
        ("files without these jobs", f"{files + saved:,}"),
    ]
    if tablets := facts.table.tablets:
        rows.append(("files per tablet now", f"{files / tablets:,.1f}"))
        rows.append(("files per tablet without these jobs", f"{(files + saved) / tablets:,.1f}"))
    if measured := facts.sum("measured_jobs"):
        fewer = facts.sum("files_saved") / measured
        rows.append(("files that a read of one key opens fewer, per rewrite", f"{fewer:,.1f}"))
    freed = facts.sum("bytes_in") - facts.sum("bytes_out")
    rows.append(("bytes freed", format_bytes(max(freed, 0))))
    return rows


def _hours(seconds: float) -> str:
    if not seconds:
        return "0"
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else format_duration(seconds)


# ------------------------------------------------------------------------------------------ Advice


FAILED_SHARE, MANY_JOBS = 0.1, 20
FULL_SHARE = 0.9
REWRITES_A_DAY = 1.0
SMALL_JOB_BYTES = 1024**2
JOBS_A_DAY = 1000


def advice(facts: ReportFacts) -> Iterator[str]:
    """Yield settings that may be worth a change, each with the figures that suggest it."""
    settings, jobs = facts.table.settings, facts.sum("jobs")
    days = max(1, len(facts.every_day))
    attempts = jobs + facts.sum("failed")
    if attempts >= MANY_JOBS and facts.sum("failed") > FAILED_SHARE * attempts:
        yield (
            f"{facts.sum('failed') / attempts:.0%} of the attempts failed: "
            f"`neve history {facts.table.name}` shows the causes. If memory is one of them, raise"
            " `task_memory` of the group."
        )
    if jobs < MANY_JOBS:
        return
    inputs, size_bytes = facts.sum("files_in") / jobs, facts.sum("bytes_in") / jobs
    most = settings.get("max_files")
    if isinstance(most, int) and inputs > FULL_SHARE * most:
        yield (
            f"A job read {inputs:.1f} files on average, close to `max_files` = {most}: with a"
            " larger value, fewer jobs rewrite the same files."
        )
    if jobs / days > JOBS_A_DAY and size_bytes < SMALL_JOB_BYTES:
        yield (
            f"{jobs / days:,.0f} jobs a day read {format_bytes(size_bytes)} each: many tiny files"
            " arrive. Buffer rows (`neve append --buffered`, `client.writer()`), or write less"
            " often."
        )
    stored = facts.table.size_bytes or 0
    times = facts.sum("bytes_out") / days / stored if stored else 0.0
    ratio = settings.get("ratio")
    if times > REWRITES_A_DAY and isinstance(ratio, int | float):
        yield (
            f"Jobs wrote {times:.1f} times the size of the table each day. A larger `ratio` than"
            f" {ratio:g} merges less often, and reads open more files: `neve simulate --from"
            f" {facts.table.name}` compares both."
        )
    target, outputs = settings.get("target_bytes"), facts.sum("files_out")
    mean_bytes = facts.sum("bytes_out") / outputs if outputs else 0
    if isinstance(target, int) and outputs and mean_bytes * 8 < target and stored > 8 * target:
        yield (
            f"Outputs had {format_bytes(mean_bytes)} on average, an eighth of `target_bytes` ="
            f" {format_bytes(target)} or less: the table has many small tablets. Merge tablets, or"
            " lower `target_bytes`."
        )


# ------------------------------------------------------------------------------------------ Charts


@dataclass(frozen=True, slots=True)
class DayChart:
    """A chart with bars for each day."""

    title: str
    meaning: str
    bars: Mapping[str, Callable[[api.TableDay], float]]
    """Name of a bar → its value."""
    form: Callable[[float], str]
    base: float = 10.0


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


CHARTS = (
    DayChart(
        "Bytes",
        "What jobs read and wrote.",
        {"read": lambda day: day.bytes_in, "written": lambda day: day.bytes_out},
        format_bytes,
        BYTES_BASE,
    ),
    DayChart(
        "Files",
        "Inputs of jobs, and the files that replaced them.",
        {"inputs": lambda day: day.files_in, "outputs": lambda day: day.files_out},
        _count,
    ),
    DayChart(
        "Time",
        "Hours of jobs that committed, and of attempts that did not.",
        {
            "committed": lambda day: day.compactor_s / 3600,
            "not committed": lambda day: day.wasted_s / 3600,
        },
        lambda value: f"{value:.3g} h",
    ),
    DayChart(
        "Rows dropped",
        "Rows that were replaced, deleted or expired.",
        {"rows": lambda day: day.rows_dropped},
        _count,
    ),
)


def day_bars(drawn: DayChart, days: Sequence[api.TableDay]) -> str:
    """Return a chart as an SVG element; its title is its text alternative."""
    values = [[value(day) for value in drawn.bars.values()] for day in days]
    step, top = axis(max((max(of_day) for of_day in values), default=0.0), drawn.base)
    width = (WIDTH - LEFT - RIGHT) / max(1, len(days))
    bar_width = width * BAR_PART / len(drawn.bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(drawn.title)} by day" font-family="system-ui, sans-serif" '
        'font-size="11">',
        *value_marks(step, top, drawn.form),
    ]
    for at, (day, of_day) in enumerate(zip(days, values, strict=True)):
        for number, (name, value) in enumerate(zip(drawn.bars, of_day, strict=True)):
            tall = value / top * (HEIGHT - TOP - BOTTOM)
            x = LEFT + at * width + (1 - BAR_PART) / 2 * width + number * bar_width
            parts.append(
                f'<rect x="{x:.1f}" y="{HEIGHT - BOTTOM - tall:.1f}" width="{bar_width:.1f}" '
                f'height="{tall:.1f}" fill="var(--line-{number % len(DASHES)})">'
                f"<title>{day.day} {escape(name)}: {escape(drawn.form(value))}</title></rect>"
            )
    parts += _day_labels(days, width)
    return "\n".join([*parts, "</svg>"])


def _day_labels(days: Sequence[api.TableDay], width: float) -> Iterator[str]:
    every = -(-len(days) // LABELS_MAX)
    for at, day in enumerate(days):
        if at % every == 0:
            label = date.fromisoformat(day.day).strftime("%d %b").lstrip("0")
            yield (
                f'<text x="{LEFT + (at + 0.5) * width:.1f}" y="{HEIGHT - 14}" '
                f'text-anchor="middle" fill="var(--faint)">{label}</text>'
            )


# -------------------------------------------------------------------------------------------- Page


def as_page(facts: ReportFacts) -> str:
    """Return the report as one self-contained HTML page, which loads no other resources."""
    days = facts.every_day
    tips = "".join(f"<li>{_with_code(text)}</li>" for text in advice(facts))
    enough = facts.sum("jobs") >= MANY_JOBS
    nothing = "None by these figures." if enough else "Too few jobs to say."
    sections = "".join(
        f"<section><h2>{escape(drawn.title)}</h2><p>{escape(drawn.meaning)}"
        f"{_legend(drawn)}</p>{day_bars(drawn, days)}</section>\n"
        for drawn in CHARTS
    )
    return _PAGE.format(
        style=STYLE + MORE_STYLE,
        table=escape(facts.table.name),
        span=escape(span_text(facts)),
        did=_facts("What compaction did", did(facts)),
        cost=_facts("What it cost", cost(facts)),
        gained=_facts("What reads gained", gained(facts)),
        advice=f"<ul>{tips}</ul>" if tips else f"<p>{nothing}</p>",
        sections=sections if facts.days.since_s else "",
        figures=_figures(days) if facts.days.since_s else "",
    )


def _legend(drawn: DayChart) -> str:
    if len(drawn.bars) < 2:
        return ""
    return "".join(
        f' <span class="key">{_swatch(number)} {escape(name)}</span>'
        for number, name in enumerate(drawn.bars)
    )


def _swatch(number: int) -> str:
    colour = f"var(--line-{number % len(DASHES)})"
    return (
        '<svg viewBox="0 0 10 10" width="11" height="11" aria-hidden="true">'
        f'<rect width="10" height="10" fill="{colour}"/></svg>'
    )


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> str:
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>'
        for name, text in rows
    )
    head = '<th scope="col">measure</th><th scope="col">value</th>'
    return html_table(title, head, lines)


def _figures(days: Sequence[api.TableDay]) -> str:
    columns: Sequence[tuple[str, Callable[[api.TableDay], str]]] = (
        ("jobs", lambda day: f"{day.jobs:,}"),
        ("inputs", lambda day: f"{day.files_in:,}"),
        ("outputs", lambda day: f"{day.files_out:,}"),
        ("read", lambda day: format_bytes(day.bytes_in)),
        ("written", lambda day: format_bytes(day.bytes_out)),
        ("rows dropped", lambda day: f"{day.rows_dropped:,}"),
        ("time", lambda day: _hours(day.compactor_s)),
        ("failed", lambda day: f"{day.failed:,}"),
    )
    head = '<th scope="col">day</th>' + "".join(
        f'<th scope="col">{name}</th>' for name, _ in columns
    )
    rows = "".join(
        f'<tr><th scope="row">{day.day}</th>'
        + "".join(f"<td>{escape(text(day))}</td>" for _, text in columns)
        + "</tr>"
        for day in reversed(days)
    )
    return html_table("Sums of each day", head, rows)


def _with_code(text: str) -> str:
    """Return a sentence as HTML; what stands between backquotes is code."""
    parts = escape(text).split("`")
    return "".join(
        f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts)
    )


MORE_STYLE = (
    "main>h2{margin:1.3rem 0 .2rem}"
    ".facts{display:flex;flex-wrap:wrap;gap:0 1.6rem;align-items:flex-start}"
    ".key{margin-left:.9rem;white-space:nowrap}.key svg{vertical-align:-.05em}"
    "code{font-size:.92em}li{margin:.25rem 0}tbody th{max-width:17rem}"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Compaction of {table}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Compaction of {table}</h1>
<p>{span}</p>
<div class="facts">
{did}
{cost}
{gained}
</div>
<h2>Settings that may be worth a change</h2>
{advice}
<div class="charts">
{sections}</div>
{figures}
</main>
</body>
</html>
"""
