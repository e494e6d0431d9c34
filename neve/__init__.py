"""The door of Névé: a client for notebooks and programs.

    import neve

    client = neve.connect()                      # the stack of this machine, or NEVE_URL
    client.append("flights", arrow_table)
    client.compact("flights").wait(progress=True)
    print(client.scan("flights", columns=["tail", "arrived"]))

Importing this needs httpx and pyarrow, and nothing else of the project. In reading order:

    api               wire models: what client and gateway say to each other
    client            the client
    plugins           what authors of plug-ins import
    cli               the command line
    gateway           the HTTP API, in an actor
    import_survey     what a directory holds before it becomes a table
    recovery          check, sweep, rebuild, backup, restore
    offline           planners without a server
    offline_backlog   backlog trackers without a server
    simulate          days of compaction in seconds, without a server
    serve             `neve serve`: the service on a cluster that runs already
    local             the stack on one machine
    demo              `neve demo`
    service_settings  what a service can start with, and how settings are shown
    setting_values    settings of a table as a user writes them
    read              tables as frames of pandas, Polars, DuckDB and Spark
    row_reader        a process that reads rows of foreign files
    storage_trial     a process that tries a storage location
    release           the version
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
