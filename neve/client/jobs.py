"""Jobs: running and finished ones, and the activity of tables."""

from __future__ import annotations

from urllib.parse import quote

from neve import api
from neve.client.http import Connection, decode, decode_list
from neve.client.tables import table_path


class JobCalls:
    """Client methods for jobs."""

    _connection: Connection

    def jobs(self) -> list[api.Job]:
        """Return the running jobs."""
        return decode_list(api.Job, self._connection.call("GET", "/v1/jobs"), "jobs")

    def cancel_job(self, attempt: str) -> None:
        """Cancel a running job; its files are not planned again for a while.

        If the job belongs to a request, the key range of its tablet leaves the request. The
        request continues in its other tablets and ends `done_in_part`, so that `wait` raises.

        Args:
            attempt: Id of the attempt, from `jobs`.
        """
        self._connection.call("POST", f"/v1/jobs/{quote(attempt, safe='')}/cancel")

    def cancel_queued_job(self, job: str) -> None:
        """Cancel a queued or paused job; its files are not planned again for a while.

        Args:
            job: Id of the job, from `queue`.
        """
        self._connection.call("DELETE", f"/v1/queue/{quote(job, safe='')}")

    def pause_job(self, job: str) -> None:
        """Pause a queued job, until `resume_job` or until one of its files is replaced.

        Args:
            job: Id of the job, from `queue`.
        """
        self._connection.call("POST", f"/v1/queue/{quote(job, safe='')}/pause")

    def resume_job(self, job: str) -> None:
        """Queue a paused job again, as a new one.

        Args:
            job: Id of the job, from `queue`.
        """
        self._connection.call("POST", f"/v1/queue/{quote(job, safe='')}/resume")

    def activity(self) -> list[api.TableActivity]:
        """Return the tables with queued or running jobs, most bytes first."""
        return decode_list(
            api.TableActivity, self._connection.call("GET", "/v1/activity"), "tables"
        )

    def days(self, table: str, count: int = 7) -> api.TableDays:
        """Return daily sums of the finished attempts of a table: jobs, bytes, files, time, rows.

        Days are those of UTC; a day without attempts is missing.

        Args:
            table: Name of the table.
            count: Maximum number of days up to today, up to 400.
        """
        path = table_path(table, "days")
        return decode(
            api.TableDays, self._connection.call("GET", path, parameters={"count": count})
        )

    def history(self, table: str, count: int = 100) -> list[api.Finished]:
        """Return the most recently finished attempts, newest first.

        Args:
            table: Name of the table.
            count: Maximum number of entries.
        """
        answer = self._connection.call(
            "GET", table_path(table, "history"), parameters={"count": count}
        )
        return decode_list(api.Finished, answer, "attempts")
