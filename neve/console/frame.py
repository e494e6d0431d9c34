"""How a page is declared, what its handler gets, and how its template is rendered.

A page is declared at its handler, with its address, its template, and the API route whose right a
caller needs for the page. There is no second table of rights:

    @page("/console/tables/{table}", "table.html", of="GET /v1/tables/{table}", title="Table")
    async def table(view: View) -> Variables:
        return {
            "table": await view.read("GET /v1/tables/{table}", table=view.path["table"]),
            "owed": await view.maybe("GET /v1/tables/{table}/backlog", table=view.path["table"]),
        }

A handler reads through `View.read`, which calls the handler of the API route in this process, as
the signed-in caller: what it may not read raises what the API would answer. It returns the
variables of its template. `docs/console.md` says how to add a page.
"""

import gzip
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from common.errors import CompactionError, RequestError, UnavailableError, UnknownTableError
from common.units import format_bytes, format_count, format_duration

Variables = Mapping[str, Any]
ROWS_A_PAGE = 50
"""Rows of a listing on one page."""
PAGES_MAX = 100_000
QUERY_CHARS_MAX = 1000
"""Longest value of the address that a page reads."""


class CallFailedError(CompactionError):
    """The API refused a change, or failed."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Calls(Protocol):
    """The handlers of the API, called in this process as one signed-in caller."""

    def may(self, route: str, table: str | None = None) -> bool:
        """Return whether the caller has the right that a route requires.

        Args:
            route: Method and pattern, such as `POST /v1/tables/{table}/pause`.
            table: Name of the table; None: the route concerns no table, or any.
        """

    async def read(self, route: str, **arguments: Any) -> Any:
        """Return what the handler of a GET route returns: a value of `neve.api`, not JSON.

        Args:
            route: Method and pattern.
            arguments: Parameters of its path and query.

        Raises:
            CompactionError: The error that the API would answer.
        """

    async def change(
        self,
        route: str,
        path: Mapping[str, str],
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Any:
        """Make a call of the API, with its checks and its lines in the audit; return its JSON.

        Args:
            route: Method and pattern.
            path: Parameters of its path.
            query: Parameters of its query.
            body: JSON of its body; None: it has none.

        Raises:
            CompactionError: The error that the API answers; its text is the problem's detail.
        """


@dataclass(frozen=True, slots=True)
class Crumb:
    """A step of the path above a page's heading."""

    text: str
    href: str


