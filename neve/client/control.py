"""The controller, and reports of readers."""

from __future__ import annotations

from collections.abc import Sequence

from neve import api
from neve.client.http import Connection, Parameters, decode


class ControlCalls:
    """Client methods for the controller."""

    _connection: Connection

    def control(self) -> api.Control:
        """Return the controller's inputs and decisions, and the share of each class of work."""
        return decode(api.Control, self._connection.call("GET", "/v1/control"))

    def series(
        self,
        *,
        span_s: float = api.SERIES_SPAN_S,
        points: int = 720,
        measures: Sequence[str] = (),
        tables: Sequence[str] = (),
        count: int = 20,
        groups: bool = True,
    ) -> api.Series:
        """Return recorded values of the last hour or day: backlog, queue, throughput and more.

        Null is a gap: nothing was recorded, for example because no coordinator ran.

        Args:
            span_s: Up to 3600: steps of 5 seconds. Up to 86400: steps of a minute.
            points: Maximum number of steps, up to 1440; neighbours are combined.
            measures: Names of measures; empty: all.
            tables: Names of up to 100 tables; empty: those with the largest backlog.
            count: Without names: maximum number of tables, up to 100. The others are summed.
            groups: Whether to return the groups.
        """
        parameters: Parameters = {
            "span_s": span_s,
            "points": points,
            "measure": list(measures),
            "table": list(tables),
            "count": count,
            "groups": groups,
        }
        return decode(api.Series, self._connection.call("GET", "/v1/series", parameters=parameters))

    def report_latency(self, table: str, latency_s: float, reads: int = 1) -> None:
        """Report the read latency of a table, so that rewrites leave capacity to readers.

        Args:
            table: Name of the table.
            latency_s: Average latency of the reads, in seconds.
            reads: Number of reads since the last call.
        """
        body = {"tables": {table: {"reads": reads, "latency_s": latency_s}}}
        self._connection.call("POST", "/v1/reads", body=body)
