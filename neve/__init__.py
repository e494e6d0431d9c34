"""The door of Névé: a client for notebooks and programs.

    import neve

    client = neve.connect()                      # the stack of this machine, or NEVE_URL
    client.append("flights", arrow_table)
    print(client.scan("flights", columns=["tail", "arrived"]))

Importing this needs httpx and pyarrow, and nothing else of the project.
"""

from neve.client import Client
from neve.client_connect import connect
from neve.client_errors import (
    CallerError,
    NeveError,
    NotFoundError,
    ProtocolError,
    RefusedError,
    UnauthorizedError,
    UnavailableError,
    UnknownOutcomeError,
)

__all__ = [
    "CallerError",
    "Client",
    "NeveError",
    "NotFoundError",
    "ProtocolError",
    "RefusedError",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownOutcomeError",
    "connect",
]
