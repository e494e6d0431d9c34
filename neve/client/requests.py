"""Compaction requests: submit, follow, wait with a progress bar, cancel."""

from __future__ import annotations

import importlib.util
import time  # noqa: TID251  the client may import no clock of the project
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self, TypedDict, Union, Unpack
from urllib.parse import quote

from neve import api
from neve.client.errors import CallerError, RequestFailedError, UnavailableError
from neve.client.http import Connection, PollPauses, decode, decode_list, new_call
from neve.client.tables import table_path

if TYPE_CHECKING:
    from rich.progress import Progress


# --------------------------------------------------------------------------------- The progress bar


class ProgressBar:
    """A progress bar on standard error inside a `with` block; shown only if rich is installed."""

    def __init__(self, title: str, *, is_shown: bool) -> None:
        self._title = title
        self._bar: Progress | None = None
        if is_shown and importlib.util.find_spec("rich") is not None:
            self._bar = _new_bar()
            self._task = self._bar.add_task(title, total=1.0, progress="asked for")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, request: api.Request) -> None:
        """Show the current progress of a request."""
        if self._bar is not None:
            progress = request.progress or api.Progress()
            completed = 1.0 if request.state.startswith("done") else progress.fraction
            self._bar.update(self._task, completed=completed, progress=sentence(request))


def sentence(request: api.Request) -> str:
    """Return a request's progress in one line: `3/8 tablets · 2 jobs run · 1 m 05 s left`."""
    progress = request.progress
    if request.ended or progress is None:
        return request.state + (f": {request.cause}" if request.cause else "")
    ended = progress.done + progress.cancelled
    parts = [f"{ended}/{progress.tablets} {'tablet' if progress.tablets == 1 else 'tablets'}"]
    counts = {"wait": progress.waiting, "selected": progress.selected, "pending": progress.pending}
    parts += [f"{count} {word}" for word, count in counts.items() if count]
    if progress.running:
        parts.append("1 job runs" if progress.running == 1 else f"{progress.running} jobs run")
    if progress.eta_s is not None:
        parts.append(f"{_duration(progress.eta_s)} left")
    if request.state == "cancelling":
        parts.insert(0, "cancelling")
    return " · ".join(parts)


def _new_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[progress]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True))


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


# ------------------------------------------------------------------------- Requests and their calls


PluginText = Union[str, tuple[str, Mapping[str, object]], "api.Plugin"]
"""A plug-in and its options, in any form that users may write."""
PLUGIN_FORM = "NAME[:OPTION=VALUE,…]"
POLL_FIRST_S = 0.2
OUTAGE_MAX_S = 60.0
"""Longest outage that `Request.wait` tolerates, such as a restart of the service."""


class Request:
    """A handle on a requested compaction; the compaction does not depend on the handle.

    Attributes:
        id: Permanent id of the request.
        table: Name of its table.
    """

    def __init__(self, connection: Connection, table: str, request: str) -> None:
        self._connection = connection
        self.table = table
        self.id = request

    def __repr__(self) -> str:
        return f"<request {self.id} of table {self.table}>"

    def status(self, *, tablets: int = 100) -> api.Request:
        """Return the state and progress of the request.

        Args:
            tablets: Maximum number of tablets to list; unfinished tablets come first.
        """
        answer = self._connection.call("GET", self._path(), parameters={"tablets": tablets})
        return decode(api.Request, answer)

    def cancel(
        self, *, start: str | None = None, end: str | None = None, tablet: str | None = None
    ) -> api.Request:
        """Cancel the request, or its part in a range or a tablet; committed work stays.

        Args:
            start: First key, inclusive; with `end`, only tablets entirely inside the range.
            end: Last key, inclusive.
            tablet: One tablet, identified by its end.
        """
        body = {"start": start, "end": end, "tablet": tablet}
        return decode(api.Request, self._connection.call("POST", self._path("cancel"), body=body))

    def wait(self, *, progress: bool = False, timeout_s: float | None = None) -> api.Request:
        """Wait until the request is done, and return its final state.

        Args:
            progress: Show a progress bar on standard error.
            timeout_s: Longest wait; None: no limit.

        Raises:
            RequestFailedError: The request failed, or was cancelled in whole or in part; `code` is
                its state: `failed`, `cancelled` or `done_in_part`.
            UnavailableError: The request was not done in time, or the service did not answer.
                The request continues.
        """
        with ProgressBar(f"compact {self.table}", is_shown=progress) as bar:
            ended = self._followed(bar, timeout_s)
        if ended.state == "done":
            return ended
        raise RequestFailedError(
            f"request {self.id} of table {self.table!r} is {_why_not_done(ended)}", code=ended.state
        )

    def _followed(self, bar: ProgressBar, timeout_s: float | None) -> api.Request:
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        pauses = PollPauses(POLL_FIRST_S, end_s)
        heard_s = time.monotonic()
        while True:
            try:
                current = self.status(tablets=0)
            except UnavailableError:
                if time.monotonic() - heard_s >= OUTAGE_MAX_S:
                    raise
            else:
                heard_s = time.monotonic()
                bar.show(current)
                if current.ended:
                    return current
            if not pauses.wait():
                raise UnavailableError(
                    f"request {self.id} of table {self.table!r} is not done within "
                    f"{timeout_s:g} s; it goes on"
                )

    def _path(self, *rest: str) -> str:
        return table_path(self.table, "compactions", quote(self.id, safe=""), *rest)


def _why_not_done(request: api.Request) -> str:
    if request.state == "done_in_part":
        left_out = ", ".join(keys.text for keys in request.cancelled)
        return f"done in part: cancelled for the keys {left_out}"
    return request.state + (f": {request.cause}" if request.cause else "")


