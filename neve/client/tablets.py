"""Tablets: explanations, stories, live bytes, reads, quarantine and watermarks."""

from __future__ import annotations

import time  # noqa: TID251  the client may import no clock of the project
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from neve import api
from neve.client.errors import CallerError, NotFoundError, RequestFailedError, UnavailableError
from neve.client.http import Connection, PollPauses, decode, decode_list
from neve.client.planning import REST_POLL_S
from neve.client.tables import table_path


class TabletCalls:
    """Client methods for tablets."""

    _connection: Connection

    def explain(self, table: str, tablet: str | None = None) -> list[api.Explanation]:
        """Explain the state of tablets: why jobs run, wait, or are not planned.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: the first hundred tablets.
        """
        answer = self._connection.call(
            "GET", table_path(table, "explain"), parameters={"tablet": tablet}
        )
        return decode_list(api.Explanation, answer, "tablets")

    def story(self, table: str, tablet: str) -> api.Story:
        """Return the events of a tablet since the coordinator started.

        Use it to explain an incident afterwards. A restart of the coordinator clears the events.

        Args:
            table: Name of the table.
            tablet: The tablet, identified by its end.
        """
        answer = self._connection.call(
            "GET", table_path(table, "story"), parameters={"tablet": tablet}
        )
        return decode(api.Story, answer)

    def analyze(
        self, table: str, tablet: str | None = None, *, timeout_s: float | None = None
    ) -> list[api.LiveBytes]:
        """Start an analysis of the live bytes of files, and return the current counts.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: all tablets of the table.
            timeout_s: Longest wait for the result; None: do not wait.

        Raises:
            UnavailableError: The analysis did not finish in time. It continues.
        """
        self._connection.call("POST", table_path(table, "analyze"), parameters={"tablet": tablet})
        end_s = time.monotonic() + (timeout_s or 0.0)
        while True:
            measured = self.live_bytes(table, tablet)
            waiting = sum(live.waiting for live in measured)
            if timeout_s is None or not waiting:
                return measured
            if time.monotonic() >= end_s:
                raise UnavailableError(
                    f"live bytes of table {table!r} were not counted within {timeout_s:g} s: "
                    f"waiting tablets: {waiting} of {len(measured)}; "
                    f"`neve explain {table}` says why"
                )
            time.sleep(REST_POLL_S)

    def live_bytes(self, table: str, tablet: str | None = None) -> list[api.LiveBytes]:
        """Return the live bytes of tablets that an analysis has counted so far.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: all tablets of the table.
        """
        path = table_path(table, "live-bytes")
        answer = self._connection.call("GET", path, parameters={"tablet": tablet})
        return decode_list(api.LiveBytes, answer, "tablets")

    def report_reads(self, table: str, tablets: Mapping[str, int]) -> None:
        """Report scans of tablets that did not go through the service.

        Args:
            table: Name of the table.
            tablets: End of a tablet → number of scans since the last call.
        """
        body = {"tablets": dict(tablets)}
        self._connection.call("POST", table_path(table, "reads"), body=body)

    def lift_quarantine(self, table: str, tablet: str | None = None) -> None:
        """Resume planning of tablets that are in quarantine after repeated failures.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: all tablets of the table.
        """
        path = table_path(table, "lift-quarantine")
        self._connection.call("POST", path, parameters={"tablet": tablet})

    def lower_watermark(
        self, table: str, tablet: str, to: str | None = None
    ) -> api.LoweredWatermark:
        """Let a tablet accept rows again at versions whose tombstones were dropped.

        Args:
            table: Name of the table.
            tablet: The tablet, identified by its end.
            to: Version up to which rows are still rejected; None: accept all versions.
        """
        path = table_path(table, "lower-watermark")
        return decode(
            api.LoweredWatermark,
            self._connection.call("POST", path, parameters={"tablet": tablet, "to": to}),
        )


# -------------------------------------------------------------------------------------- Split merge
# Start one, wait for it, list those in progress.


POLL_FIRST_S = 0.1
OnOperation = Callable[["api.Operation"], None]


