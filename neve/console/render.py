"""Templates: filters for sizes, times and ages, plots, pictures, and static files by digest."""

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from common.units import format_bytes, format_count, format_duration
from neve.console.frame import address_of

STATIC = "/console/static"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POINTS_MAX = 2000
"""Points of a plot; more are thinned out."""
NONE = Markup('<span class="none">-</span>')
"""What stands for a missing value."""


# ------------------------------------------------------------------------------------ Static files


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as browsers get it. Its address has its digest, so it may be kept for ever."""

    kind: str
    body: bytes
    zipped: bytes
    """The body, compressed with gzip."""


@cache
def _addresses() -> tuple[Mapping[str, str], Mapping[str, StaticFile]]:
    """Return name → address, and address → file, of all static files."""
    addresses, bodies = {}, {}
    for entry in sorted(files("neve.console").joinpath("static").iterdir(), key=lambda e: e.name):
        name = PurePosixPath(entry.name)
        if name.suffix not in KINDS:
            continue  # Licences are for people who read the package.
        body = entry.read_bytes()
        digest = hashlib.sha256(body).hexdigest()[:12]
        address = f"{STATIC}/{digest}/{entry.name}"
        addresses[entry.name] = address
        bodies[address] = StaticFile(KINDS[name.suffix], body, gzip.compress(body, 9, mtime=0))
    return addresses, bodies


def asset(name: str) -> str:
    """Return the address of a static file, by its name."""
    return _addresses()[0][name]


def static_file(address: str) -> StaticFile | None:
    """Return the static file at an address, or None."""
    return _addresses()[1].get(address)


# ----------------------------------------------------------------------------------------- Filters


def as_bytes(size: float | None) -> str | Markup:
    """Return a size as text: `1.5 MiB`."""
    return NONE if size is None else format_bytes(size)


def as_rate(size: float | None) -> str | Markup:
    """Return bytes per second as text: `1.5 MiB/s`."""
    return NONE if size is None else f"{format_bytes(size)}/s"


def as_count(number: float | None, noun: str = "", plural: str = "") -> str | Markup:
    """Return a number with thousands separated, and its noun if one is given: `1,200 files`."""
    if number is None:
        return NONE
    if noun:
        return format_count(int(number), noun, plural)
    whole = isinstance(number, int) or float(number).is_integer()
    return f"{int(number):,}" if whole else f"{number:,.1f}"


def as_share(fraction: float | None) -> str | Markup:
    """Return a fraction as text: `12 %`."""
    if fraction is None:
        return NONE
    percent = fraction * 100
    return f"{percent:.1f} %" if 0 < percent < 10 else f"{percent:.0f} %"


def as_age(seconds: float | None) -> str | Markup:
    """Return a duration as text: `4 m 05 s`."""
    return NONE if seconds is None else format_duration(max(seconds, 0.0))


def as_time(at_s: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> Markup:
    """Return a time in UTC; the browser adds the viewer's zone."""
    if at_s is None:
        return NONE
    try:
        at = datetime.fromtimestamp(at_s, UTC)
    except (OverflowError, OSError, ValueError):
        return Markup(f"second {at_s:.0f}")
    return Markup('<time datetime="{}">{} UTC</time>').format(
        at.strftime("%Y-%m-%dT%H:%M:%SZ"), at.strftime(form)
    )


def as_clock(at_s: float) -> str:
    """Return the time of day in UTC: `14:05`."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M")


def short_id(text: str, length: int = 10) -> Markup:
    """Return an id shortened to its first characters, with the whole id as tooltip."""
    shown = text if len(text) <= length + 1 else f"{text[:length]}…"
    return Markup('<code title="{}">{}</code>').format(text, shown)


def href(pattern: str, query: Mapping[str, str] | None = None, **path: str) -> str:
    """Return an address from a pattern: `href("/console/tables/{table}", table=name)`."""
    return address_of(pattern, path, query)


# --------------------------------------------------------------------------------- Plots, pictures


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot. A value None is a gap."""

    label: str
    values: Sequence[float | None]


UNITS = {
    "bytes": as_bytes,
    "bytes/s": as_rate,
    "share": as_share,
    "seconds": as_age,
    "": as_count,
}
"""Unit of a plot → how a value of it is written."""


