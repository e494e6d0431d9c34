"""The door of Névé: a client for notebooks and programs.

    import neve

    client = neve.connect()                      # the stack of this machine, or NEVE_URL
    client.append("flights", arrow_table)
    client.compact("flights").wait(progress=True)
    print(client.scan("flights", columns=["tail", "arrived"]))

Importing this needs httpx and pyarrow, and nothing else of the project.
"""

from neve.client import Client
from neve.client.connect import connect
from neve.client.errors import (
    CallerError,
    NeveError,
    NotFoundError,
    ProtocolError,
    RefusedError,
    RequestFailedError,
    UnauthorizedError,
    UnavailableError,
    UnknownOutcomeError,
)
from neve.client.http import new_call as new_call_id
from neve.client.requests import Request
from neve.release import __version__

__all__ = [
    "CallerError",
    "Client",
    "NeveError",
    "NotFoundError",
    "ProtocolError",
    "RefusedError",
    "Request",
    "RequestFailedError",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownOutcomeError",
    "__version__",
    "connect",
    "new_call_id",
]