class SplitMergeCalls:
    """Client methods for splits and merges of tablets."""

    _connection: Connection

    def split(
        self,
        table: str,
        *,
        at: str | None = None,
        tablet: str | None = None,
        into: int = 2,
        wait: bool = False,
        timeout_s: float | None = None,
        progress: OnOperation | None = None,
    ) -> api.StartedOperation:
        """Split a tablet. Repeating the call does not start a second split.

        Args:
            table: Name of the table.
            at: Last key of the left half. Give either `at` or `tablet`.
            tablet: Tablet, identified by its end; the service chooses keys that balance its bytes.
            into: Number of parts, with `tablet`; more than two only with `wait`.
            wait: Return only when the split has ended.
            timeout_s: Longest wait; None: no limit.
            progress: Called with each operation that begins, while waiting.

        Raises:
            RefusedError: The split cannot begin now, for example because a request holds the
                tablet.
            RequestFailedError: The split was abandoned.
            UnavailableError: The split did not end in time. It continues.
        """
        if into > 2 and not wait:
            raise CallerError("into more than two parts goes with wait: one split after the other")
        end_s = _end_s(timeout_s)
        begun = self._wish(table, "split", asdict(api.Split(at=at, tablet=tablet, into=into)))
        if wait:
            self._wait(table, begun, end_s, progress)
            for key in begun.keys[1:]:
                further = self._wish(table, "split", asdict(api.Split(at=key)))
                self._wait(table, further, end_s, progress)
        return begun

    def merge(
        self,
        table: str,
        *,
        tablet: str | None = None,
        start: str | None = None,
        end: str | None = None,
        wait: bool = False,
        timeout_s: float | None = None,
        progress: OnOperation | None = None,
    ) -> api.StartedOperation:
        """Merge a tablet with the next one; with `wait`, merge all tablets of a range.

        Args:
            table: Name of the table.
            tablet: Left tablet, identified by its end. Give either `tablet`, or `start` and `end`.
            start: A key of the first tablet; None: the first tablet of the table.
            end: A key of the last tablet; None: the last tablet of the table.
            wait: Return only when the merge has ended; for a range, when one tablet is left.
            timeout_s: Longest wait; None: no limit.
            progress: Called with each operation that begins, while waiting.

        Raises:
            RefusedError: The merge cannot begin now.
            RequestFailedError: The merge was abandoned.
            UnavailableError: The merge did not end in time. It continues.
        """
        end_s = _end_s(timeout_s)
        wish = asdict(api.Merge(tablet=tablet, start=start, end=end))
        begun = following = self._wish(table, "merge", wish)
        while wait and following.operation is not None:
            self._wait(table, following, end_s, progress)
            if tablet is not None:
                break
            following = self._wish(table, "merge", wish)
        return begun

    def operations(self, table: str, *, tablet: str | None = None) -> list[api.Operation]:
        """Return the splits and merges in progress, and what they wait for.

        Args:
            table: Name of the table.
            tablet: Return only operations of this tablet, identified by its end.
        """
        path = table_path(table, "operations")
        answer = self._connection.call("GET", path, parameters={"tablet": tablet})
        return [*decode(api.Operations, answer).operations]

    def abandon(self, table: str, operation: str) -> None:
        """Abandon a split or merge; tablets and files stay unchanged."""
        path = table_path(table, "operations", quote(operation, safe=""), "abandon")
        self._connection.call("POST", path)

    def _wish(self, table: str, what: str, body: dict[str, Any]) -> api.StartedOperation:
        return decode(
            api.StartedOperation, self._connection.call("POST", table_path(table, what), body=body)
        )

    def _wait(
        self,
        table: str,
        begun: api.StartedOperation,
        end_s: float | None,
        progress: OnOperation | None,
    ) -> None:
        """Wait until an operation has ended; raise if it was abandoned."""
        operation = begun.operation
        if operation is None:
            return
        if progress is not None:
            progress(operation)
        pauses = PollPauses(POLL_FIRST_S, end_s)
        while any(other.id == operation.id for other in self._of(table, operation)):
            if not pauses.wait():
                raise UnavailableError(
                    f"{operation.kind} {operation.id} of table {table!r} is not over in time; "
                    "it goes on"
                )
        if self._is_there(table, operation.left) != (operation.kind == "split"):
            raise RequestFailedError(
                f"{operation.kind} {operation.id} of table {table!r} was abandoned; "
                "`neve explain` shows why",
                code="abandoned",
            )

    def _of(self, table: str, operation: api.Operation) -> list[api.Operation]:
        return self.operations(table, tablet=operation.tablets[-1])

    def _is_there(self, table: str, tablet: str) -> bool:
        try:
            self.operations(table, tablet=tablet)
        except NotFoundError:
            return False
        return True


def _end_s(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s
