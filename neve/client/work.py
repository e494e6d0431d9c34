"""Calls about the work: status, jobs, queue, plan, explain, history, compactors, limits."""

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
    TableMaintenance,
    Trigger,
)
from neve.client.errors import UnavailableError
from neve.client.http import Connection, decode, decode_list
from neve.client.tables import TableCalls, table_path

REST_POLL_S = 0.2


class WorkCalls(TableCalls):
    """The part of the client that is about the work on tables."""

    def status(self) -> Status:
        """Return how the service as a whole is doing."""
        return decode(Status, self._connection.call("GET", "/v1/status"))

    def config(self) -> list[Setting]:
        """Return every setting of the running service, and where its value comes from."""
        return decode_list(Setting, self._connection.call("GET", "/v1/config"), "settings")

    def audit(
        self, count: int = 100, *, table: str | None = None, caller: str | None = None
    ) -> list[AuditEntry]:
        """Return calls that may have changed something, newest first, refused ones too.

        Args:
            count: Entries at most.
            table: Only those about this table.
            caller: Only those of this caller.
        """
        parameters = {"count": count, "table": table, "caller": caller}
        answer = self._connection.call("GET", "/v1/audit", parameters=parameters)
        return decode_list(AuditEntry, answer, "entries")

    def jobs(self) -> list[Job]:
        """Return the jobs that run."""
        return decode_list(Job, self._connection.call("GET", "/v1/jobs"), "jobs")

    def cancel_job(self, attempt: str) -> None:
        """Take a running job back; the same files are not planned again for a while.

        A job of a request takes the key range of its tablet out of the request, which goes on
        elsewhere and ends `done_in_part`: `wait` raises.

        Args:
            attempt: As `jobs` tells it.
        """
        self._connection.call("POST", f"/v1/jobs/{quote(attempt, safe='')}/cancel")

    def backlog(self, table: str | None = None) -> list[Backlog]:
        """Return how many bytes are still to be rewritten, by table, the largest first.

        A table at rest has no line. Of more than 99 tables the last line, without a name, stands
        for those that have none.

        Args:
            table: Only of this one; None: of all.
        """
        parameters = None if table is None else {"table": table}
        found = self._connection.call("GET", "/v1/backlog", parameters=parameters)
        return decode_list(Backlog, found, "backlog")

    def owed_tablets(self, table: str, count: int = 100) -> list[OwedTablet]:
        """Return the tablets of a table in which most is still to be rewritten, the largest first.

        A tablet at rest is not among them.

        Args:
            table: Name of the table.
            count: At most so many.
        """
        found = self._connection.call(
            "GET", table_path(table, "backlog"), parameters={"count": count}
        )
        return decode_list(OwedTablet, found, "tablets")

    def backlog_history(self, table: str | None = None) -> list[BacklogPoint]:
        """Return how many bytes were still to be rewritten in the last hour, oldest first.

        A point every ten seconds; a coordinator that was restarted remembers nothing from before.

        Args:
            table: Of this one; None: of all together.
        """
        parameters = None if table is None else {"table": table}
        found = self._connection.call("GET", "/v1/backlog/history", parameters=parameters)
        return decode_list(BacklogPoint, found, "history")

    def queue(self, group: str | None = None, count: int = 100) -> list[PlannedJob]:
        """Return the jobs that wait, best first.

        Args:
            group: Of one compaction group; None: of all.
            count: Maximum number of entries.
        """
        parameters = {"group": group, "count": count}
        answer = self._connection.call("GET", "/v1/queue", parameters=parameters)
        return decode_list(PlannedJob, answer, "jobs")

    def explain(self, table: str, tablet: str | None = None) -> list[Explanation]:
        """Return why tablets are as they are: why jobs run, wait, or are not wanted.

        Args:
            table: Name of the table.
            tablet: One tablet, by its end; None: all (the first hundred).
        """
        answer = self._connection.call(
            "GET", table_path(table, "explain"), parameters={"tablet": tablet}
        )
        return decode_list(Explanation, answer, "tablets")

    def story(self, table: str, tablet: str) -> Story:
        """Return what has happened to a tablet since the coordinator started.

        It explains an incident after it is over. A restart of the coordinator begins it anew.

        Args:
            table: Name of the table.
            tablet: By its end.
        """
        answer = self._connection.call(
            "GET", table_path(table, "story"), parameters={"tablet": tablet}
        )
        return decode(Story, answer)

    def plan(self, table: str) -> Plan:
        """Return what would be planned for a table now; nothing is started."""
        return decode(Plan, self._connection.call("GET", table_path(table, "plan")))

    def history(self, table: str, count: int = 100) -> list[Finished]:
        """Return the newest finished attempts, newest first.

        Args:
            table: Name of the table.
            count: Maximum number of entries.
        """
        answer = self._connection.call(
            "GET", table_path(table, "history"), parameters={"count": count}
        )
        return decode_list(Finished, answer, "attempts")

    def compactors(self) -> list[Compactor]:
        """Return the compactors that the coordinator hears of."""
        answer = self._connection.call("GET", "/v1/compactors")
        return decode_list(Compactor, answer, "compactors")

    def drain(self, compactor: str) -> None:
        """Let a compactor finish what it holds and take nothing new."""
        self._connection.call("POST", f"/v1/compactors/{quote(compactor, safe='')}/drain")

    def stop_compactor(self, compactor: str, wait_max_s: float | None = None) -> None:
        """Let a compactor end its jobs, and end. Another one is started if its group needs it.

        Args:
            compactor: Name of the compactor.
            wait_max_s: Longest wait for its jobs; what still runs then is handed to others.
                None: `compactor.drain_timeout_s` of the service.
        """
        path = f"/v1/compactors/{quote(compactor, safe='')}/stop"
        parameters = {} if wait_max_s is None else {"wait_max_s": wait_max_s}
        self._connection.call("POST", path, parameters=parameters)

    def groups(self) -> list[Group]:
        """Return the compaction groups: queue, compactors, and how they are scaled."""
        return decode_list(Group, self._connection.call("GET", "/v1/groups"), "groups")

    def scale_group(self, group: str, compactors: int | None) -> None:
        """Set how many compactors a group has.

        Args:
            group: Name of the group.
            compactors: How many; None: as many as the settings and the work want.
        """
        path = f"/v1/groups/{quote(group, safe='')}/scale"
        if compactors is None:
            self._connection.call("DELETE", path)
        else:
            self._connection.call("PUT", path, body={"compactors": compactors})

    def pause_group(self, group: str) -> None:
        """Hand out no job of a compaction group; running ones go on."""
        self._connection.call("POST", f"/v1/groups/{quote(group, safe='')}/pause")

    def resume_group(self, group: str) -> None:
        """End a pause of a compaction group."""
        self._connection.call("POST", f"/v1/groups/{quote(group, safe='')}/resume")

    def replan(self, table: str) -> None:
        """Look at every tablet of a table anew, at once."""
        self._connection.call("POST", table_path(table, "replan"))

    def analyze(
        self, table: str, tablet: str | None = None, *, timeout_s: float | None = None
    ) -> list[LiveBytes]:
        """Have the live bytes of files counted, and return what is known of them.

        Args:
            table: Name of the table.
            tablet: One, by its end; None: every one of the table.
            timeout_s: Longest wait for the result; None: do not wait.

        Raises:
            UnavailableError: It was not done in time. It goes on.
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
        """Return what is live in tablets, as far as an analysis has counted it.

        Args:
            table: Name of the table.
            tablet: One, by its end; None: every one of the table.
        """
        parameters = {} if tablet is None else {"tablet": tablet}
        path = table_path(table, "live-bytes")
        answer = self._connection.call("GET", path, parameters=parameters)
        return decode_list(LiveBytes, answer, "tablets")

    def maintenance(self, table: str, tablet: str | None = None) -> TableMaintenance:
        """Return what could be done in tablets: gain, cost and memory, or why it is not done.

        Args:
            table: Name of the table.
            tablet: One, by its end; None: the first tablets of the table.
        """
        parameters = {} if tablet is None else {"tablet": tablet}
        path = table_path(table, "maintenance")
        return decode(TableMaintenance, self._connection.call("GET", path, parameters=parameters))

    def report_reads(self, table: str, tablets: Mapping[str, int]) -> None:
        """Count scans of tablets that did not go through the service.

        Args:
            table: Name of the table.
            tablets: End of a tablet → scans since the last call.
        """
        body = {"tablets": dict(tablets)}
        self._connection.call("POST", table_path(table, "reads"), body=body)

    def report_latency(self, table: str, latency_s: float, reads: int = 1) -> None:
        """Tell how long readers of a table have waited, so that rewrites leave them room.

        Args:
            table: Name of the table.
            latency_s: Average wait of these reads.
            reads: How many, since the last call.
        """
        body = {"tables": {table: {"reads": reads, "latency_s": latency_s}}}
        self._connection.call("POST", "/v1/reads", body=body)

    def control(self) -> Control:
        """Return what the controller reads and decides, and what each class of work gets."""
        return decode(Control, self._connection.call("GET", "/v1/control"))

    def trigger(self, table: str) -> Trigger:
        """Have the planner of a table asked now; return what it decides for each tablet.

        The planner may refuse. `compact` forces a run.

        Args:
            table: Name of the table.

        Raises:
            RefusedError: The table is not live, or its setting `triggers` lacks `admin`.
        """
        return decode(Trigger, self._connection.call("POST", table_path(table, "trigger")))

    def lift_quarantine(self, table: str, tablet: str | None = None) -> None:
        """Plan tablets again that were set aside after repeated failures.

        Args:
            table: Name of the table.
            tablet: One, by its end; None: every one of the table.
        """
        parameters = {} if tablet is None else {"tablet": tablet}
        path = table_path(table, "lift-quarantine")
        self._connection.call("POST", path, parameters=parameters)

    def lower_watermark(self, table: str, tablet: str, to: str | None = None) -> LoweredWatermark:
        """Let a tablet take rows again of versions at which tombstones were dropped.

        Args:
            table: Name of the table.
            tablet: By its end.
            to: The version up to which rows are still refused; None: none are.
        """
        parameters = {"tablet": tablet} | ({} if to is None else {"to": to})
        path = table_path(table, "lower-watermark")
        return decode(LoweredWatermark, self._connection.call("POST", path, parameters=parameters))

    def wait_until_at_rest(self, table: str, *, timeout_s: float = 300.0) -> None:
        """Return when nothing runs on a table and nothing would be planned.

        Args:
            table: Name of the table.
            timeout_s: Longest wait.

        Raises:
            UnavailableError: It did not come to rest in time.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            # One answer, not two: between two a waiting job may have become a running one.
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
    """The part of the client that is about bytes per second."""

    _connection: Connection

    def limits(self) -> list[Limit]:
        """Return the groups and volumes that have a limit, or under which something moves."""
        return decode_list(Limit, self._connection.call("GET", "/v1/limits"), "limits")

    def limit_group(self, group: str, limit: int | str | None) -> None:
        """Limit what the rewrites of a compaction group read and write together.

        Args:
            group: Name of the group.
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