@dataclass(slots=True, kw_only=True)
class View:
    """One visit of a page: its address, its caller, and the calls that it may make.

    Templates get it as `view`.
    """

    calls: Calls
    caller: str
    """Name of the caller."""
    csrf: str
    """Value that each form sends; the macros of `macros.html` do."""
    route: "PageRoute"
    path: Mapping[str, str]
    """Parameters of the path."""
    query: Mapping[str, str]
    """Parameters of the query, the last value of each."""
    form: Mapping[str, str] = field(default_factory=dict)
    """Fields of the form, for a page with a POST."""
    now_s: float = 0.0
    silences: list[str] = field(default_factory=list)
    """Why parts of the page are missing, one sentence each; shown above the page."""
    crumbs: Sequence[Crumb] = ()
    """Path above the heading; a handler may set it."""
    title: str = ""
    """Heading of the page; a handler may set it."""

    def may(self, route: str, table: str | None = None) -> bool:
        """Return whether the caller has the right of an API route. Ask before a button."""
        return self.calls.may(route, table)

    async def read(self, route: str, **arguments: Any) -> Any:
        """Read a GET route of the API; see `Calls.read`."""
        return await self.calls.read(route, **arguments)

    async def maybe(self, route: str, **arguments: Any) -> Any:
        """Read a GET route, or return None: the caller may not, the table is gone, or it is silent.

        The page says why it lacks something if a part is silent, and not what a caller may not see.
        """
        if not self.calls.may(route, arguments.get("table")):
            return None
        try:
            return await self.calls.read(route, **arguments)
        except UnknownTableError:  # It was dropped a moment ago, or is named in old figures.
            return None
        except UnavailableError as error:
            if str(error) not in self.silences:
                self.silences.append(str(error))
            return None

    # ------------------------------------------------------------------------------- The address

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter of the query, shortened."""
        return self.query.get(name, default)[:QUERY_CHARS_MAX]

    def choice(self, name: str, options: Sequence[str], default: str = "") -> str:
        """Return a parameter that is one of some words, else the default (or the first option)."""
        chosen = self.query.get(name, "")
        return chosen if chosen in options else default or options[0]

    def number(self, name: str, default: int, most: int = PAGES_MAX) -> int:
        """Return a parameter from 1 to `most`, else the default."""
        text = self.query.get(name, "")
        number = int(text) if text.isdecimal() and len(text) < 10 else default
        return number if 1 <= number <= most else default

    def address(self, **changed: str | int | None) -> str:
        """Return the address of this page with changed parameters; None removes one."""
        merged = {**self.query, **changed}
        left = {name: str(value) for name, value in merged.items() if value not in (None, "")}
        return address_of(self.route.address, self.path, left)

    @property
    def here(self) -> str:
        """The address of this page."""
        return self.address()


def address_of(
    pattern: str, path: Mapping[str, str] | None = None, query: Mapping[str, str] | None = None
) -> str:
    """Return an address from the pattern of a page or route, with quoted parameters."""
    text = pattern
    for name, value in (path or {}).items():
        text = text.replace("{" + name + "}", quote(value, safe=""))
    if "{" in text:
        raise RequestError(
            f"{pattern} needs more parameters than {', '.join(path or {}) or 'none'}"
        )
    return f"{text}?{urlencode(query)}" if query else text


PageHandler = Callable[[View], Awaitable[Variables]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRoute:
    """A page: its address, template and handler, and the API route that has its right."""

    address: str
    """Pattern of the path below `/console`."""
    template: str
    of: str
    """Method and pattern of the API route whose right the page requires."""
    title: str
    handler: PageHandler
    nav: str = ""
    """Text in the navigation; empty: it is not there."""
    live: bool = True
    """Whether the block `live` of its template is refreshed while the page is open."""
    method: str = "GET"


def page(
    address: str,
    template: str,
    *,
    of: str,
    title: str,
    nav: str = "",
    live: bool = True,
    method: str = "GET",
) -> Callable[[PageHandler], PageRoute]:
    """Declare a handler as a page; see `PageRoute` for the arguments.

    A page with `method="POST"` gets the fields of its form in `View.form`, after the CSRF token was
    checked: a dry run, for example, whose result its template shows.
    """

    def declare(handler: PageHandler) -> PageRoute:
        return PageRoute(
            address=address,
            template=template,
            of=of,
            title=title,
            handler=handler,
            nav=nav,
            live=live and method == "GET",
            method=method,
        )

    return declare


# ---------------------------------------------------------------------------------------- Listings


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of a listing: `order` gives the sort key of a row."""

    key: str
    """Word in the address."""
    text: str
    order: Callable[[Any], Any]
    number: bool = True
    """Whether it is aligned to the right, and sorted with the largest first."""
    hint: str = ""
    """What the column means, for a tooltip."""


@dataclass(frozen=True, slots=True)
class ListingPage:
    """One page of sorted rows, as `listing.html` shows it."""

    view: View
    headings: Sequence[Heading]
    rows: Sequence[Any]
    """The rows of this page."""
    total: int
    """All rows that passed the filter."""
    sort: str
    descending: bool
    page: int
    pages: int

    def link(self, heading: Heading) -> str:
        """Return the address that sorts by a column, or reverses its order."""
        down = heading.number if heading.key != self.sort else not self.descending
        return self.view.address(sort=heading.key, order="down" if down else "up", page=None)


def listing(
    view: View, headings: Sequence[Heading], rows: Sequence[Any], *, sort: str = ""
) -> ListingPage:
    """Sort rows as the address says (`sort`, `order`), and return the page that it names (`page`).

    Args:
        view: The visit; its address has the state.
        headings: The columns.
        rows: All rows, after filtering. Rows whose sort key is None come last.
        sort: Column to sort by if the address has none; empty: the first.
    """
    key = view.choice("sort", [heading.key for heading in headings], sort)
    heading = next(column for column in headings if column.key == key)
    descending = view.choice("order", ("down", "up"), "down" if heading.number else "up") == "down"
    present = [row for row in rows if heading.order(row) is not None]
    absent = [row for row in rows if heading.order(row) is None]
    ordered = [*sorted(present, key=heading.order, reverse=descending), *absent]
    pages = max(1, -(-len(ordered) // ROWS_A_PAGE))
    number = min(view.number("page", 1), pages)
    shown = ordered[(number - 1) * ROWS_A_PAGE : number * ROWS_A_PAGE]
    return ListingPage(view, headings, shown, len(ordered), key, descending, number, pages)


# ---------------------------------------------------------------------------------------- Templates
# Templates: filters for sizes, times and ages, plots, pictures, and static files by digest.


STATIC = "/console/static"
STATIC_KINDS = {
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
        if name.suffix not in STATIC_KINDS:
            continue  # Licences are for people who read the package.
        body = entry.read_bytes()
        digest = hashlib.sha256(body).hexdigest()[:12]
        address = f"{STATIC}/{digest}/{entry.name}"
        addresses[entry.name] = address
        bodies[address] = StaticFile(
            STATIC_KINDS[name.suffix], body, gzip.compress(body, 9, mtime=0)
        )
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
