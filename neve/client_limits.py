"""Limits on the bytes per second of compaction groups and volumes.

client.limit_group("default", "50MB")
client.limit_volume("archive", 0)
"""

from typing import Any
from urllib.parse import quote

from neve.api_limits import Limit
from neve.client_decode import decode_list
from neve.client_http import Connection


class LimitCalls:
    """The part of the client that is about bytes per second."""

    _connection: Connection

    def limits(self) -> list[Limit]:
        """Return the groups and volumes that have a limit, or under which something moves."""
        return decode_list(Limit, self._connection.call("GET", "/v1/limits"), "limits")

    def limit_group(self, group: str, limit: int | str | None) -> None:
        """Limit what the rewrites of a compaction group read and write together.

        Args:
            group: Its name.
            limit: Bytes per second, or a size such as `50MB`; 0: none; None: what the
                settings of the service say.
        """
        self._limit(f"/v1/groups/{quote(group, safe='')}/limit", limit)

    def limit_volume(self, volume: str, limit: int | str | None) -> None:
        """Limit what all rewrites on a volume read and write together; see `limit_group`."""
        self._limit(f"/v1/volumes/{quote(volume, safe='')}/limit", limit)

    def _limit(self, path: str, limit: int | str | None) -> None:
        body: dict[str, Any] = {"limit": limit}
        if limit is None:
            self._connection.call("DELETE", path)
        else:
            self._connection.call("PUT", path, body=body)
