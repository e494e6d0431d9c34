"""The client: everything that the service offers, over HTTP.

    client = neve.Client("http://127.0.0.1:8642", token="…")
    client.create_table("events", "s3://lake/events", example="s3://lake/events/a.parquet",
                        key=["id"], version_column="updated")
    client.add_files("events", ["a.parquet", "b.parquet"])
    client.wait_until_at_rest("events")

`Client` combines the groups of calls below. Every method raises `neve.NeveError` or a subclass.
The package imports httpx, pyarrow and `neve.api`, and nothing else of the project.

    connect       find the service: arguments, environment, or the local stack
    http          one call: token, call id, retries, and decoding of the answer
    errors        exceptions, grouped by who must act
    tables        create, describe, change, drop, pause
    rows          add, append, files, scan
    writer        many small writes: batches of rows, sent in the background
    arrow         rows as Arrow data; loads pyarrow, so it is imported on first use
    imports       import and export
    requests      compactions: submit, follow, wait, cancel
    tablets       explain, story, live bytes, quarantine, watermarks, splits and merges
    jobs          running and finished jobs, activity of tables
    compactors    compactors, groups, scaling, limits on bytes per second
    planning      queue, plan, backlog, triggers, maintenance
    control       state of the controller; reports of read latency
    access        the audit
    service       status and settings
    recovery      fsck, gc, rebuild, backup, restore

A call: a method builds a body of `neve.api` → `Connection` sends it, and retries repeatable calls
that got no answer → a problem becomes an exception → JSON becomes a value of `neve.api`.
"""

from typing import Self

from neve.client.access import AccessCalls
from neve.client.compactors import CompactorCalls, LimitCalls
from neve.client.control import ControlCalls
from neve.client.http import Connection
from neve.client.imports import ImportCalls
from neve.client.jobs import JobCalls
from neve.client.planning import PlanningCalls
from neve.client.recovery import RecoveryCalls
from neve.client.requests import RequestCalls
from neve.client.rows import RowCalls
from neve.client.service import ServiceCalls
from neve.client.tables import TableCalls
from neve.client.tablets import SplitMergeCalls, TabletCalls


class Client(
    TableCalls,
    TabletCalls,
    SplitMergeCalls,
    RowCalls,
    ImportCalls,
    RequestCalls,
    JobCalls,
    CompactorCalls,
    LimitCalls,
    PlanningCalls,
    ControlCalls,
    AccessCalls,
    RecoveryCalls,
    ServiceCalls,
):
    """A client of one Névé service; safe to share between threads.

    A write carries an id. The client sends the same id again when the connection breaks,
    so that a repeated `add_files` or `append` takes effect once.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 60.0,
        retry_s: float | None = None,
        authorities: str | None = None,
        certificate: str | None = None,
    ) -> None:
        """Create a client; it connects on the first call.

        Args:
            url: URL of the service.
            token: Bearer token.
            timeout_s: Longest wait for one answer.
            retry_s: How long repeatable calls are retried while the service does not answer;
                None: a minute if the service has answered before, otherwise a few tries.
            authorities: PEM file of the certificate authorities to trust; None: the default
                trust store.
            certificate: PEM file of a client certificate and its key.

        Raises:
            CallerError: The URL is invalid, or a file cannot be used.
        """
        self._connection = Connection(
            url,
            token,
            timeout_s=timeout_s,
            retry_s=retry_s,
            authorities=authorities,
            certificate=certificate,
        )

    @property
    def url(self) -> str:
        """URL of the service."""
        return self._connection.url

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