OUTPUT = ("codec", "codec_level", "row_group_bytes")


class Wanted(TypedDict, total=False):
    """The arguments of `compact`."""

    start: str | None
    end: str | None
    delete_where: str | None
    set: str | None
    transform: PluginText | None
    selector: PluginText | None
    codec: str | None
    codec_level: int | None
    row_group_bytes: int | str | None
    hints: Mapping[str, str] | None
    boost: int
    deadline: str | float | None


class RequestCalls:
    """Client methods for compaction requests."""

    _connection: Connection

    def compact(
        self,
        table: str,
        *,
        start: str | None = None,
        end: str | None = None,
        delete_where: str | None = None,
        set: str | None = None,  # noqa: A002  as the language of expressions calls it
        transform: PluginText | None = None,
        selector: PluginText | None = None,
        codec: str | None = None,
        codec_level: int | None = None,
        row_group_bytes: int | str | None = None,
        hints: Mapping[str, str] | None = None,
        boost: int = 0,
        deadline: str | float | None = None,
        call: str | None = None,
    ) -> Request:
        """Request a compaction, and return at once.

        Args:
            table: Name of the table.
            start: First key, inclusive, or a prefix of it; None: from the beginning.
            end: Last key, inclusive, or a prefix of it; None: to the end.
            delete_where: Condition; delete the rows of the range for which it is true.
            set: Assignments to apply to the rows of the range: `"a = a + 1"`.
            transform: Plug-in that changes rows, written like `selector`.
            selector: Plug-in that selects files: a name, `"age:older_than=7d"` as on the command
                line, or `(name, options)`.
            codec: Compression codec of the outputs.
            codec_level: Compression level of the outputs.
            row_group_bytes: Row group size of the outputs: bytes, or a size such as `"64MB"`.
            hints: Hints for plug-ins.
            boost: Value to add to the priority of its jobs.
            deadline: Time limit, in seconds or as a text such as `"10m"`; after it the request
                fails.
            call: Id of this call (`neve.new_call_id()`); reuse it after an unknown outcome.
        """
        body = _body(
            start=start,
            end=end,
            delete_where=delete_where,
            set=set,
            transform=transform,
            selector=selector,
            codec=codec,
            codec_level=codec_level,
            row_group_bytes=row_group_bytes,
            hints=hints,
            boost=boost,
            deadline=deadline,
        )
        answer = self._connection.call(
            "POST", table_path(table, "compactions"), body=asdict(body), call=call or new_call()
        )
        return Request(self._connection, table, decode(api.Request, answer).id)

    def dry_run(
        self,
        table: str,
        *,
        start: str | None = None,
        end: str | None = None,
        delete_where: str | None = None,
        set: str | None = None,  # noqa: A002  as the language of expressions calls it
        transform: PluginText | None = None,
        selector: PluginText | None = None,
        codec: str | None = None,
        codec_level: int | None = None,
        row_group_bytes: int | str | None = None,
        hints: Mapping[str, str] | None = None,
        boost: int = 0,
        deadline: str | float | None = None,
    ) -> api.DryRun:
        """Return what `compact` would select with the same arguments, and start nothing."""
        body = _body(
            start=start,
            end=end,
            delete_where=delete_where,
            set=set,
            transform=transform,
            selector=selector,
            codec=codec,
            codec_level=codec_level,
            row_group_bytes=row_group_bytes,
            hints=hints,
            boost=boost,
            deadline=deadline,
        )
        path = table_path(table, "compactions")
        document = asdict(replace(body, dry_run=True))
        return decode(api.DryRun, self._connection.call("POST", path, body=document))

    def requests(self, table: str, count: int = 100) -> list[api.Request]:
        """Return the compaction requests of a table, newest first.

        Args:
            table: Name of the table.
            count: Maximum number of entries.
        """
        path = table_path(table, "compactions")
        answer = self._connection.call("GET", path, parameters={"count": count})
        return decode_list(api.Request, answer, "requests")

    def request(self, table: str, request: str) -> Request:
        """Return a handle on an existing compaction request."""
        return Request(self._connection, table, request)


def _body(**wanted: Unpack[Wanted]) -> api.NewRequest:
    """Return the body of a request for these arguments of `compact`."""
    given: dict[str, Any] = dict(wanted)
    output = api.Output(**{name: given.pop(name, None) for name in OUTPUT})
    for plugin in ("transform", "selector"):
        given[plugin] = _plugin(given.get(plugin), plugin)
    given["hints"] = dict(given.get("hints") or {})
    return api.NewRequest(output=None if output == api.Output() else output, **given)


def _plugin(plugin: PluginText | None, what: str) -> api.Plugin | None:
    """Parse `name`, `name:option=value,option=value` or a pair into name and options.

    Raises:
        CallerError: The name is missing, or an option has no `=`.
    """
    if plugin is None or isinstance(plugin, api.Plugin):
        return plugin
    if isinstance(plugin, str):
        name, _, text = plugin.partition(":")
        options = dict(
            _option(part, what, name.strip()) for part in text.split(",") if part.strip()
        )
    else:
        name, options = plugin[0], {option: str(value) for option, value in plugin[1].items()}
    if not name.strip():
        raise CallerError(f"{what} {plugin!r} has no name, expected {PLUGIN_FORM}")
    return api.Plugin(name=name.strip(), options=options)


def _option(text: str, what: str, name: str) -> tuple[str, str]:
    option, equals, value = text.partition("=")
    if not equals or not option.strip():
        raise CallerError(f"option of {what} {name} {text!r} is not of the form name=value")
    return option.strip(), value.strip()
