"""Planning: queue, plan, backlog, triggers and maintenance."""

from __future__ import annotations

import time  # noqa: TID251  the client may import no clock of the project
from collections.abc import Mapping, Sequence

from neve import api
from neve.client.errors import UnavailableError
from neve.client.http import Connection, decode, decode_list
from neve.client.tables import table_path

REST_POLL_S = 0.2


class PlanningCalls:
    """Client methods for planned work."""

    _connection: Connection

    def queue(self, group: str | None = None, count: int = 100) -> list[api.PlannedJob]:
        """Return the waiting jobs of each group, in the order in which they start.

        Args:
            group: Return the jobs of this compaction group; None: of all groups.
            count: Maximum number of entries.
        """
        answer = self._connection.call(
            "GET", "/v1/queue", parameters={"group": group, "count": count}
        )
        return decode_list(api.PlannedJob, answer, "jobs")

    def plan(
        self,
        table: str,
        *,
        tablets: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        count: int = 100,
    ) -> api.Plan:
        """Return what would be planned for a table now; start and change nothing.

        Args:
            table: Name of the table.
            tablets: Ends of at most 100 tablets; empty: every tablet.
            settings: Settings of the table to plan with instead of its own, by name.
            count: Number of jobs, of files that are left out, and of intervals, in the answer at
                most; its totals count all.
        """
        tried = [f"{name}={value}" for name, value in (settings or {}).items()]
        parameters = {"tablet": list(tablets) or None, "setting": tried or None, "count": count}
        path = table_path(table, "plan")
        return decode(api.Plan, self._connection.call("GET", path, parameters=parameters))

    def simulate(
        self,
        specification: str = "",
        *,
        table: str = "",
        planners: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        days: float | None = None,
        seed: int | None = None,
    ) -> api.Simulation:
        """Simulate days of compaction in the service, and compare variants; nothing is changed.

        Give a specification or a table. The simulation may take a minute of processor time, and one
        runs at a time. `neve simulate` simulates on this machine, without these limits.

        Args:
            specification: TOML as of `neve simulate --example`; it names no files.
            table: Name of a table, which is simulated from its present state.
            planners: Planners to compare.
            settings: With `table`: changed settings of the compared variants, by name.
            days: Simulated days; None: as the specification says, and 7 for a table.
            seed: Random seed; None: as the specification says.
        """
        body = {
            "specification": specification,
            "table": table,
            "planners": list(planners),
            "settings": dict(settings or {}),
            "days": days,
            "seed": seed,
        }
        return decode(api.Simulation, self._connection.call("POST", "/v1/simulations", body=body))

    def shadow_plan(self, table: str) -> api.ShadowPlan:
        """Compare the planner of a table with its shadow planner, which starts no jobs.

        Raises:
            RequestError: The table has no setting `shadow_planner`.
        """
        return decode(
            api.ShadowPlan, self._connection.call("GET", table_path(table, "plan/shadow"))
        )

    def replan(self, table: str) -> None:
        """Plan every tablet of a table again, at once."""
        self._connection.call("POST", table_path(table, "replan"))

    def backlog(self, table: str | None = None) -> list[api.Backlog]:
        """Return the bytes that are still to be rewritten, by table, largest first.

        A table at rest has no entry. With more than 99 tables, the last entry has no name and
        stands for the tables without an entry of their own.

        Args:
            table: Return only this table; None: all tables.
        """
        answer = self._connection.call("GET", "/v1/backlog", parameters={"table": table})
        return decode_list(api.Backlog, answer, "backlog")

    def owed_tablets(self, table: str, count: int = 100) -> list[api.OwedTablet]:
        """Return the tablets of a table with the largest backlog, largest first.

        A tablet at rest has no entry.

        Args:
            table: Name of the table.
            count: Maximum number of tablets.
        """
        answer = self._connection.call(
            "GET", table_path(table, "backlog"), parameters={"count": count}
        )
        return decode_list(api.OwedTablet, answer, "tablets")

    def tablet_backlog_history(self, table: str, count: int = 20) -> list[api.TabletBacklogHistory]:
        """Record the tablets with the largest backlog; return all recorded ones, largest first.

        The first call starts the recording. Later ones have a point for every ten seconds since
        then, for an hour at most. Recording ends an hour after the last call.

        Args:
            table: Name of the table.
            count: Maximum number of tablets to record, up to 100 in all.
        """
        answer = self._connection.call(
            "GET", table_path(table, "backlog/history"), parameters={"count": count}
        )
        return decode_list(api.TabletBacklogHistory, answer, "tablets")

    def maintenance(self, table: str, tablet: str | None = None) -> api.TableMaintenance:
        """Return possible maintenance of tablets: gain, cost and memory, or why it is not done.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: the first tablets of the table.
        """
        path = table_path(table, "maintenance")
        return decode(
            api.TableMaintenance, self._connection.call("GET", path, parameters={"tablet": tablet})
        )

    def maintain(
        self, table: str, operation: str, *, dry_run: bool = False, files: int | None = None
    ) -> api.LakeRun:
        """Run a maintenance operation of a lake table once, or show what it would do.

        A vacuum only looks for files at first, and deletes them after the grace, unless a version
        of the table names them by then.

        Args:
            table: Name of the lake table.
            operation: `checkpoint`, `log-cleanup`, `vacuum`; `expire-snapshots`, `orphan-files`,
                `manifests`.
            dry_run: Change nothing.
            files: Delete at most so many files; None: as the table's settings say.

        Raises:
            RefusedError: The table cannot be maintained so; the message says why.
        """
        parameters = {"dry_run": dry_run or None, "files": files}
        path = table_path(table, f"maintenance/{operation}")
        return decode(api.LakeRun, self._connection.call("POST", path, parameters=parameters))

    def trigger(self, table: str, tablet: str | None = None) -> api.Trigger:
        """Run the planner of a table now, and return its decision for each tablet.

        The planner may decide against a job; use `compact` to force one.

        Args:
            table: Name of the table.
            tablet: One tablet, identified by its end; None: all tablets of the table.

        Raises:
            RefusedError: The table is not live, or its setting `triggers` lacks `admin`.
        """
        parameters = {} if tablet is None else {"tablet": tablet}
        path = table_path(table, "trigger")
        return decode(api.Trigger, self._connection.call("POST", path, parameters=parameters))

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
