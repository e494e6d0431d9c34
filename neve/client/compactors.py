"""Compactors, groups and limits on bytes per second."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from neve import api
from neve.client.http import Connection, decode_list


class LimitCalls:
    """Client methods for bandwidth limits."""

    _connection: Connection

    def limits(self) -> list[api.Limit]:
        """Return the groups and volumes that have a limit or current traffic."""
        return decode_list(api.Limit, self._connection.call("GET", "/v1/limits"), "limits")

    def limit_group(self, group: str, limit: int | str | None) -> None:
        """Limit the total bytes per second that the rewrites of a group read and write.

        Args:
            group: Name of the group.
            limit: Bytes per second, or a size such as `50MB`; 0: no limit; None: the limit of
                the service's settings.
        """
        self._limit(f"/v1/groups/{quote(group, safe='')}/limit", limit)

    def limit_volume(self, volume: str, limit: int | str | None) -> None:
        """Limit the total bytes per second of all rewrites on a volume; see `limit_group`."""
        self._limit(f"/v1/volumes/{quote(volume, safe='')}/limit", limit)

    def _limit(self, path: str, limit: int | str | None) -> None:
        body: dict[str, Any] = {"limit": limit}
        if limit is None:
            self._connection.call("DELETE", path)
        else:
            self._connection.call("PUT", path, body=body)


class CompactorCalls:
    """Client methods for compactors and groups."""

    _connection: Connection

    def compactors(self) -> list[api.Compactor]:
        """Return the compactors that the coordinator knows."""
        return decode_list(
            api.Compactor, self._connection.call("GET", "/v1/compactors"), "compactors"
        )

    def drain(self, compactor: str) -> None:
        """Let a compactor finish its jobs, and assign no new ones to it."""
        self._connection.call("POST", f"/v1/compactors/{quote(compactor, safe='')}/drain")

    def stop_compactor(self, compactor: str, wait_max_s: float | None = None) -> None:
        """Stop a compactor after its jobs. A replacement starts if its group needs one.

        Args:
            compactor: Name of the compactor.
            wait_max_s: Longest wait for its jobs; jobs that still run then go to other compactors.
                None: `compactor.drain_timeout_s` of the service.
        """
        path = f"/v1/compactors/{quote(compactor, safe='')}/stop"
        self._connection.call("POST", path, parameters={"wait_max_s": wait_max_s})

    def groups(self) -> list[api.Group]:
        """Return the compaction groups, with their queue, compactors and scaling."""
        return decode_list(api.Group, self._connection.call("GET", "/v1/groups"), "groups")

    def scale_group(self, group: str, compactors: int | None) -> None:
        """Set the number of compactors of a group.

        Args:
            group: Name of the group.
            compactors: Number of compactors; None: as the settings and the backlog require.
        """
        path = f"/v1/groups/{quote(group, safe='')}/scale"
        if compactors is None:
            self._connection.call("DELETE", path)
        else:
            self._connection.call("PUT", path, body={"compactors": compactors})

    def pause_group(self, group: str) -> None:
        """Assign no new jobs of a compaction group; running jobs continue."""
        self._connection.call("POST", f"/v1/groups/{quote(group, safe='')}/pause")

    def resume_group(self, group: str) -> None:
        """End the pause of a compaction group."""
        self._connection.call("POST", f"/v1/groups/{quote(group, safe='')}/resume")
