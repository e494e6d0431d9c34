"""The client: everything that the service offers, over HTTP.

    client = neve.Client("http://127.0.0.1:8642", token="…")
    client.create_table("events", "s3://lake/events", example="s3://lake/events/a.parquet",
                        key=["id"], version_column="updated")
    client.add_files("events", ["a.parquet", "b.parquet"])
    client.wait_until_at_rest("events")

Every method raises `neve.NeveError` or one of its children. Imports httpx, pyarrow and
its own siblings, nothing else of the project.
"""

from types import TracebackType
from typing import Self

from neve.client_data import DataCalls
from neve.client_http import Connection
from neve.client_import import ImportCalls
from neve.client_limits import LimitCalls
from neve.client_operations import OperationCalls
from neve.client_recovery import RecoveryCalls
from neve.client_requests import RequestCalls
from neve.client_work import WorkCalls


class Client(
    DataCalls, WorkCalls, LimitCalls, RequestCalls, ImportCalls, OperationCalls, RecoveryCalls
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
    ) -> None:
        """Connect when something is asked.

        Args:
            url: Of the service.
            token: Bearer token.
            timeout_s: Longest wait for one answer.
            retry_s: How long a call that may be repeated is, while nobody answers; None:
                a minute for a service that has answered, else a few tries.
        """
        self._connection = Connection(url, token, timeout_s=timeout_s, retry_s=retry_s)

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