def plot(
    id_: str, title: str, times_s: Sequence[float], series: Sequence[Series], unit: str = ""
) -> Markup:
    """Return a plot of values over time: a figure with its data as JSON, and its words.

    Args:
        id_: Id of the figure, unique in the page.
        title: Caption.
        times_s: Ascending times, in seconds since the epoch.
        series: Lines; each has one value per time.
        unit: One of `UNITS`.
    """
    step = max(1, -(-len(times_s) // POINTS_MAX))
    data = {
        "unit": unit,
        "x": _short_times([round(at_s, 1) for at_s in times_s[::step]]),
        "series": [
            {"label": line.label, "y": [_short(value) for value in line.values[::step]]}
            for line in series
        ],
    }
    words = " ".join(_in_words(line, unit, len(series) > 1) for line in series)
    return Markup(
        '<figure class="plot" id="{id}"><figcaption><b>{title}</b> <span>{words}</span>'
        '</figcaption><neve-plot role="img" aria-label="{title}: {words}" data="{data}">'
        "</neve-plot></figure>"
    ).format(id=id_, title=title, words=words, data=json.dumps(data, separators=(",", ":")))


def _short_times(times_s: Sequence[float]) -> Sequence[float] | Mapping[str, float]:
    """Return times, or the first one, the step and the number of times that are evenly spaced."""
    steps = {round(after - before, 1) for before, after in pairwise(times_s)}
    if len(steps) != 1:
        return times_s
    return {"start": times_s[0], "step": steps.pop(), "count": len(times_s)}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _in_words(line: Series, unit: str, is_named: bool) -> str:
    """Return the last, lowest and highest value of a line in words."""
    name = f"{line.label}: " if is_named else ""
    present = [value for value in line.values if value is not None]
    if not present:
        return f"{name}no data."
    write = UNITS[unit]
    last, low, high = line.values[-1], write(min(present)), write(max(present))
    now = "unknown" if last is None else write(last)
    return f"{name}{now}." if low == high == now else f"{name}{now}, {low} to {high}."


def meter(fraction: float | None, label: str) -> Markup:
    """Return a bar that is filled to a fraction, with its share as text."""
    if fraction is None:
        return NONE
    return Markup('<span class="meter">{}<span>{}</span></span>').format(
        svg_bar(min(max(fraction, 0.0), 1.0), label), as_share(fraction)
    )


def svg_bar(fraction: float, label: str) -> Markup:
    """Return a small horizontal bar as inline SVG."""
    return Markup(
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{}: {}">'
        '<rect class="track" width="100" height="8"/>'
        '<rect class="fill" width="{:.1f}" height="8"/></svg>'
    ).format(label, as_share(fraction), fraction * 100)


def svg(width: float, height: float, label: str, body: Markup, kind: str = "") -> Markup:
    """Return an inline SVG that scales with its container.

    Args:
        width: Width of the view box.
        height: Height of the view box.
        label: Text alternative of the picture.
        body: Elements, escaped. Colours come from classes: the page allows no style attributes.
        kind: Class of the element.
    """
    return Markup(
        '<svg class="{}" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>'
    ).format(kind, width, height, label, body)


# ------------------------------------------------------------------------------------ Environment


@cache
def environment() -> Environment:
    """Return the environment of the templates: texts are escaped, a missing name is an error."""
    made = Environment(
        loader=PackageLoader("neve.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "bytes": as_bytes,
        "rate": as_rate,
        "count": as_count,
        "share": as_share,
        "age": as_age,
        "time": as_time,
        "short": short_id,
    }
    made.globals |= {
        "asset": asset,
        "href": href,
        "plot": plot,
        "meter": meter,
        "svg_bar": svg_bar,
        "NONE": NONE,
        "clock": as_clock,
    }
    # A global, because a block that is rendered alone has no imports.
    made.globals["ui"] = made.get_template("macros.html").module
    made.globals["figures"] = made.get_template("figures.html").module
    return made


def render_page(template: str, variables: Mapping[str, Any]) -> str:
    """Return a whole page."""
    return environment().get_template(template).render(variables)


def render_live(template: str, variables: Mapping[str, Any]) -> str:
    """Return the part of a page that is refreshed: the block `live` of its template."""
    found = environment().get_template(template)
    return "".join(found.blocks["live"](found.new_context(dict(variables))))
