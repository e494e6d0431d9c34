"""What if: simulated days of compaction of a table or a specification, its variants side by side.

The API simulates (`POST /v1/simulations`, the machinery of `neve simulate`); this page has its form
and its results.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from common.errors import CompactionError
from common.units import format_count
from neve.console.frame import Series, Variables, View, page, plot

SIMULATE = "POST /v1/simulations"
WHAT_IF = "/console/what-if"
FIELDS = ("table", "planners", "settings", "days", "specification")
DAYS = "7"
CURVES = (
    "backlog",
    "write-amplification",
    "space-amplification",
    "files-per-key",
    "oldest",
    "compactors",
)
"""Curves that are drawn; `neve simulate --report` has all."""
POINTS_MAX = 200
NAMED_TABLES_MAX = 500
"""Tables that the form suggests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantComparison:
    """Simulated variants side by side."""

    text: str
    notes: Sequence[str]
    columns: Sequence[tuple[str, str]]
    """Name and meaning of each result."""
    rows: Sequence[tuple[str, Sequence[str]]]
    """Name of a variant, and its results as text."""
    plots: Sequence[tuple[Markup, str]]
    """Plots with their meanings."""
    unfinished: Sequence[str]
    """Variants whose work was not done at the end."""


def comparison(answer: Mapping[str, Any]) -> VariantComparison:
    """Return what the page shows of an answer of the API."""
    variants = answer["variants"]
    columns = list(zip(answer["columns"], answer["meanings"], strict=True))
    rows = [(variant["name"], list(variant["figures"])) for variant in variants]
    if price := answer["hour_price"]:
        columns.append(
            ("cost", f"of compactors, at {price:g} {answer['currency']} an hour".strip())
        )
        for variant, (_, figures) in zip(variants, rows, strict=True):
            cost = price * variant["compactor_hours"]
            figures.append(f"{cost:,.2f} {answer['currency']}".strip())
    times_s = _times(variants)
    numbers = {curve["name"]: number for number, curve in enumerate(answer["curves"])}
    plots = [
        (
            plot(
                f"what-if-{name}",
                answer["curves"][number]["title"],
                times_s,
                [_line(variant, number, times_s) for variant in variants],
                answer["curves"][number]["unit"],
            ),
            answer["curves"][number]["meaning"],
        )
        for name in CURVES
        if (number := numbers.get(name)) is not None
    ]
    return VariantComparison(
        text=answer["text"],
        notes=answer["notes"],
        columns=columns,
        rows=rows,
        plots=plots,
        unfinished=[variant["name"] for variant in variants if not variant["at_rest"]],
    )


def _times(variants: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the times of the variant that took longest, thinned out."""
    times_s: list[float] = max((variant["times_s"] for variant in variants), key=lambda at: at[-1:])
    return times_s[:: max(1, -(-len(times_s) // POINTS_MAX))]


def _line(variant: Mapping[str, Any], number: int, times_s: Sequence[float]) -> Series:
    """Return a curve of a variant at some times; None after its end."""
    own, values = variant["times_s"], variant["values"][number]
    places = [bisect_right(own, at_s) - 1 for at_s in times_s]
    return Series(
        variant["name"],
        [
            None if place < 0 or at_s > own[-1] else values[place]
            for place, at_s in zip(places, times_s, strict=True)
        ],
    )


def simulation_body(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of the call from the fields of a form: those of a table, or a specification.

    The API checks the values.
    """
    if form.get("kind") != "table":
        return {"specification": form.get("specification", "").replace("\r\n", "\n")}
    settings = (text.partition("=") for text in _words(form.get("settings", "")))
    days = form.get("days", "").strip()
    body: dict[str, Any] = {
        "table": form.get("table", "").strip(),
        "planners": _words(form.get("planners", "")),
        "settings": {name.strip(): value.strip() for name, _, value in settings},
    }
    if days:
        body["days"] = float(days) if days.replace(".", "", 1).isdecimal() else days
    return body


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@page(WHAT_IF, "what_if.html", of=SIMULATE, title="What if", nav="What if", live=False)
async def what_if_page(view: View) -> Variables:
    """Show the form; the address may name a table."""
    return await _what_if(view, {"table": view.text("table")}, None, "")


@page(WHAT_IF, "what_if.html", of=SIMULATE, title="What if", method="POST")
async def what_if_simulated(view: View) -> Variables:
    """Simulate what the form describes, and compare its variants."""
    compared, problem = None, ""
    try:
        compared = comparison(
            await view.calls.change(SIMULATE, {}, body=simulation_body(view.form))
        )
    except CompactionError as error:
        problem = str(error)
    return await _what_if(view, view.form, compared, problem)


async def _what_if(
    view: View, form: Mapping[str, str], compared: VariantComparison | None, problem: str
) -> Variables:
    listed = await view.maybe("GET /v1/tables")
    names = [] if listed is None else [table.name for table in listed["tables"]]
    fields = {name: form.get(name, "") for name in FIELDS}
    fields["days"] = fields["days"] or DAYS
    example = files("neve.simulate").joinpath("templates/example.toml").read_text("utf-8")
    return {
        "compared": compared,
        "problem": problem,
        "fields": {**fields, "specification": fields["specification"] or example},
        "kind": form.get("kind", "table"),
        "tables": names[:NAMED_TABLES_MAX],
        "tables_text": format_count(len(names), "table"),
    }
