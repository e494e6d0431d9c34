"""How a page is declared, and what its handler gets.

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

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from common.errors import CompactionError, RequestError, UnavailableError, UnknownTableError

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
