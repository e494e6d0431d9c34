"""The client: everything that the service offers, over HTTP.

    client = neve.Client("http://127.0.0.1:8642", token="…")
    client.create_table("events", "s3://lake/events", example="s3://lake/events/a.parquet",
                        key=["id"], version_column="updated")
    client.add_files("events", ["a.parquet", "b.parquet"])
    client.wait_until_at_rest("events")

`Client` is composed of the groups of calls below. Every method raises `neve.NeveError` or one of
its children. Imports httpx, pyarrow, `neve.api` and its own modules, nothing else of the project.

    connect       where the service is: arguments, environment, or the stack of this machine
    http          one call: token, call id, retries, and its answer as a wire model
    errors        what goes wrong for a caller, by who must act
    tables        create, describe, change, drop, pause
    rows          add, append, files, scan
    dictionaries  rows as dictionaries, made a table without losing anything
    imports       import and export
    requests      compactions: ask, follow, wait, cancel
    split_merge   splits and merges of tablets
    work          status, jobs, queue, plan, explain, history, compactors, limits
    recovery      fsck, gc, rebuild, backup, restore

A call: a method builds a body of `neve.api` → `Connection` sends it, again if it is repeatable
and nobody answered → a problem becomes an exception → JSON becomes a value of `neve.api`.
"""

from types import TracebackType
from typing import Self

from neve.client.http import Connection
from neve.client.imports import ImportCalls
from neve.client.recovery import RecoveryCalls
from neve.client.requests import RequestCalls
from neve.client.rows import RowCalls
from neve.client.split_merge import SplitMergeCalls
from neve.client.work import LimitCalls, WorkCalls


class Client(
    RowCalls, WorkCalls, LimitCalls, RequestCalls, ImportCalls, SplitMergeCalls, RecoveryCalls
):
    """A connection to one Névé service; may be used by several threads.

    A write carries an id that is sent again when the connection breaks, so that a
    repeated `add_files` or `append` counts once.
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
        """Connect when something is asked.

        Args:
            url: Of the service.
            token: Bearer token.
            timeout_s: Longest wait for one answer.
            retry_s: How long a call that may be repeated is, while nobody answers; None:
                a minute for a service that has answered, else a few tries.
            authorities: File of the authorities (PEM) that the service's certificate must be of;
                None: those that are known everywhere.
            certificate: File of a certificate and its key (PEM) to show to the service.

        Raises:
            CallerError: The URL is none, or a file cannot be used.
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
        """Where the service is."""
        return self._connection.url

    def close(self) -> None:
        """Give the connections back."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
