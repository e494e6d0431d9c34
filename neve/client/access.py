"""The audit."""

from neve.api import (
    AuditEntry,
)
from neve.client.http import Connection, decode_list


class AccessCalls:
    """Client methods for the audit."""

    _connection: Connection

    def audit(
        self, count: int = 100, *, table: str | None = None, caller: str | None = None
    ) -> list[AuditEntry]:
        """Return audited calls, newest first: all that may change something, also refused ones.

        Args:
            count: Maximum number of entries.
            table: Return only calls about this table.
            caller: Return only calls of this caller.
        """
        answer = self._connection.call(
            "GET", "/v1/audit", parameters={"count": count, "table": table, "caller": caller}
        )
        return decode_list(AuditEntry, answer, "entries")
