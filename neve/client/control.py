"""The controller, and reports of readers."""

from neve.api import (
    Control,
)
from neve.client.http import Connection, decode


class ControlCalls:
    """Client methods for the controller."""

    _connection: Connection

    def control(self) -> Control:
        """Return the controller's inputs and decisions, and the share of each class of work."""
        return decode(Control, self._connection.call("GET", "/v1/control"))

    def report_latency(self, table: str, latency_s: float, reads: int = 1) -> None:
        """Report the read latency of a table, so that rewrites leave capacity to readers.

        Args:
            table: Name of the table.
            latency_s: Average latency of the reads, in seconds.
            reads: Number of reads since the last call.
        """
        body = {"tables": {table: {"reads": reads, "latency_s": latency_s}}}
        self._connection.call("POST", "/v1/reads", body=body)
