"""The audit, and links to the console."""

from __future__ import annotations

from dataclasses import replace

from neve import api
from neve.client.http import Connection, decode, decode_list


class AccessCalls:
    """Client methods for the audit and the console."""

    _connection: Connection

    def audit(
        self, count: int = 100, *, table: str | None = None, caller: str | None = None
    ) -> list[api.AuditEntry]:
        """Return audited calls, newest first: all that may change something, also refused ones.

        Args:
            count: Maximum number of entries.
            table: Return only calls about this table.
            caller: Return only calls of this caller.
        """
        answer = self._connection.call(
            "GET", "/v1/audit", parameters={"count": count, "table": table, "caller": caller}
        )
        return decode_list(api.AuditEntry, answer, "entries")

    def console_link(self) -> api.ConsoleLink:
        """Return a link that signs a browser in to the console, once and within five minutes.

        The session has the rights of this client's token. Do not pass the link on.
        """
        answer = decode(api.ConsoleLink, self._connection.call("POST", "/v1/console/links"))
        if answer.link.startswith("/"):
            return replace(answer, link=self._connection.url + answer.link)
        return answer
