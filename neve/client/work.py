"""Compaction work: status, jobs, queue, plan, explain, history, compactors, limits."""

import time  # noqa: TID251  the client may import no clock of the project
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from neve.api import (
    AuditEntry,
    Backlog,
    BacklogPoint,
    Compactor,
    Control,
    Explanation,
    Finished,
    Group,
    Job,
    Limit,
    LiveBytes,
    LoweredWatermark,
    OwedTablet,
    Plan,
    PlannedJob,
    Setting,
    Status,
    Story,
    TableActivity,
    TableMaintenance,
    Trigger,
)
from neve.client.errors import UnavailableError
from neve.client.http import Connection, decode, decode_list
from neve.client.tables import TableCalls, table_path

REST_POLL_S = 0.2


class WorkCalls(TableCalls):
    """Client methods for the compaction work on tables."""

    def status(self) -> Status:
        """Return the status of the service as a whole."""
        return decode(Status, self._connection.call("GET", "/v1/status"))

    def config(self) -> list[Setting]:
        """Return all settings of the running service, with the source of each value."""
        return decode_list(Setting, self._connection.call("GET", "/v1/config"), "settings")

    def audit(
        self, count: int = 100, *, table: str | None = None, caller: str | None = None
    ) -> list[AuditEntry]:
        """Return audited calls, newest first: all that may change something, also refused ones.

        Args:
            count: Maximum number of entries.
            table: Return only calls about this table.
            caller: Return only calls of this caller.
        """
        parameters = {"count": count, "table": table, "caller": caller}
        answer = self._connection.call("GET", "/v1/audit", parameters=parameters)
        return decode_list(AuditEntry, answer, "entries")

    def jobs(self) -> list[Job]:
        """Return the running jobs."""
        return decode_list(Job, self._connection.call("GET", "/v1/jobs"), "jobs")

    def cancel_job(self, attempt: str) -> None:
        """Cancel a running job; its files are not planned again for a while.

        If the job belongs to a request, the key range of its tablet leaves the request. The
        request continues in its other tablets and ends `done_in_part`, so that `wait` raises.

        Args:
            attempt: Id of the attempt, from `jobs`.
        """
        self._connection.call("POST", f"/v1/jobs/{quote(attempt, safe='')}/cancel")

    def backlog(self, table: str | None = None) -> list[Backlog]:
        """Return the bytes that are still to be rewritten, by table, largest first.

        A table at rest has no entry. With more than 99 tables, the last entry has no name and
        stands for the tables without an entry of their own.

        Args:
            table: Return only this table; None: all tables.
        """
        parameters = None if table is None else {"table": table}
        found = self._connection.call("GET", "/v1/backlog", parameters=parameters)
        return decode_list(Backlog, found, "backlog")

    def owed_tablets(self, table: str, count: int = 100) -> list[OwedTablet]:
        """Return the tablets of a table with the largest backlog, largest first.

        A tablet at rest has no entry.

        Args:
            table: Name of the table.
            count: Maximum number of tablets.
        """
        found = self._connection.call(
            "GET", table_path(table, "backlog"), parameters={"count": count}
        )
        return decode_list(OwedTablet, found, "tablets")

    def backlog_history(self, table: str | None = None) -> list[BacklogPoint]:
        """Return the backlog over the last hour, oldest point first.

        There is one point every ten seconds. A restart of the coordinator clears the history.

        Args:
            table: Return the backlog of this table; None: the total of all tables.
        """
        parameters = None if table is None else {"table": table}
        found = self._connection.call("GET", "/v1/backlog/history", parameters=parameters)
        return decode_list(BacklogPoint, found, "history")

    def queue(self, group: str | None = None, count: int = 100) -> list[PlannedJob]:
        """Return the waiting jobs, highest priority first.

        Args:
            group: Return the jobs of this compaction group; None: of all groups.
            count: Maximum number of entries.
        """
        parameters = {"group": group, "count": count}
        answer = self._connection.call("GET", "/v1/queue", parameters=parameters)
        return decode_list(PlannedJob, answer, "jobs")

    def activity(self) -> list[TableActivity]:
        """Return the tables with queued or running jobs, most bytes first."""
        return decode_list(TableActivity, self._connection.call("GET", "/v1/activity"), "tables")

    def explain(self, table: str, tablet: str | None = None) -> list[Explanation]:
        """Explain the state of tablets: why jobs run, wait, or are not planned.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: the first hundred tablets.
        """
        answer = self._connection.call(
            "GET", table_path(table, "explain"), parameters={"tablet": tablet}
        )
        return decode_list(Explanation, answer, "tablets")

    def story(self, table: str, tablet: str) -> Story:
        """Return the events of a tablet since the coordinator started.

        Use it to explain an incident afterwards. A restart of the coordinator clears the events.

        Args:
            table: Name of the table.
            tablet: The tablet, identified by its end.
        """
        answer = self._connection.call(
            "GET", table_path(table, "story"), parameters={"tablet": tablet}
        )
        return decode(Story, answer)

    def plan(self, table: str) -> Plan:
        """Return what would be planned for a table now, and start nothing."""
        return decode(Plan, self._connection.call("GET", table_path(table, "plan")))

    def history(self, table: str, count: int = 100) -> list[Finished]:
        """Return the most recently finished attempts, newest first.

        Args:
            table: Name of the table.
            count: Maximum number of entries.
        """
        answer = self._connection.call(
            "GET", table_path(table, "history"), parameters={"count": count}
        )
        return decode_list(Finished, answer, "attempts")

    def compactors(self) -> list[Compactor]:
        """Return the compactors that the coordinator knows."""
        answer = self._connection.call("GET", "/v1/compactors")
        return decode_list(Compactor, answer, "compactors")

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
        parameters = {} if wait_max_s is None else {"wait_max_s": wait_max_s}
        self._connection.call("POST", path, parameters=parameters)

    def groups(self) -> list[Group]:
        """Return the compaction groups, with their queue, compactors and scaling."""
        return decode_list(Group, self._connection.call("GET", "/v1/groups"), "groups")

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

    def replan(self, table: str) -> None:
        """Plan every tablet of a table again, at once."""
        self._connection.call("POST", table_path(table, "replan"))

    def analyze(
        self, table: str, tablet: str | None = None, *, timeout_s: float | None = None
    ) -> list[LiveBytes]:
        """Start an analysis of the live bytes of files, and return the current counts.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: all tablets of the table.
            timeout_s: Longest wait for the result; None: do not wait.

        Raises:
            UnavailableError: The analysis did not finish in time. It continues.
        """
        parameters = {} if tablet is None else {"tablet": tablet}
        self._connection.call("POST", table_path(table, "analyze"), parameters=parameters)
        end_s = time.monotonic() + (timeout_s or 0.0)
        while True:
            found = self.live_bytes(table, tablet)
            waiting = sum(live.waiting for live in found)
            if timeout_s is None or not waiting:
                return found
            if time.monotonic() >= end_s:
                raise UnavailableError(
                    f"live bytes of table {table!r} were not counted within {timeout_s:g} s: "
                    f"waiting tablets: {waiting} of {len(found)}; `neve explain {table}` says why"
                )
            time.sleep(REST_POLL_S)

    def live_bytes(self, table: str, tablet: str | None = None) -> list[LiveBytes]:
        """Return the live bytes of tablets that an analysis has counted so far.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: all tablets of the table.
        """
        parameters = {} if tablet is None else {"tablet": tablet}
        path = table_path(table, "live-bytes")
        answer = self._connection.call("GET", path, parameters=parameters)
        return decode_list(LiveBytes, answer, "tablets")

    def maintenance(self, table: str, tablet: str | None = None) -> TableMaintenance:
        """Return possible maintenance of tablets: gain, cost and memory, or why it is not done.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: the first tablets of the table.
        """
        parameters = {} if tablet is None else {"tablet": tablet}
        path = table_path(table, "maintenance")
        return decode(TableMaintenance, self._connection.call("GET", path, parameters=parameters))

    def report_reads(self, table: str, tablets: Mapping[str, int]) -> None:
        """Report scans of tablets that did not go through the service.

        Args:
            table: Name of the table.
            tablets: End of a tablet → number of scans since the last call.
        """
        body = {"tablets": dict(tablets)}
        self._connection.call("POST", table_path(table, "reads"), body=body)

    def report_latency(self, table: str, latency_s: float, reads: int = 1) -> None:
        """Report the read latency of a table, so that rewrites leave capacity to readers.

        Args:
            table: Name of the table.
            latency_s: Average latency of the reads, in seconds.
            reads: Number of reads since the last call.
        """
        body = {"tables": {table: {"reads": reads, "latency_s": latency_s}}}
        self._connection.call("POST", "/v1/reads", body=body)

    def control(self) -> Control:
        """Return the controller's inputs and decisions, and the share of each class of work."""
        return decode(Control, self._connection.call("GET", "/v1/control"))

    def trigger(self, table: str) -> Trigger:
        """Run the planner of a table now, and return its decision for each tablet.

        The planner may decide against a job; use `compact` to force one.

        Args:
            table: Name of the table.

        Raises:
            RefusedError: The table is not live, or its setting `triggers` lacks `admin`.
        """
        return decode(Trigger, self._connection.call("POST", table_path(table, "trigger")))

    def lift_quarantine(self, table: str, tablet: str | None = None) -> None:
        """Resume planning of tablets that are in quarantine after repeated failures.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: all tablets of the table.
        """
        parameters = {} if tablet is None else {"tablet": tablet}
        path = table_path(table, "lift-quarantine")
        self._connection.call("POST", path, parameters=parameters)

    def lower_watermark(self, table: str, tablet: str, to: str | None = None) -> LoweredWatermark:
        """Let a tablet accept rows again at versions whose tombstones were dropped.

        Args:
            table: Name of the table.
            tablet: The tablet, identified by its end.
            to: Version up to which rows are still rejected; None: accept all versions.
        """
        parameters = {"tablet": tablet} | ({} if to is None else {"to": to})
        path = table_path(table, "lower-watermark")
        return decode(LoweredWatermark, self._connection.call("POST", path, parameters=parameters))

    def wait_until_at_rest(self, table: str, *, timeout_s: float = 300.0) -> None:
        """Wait until no job runs on a table and none would be planned.

        Args:
            table: Name of the table.
            timeout_s: Longest wait.

        Raises:
            UnavailableError: The table did not come to rest in time.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            # Use one answer: between two calls, a waiting job could become a running one.
            plan = self.plan(table)
            if not plan.jobs and not plan.running:
                return
            if time.monotonic() >= end_s:
                raise UnavailableError(
                    f"table {table!r} did not come to rest within {timeout_s:g} s: "
                    f"jobs that run: {plan.running}, that wait: {len(plan.jobs)}"
                )
            time.sleep(REST_POLL_S)


# ------------------------------------------------------------------------------------------- Limits


class LimitCalls:
    """Client methods for bandwidth limits."""

    _connection: Connection

    def limits(self) -> list[Limit]:
        """Return the groups and volumes that have a limit or current traffic."""
        return decode_list(Limit, self._connection.call("GET", "/v1/limits"), "limits")

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
