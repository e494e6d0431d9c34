"""The public package of Névé: a client for notebooks and programs.

    import neve

    client = neve.connect()                      # the stack of this machine, or NEVE_URL
    client.append("flights", arrow_table)
    client.compact("flights").wait(progress=True)
    print(client.scan("flights", columns=["tail", "arrived"]))

The client is loaded on first use. It needs httpx and pyarrow, and no other part of the project. A
process that imports only `neve.api`, such as a compactor, loads neither. The modules, in reading
order:

    api                the values of the public API: the lowest layer, without imports
    client             the client
    plugins            public names for plug-in authors
    cli                the command line
    gateway            the HTTP API, in an actor
    console            web pages, rendered in the gateway
    import_survey      a survey of a directory before its import as a table
    recovery           check, sweep, rebuild, backup, restore
    offline            planners and backlog trackers without a server
    simulate           simulates days of compaction in seconds, without a server
    table_report       the page of `neve report`
    serve              `neve serve`: the service on an existing cluster
    local              the stack on one machine
    demo               `neve demo`
    service_settings   checks and displays the settings of a service
    setting_values     parses table settings as users write them
    read               tables as data frames of pandas, Polars, DuckDB and Spark
    child_process      work in a process of its own: rows of untrusted files, a test of a location
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neve.client import Client as Client
    from neve.client.connect import connect as connect
    from neve.client.errors import CallerError as CallerError
    from neve.client.errors import NeveError as NeveError
    from neve.client.errors import NotFoundError as NotFoundError
    from neve.client.errors import ProtocolError as ProtocolError
    from neve.client.errors import RefusedError as RefusedError
    from neve.client.errors import RequestFailedError as RequestFailedError
    from neve.client.errors import UnauthorizedError as UnauthorizedError
    from neve.client.errors import UnavailableError as UnavailableError
    from neve.client.errors import UnknownOutcomeError as UnknownOutcomeError
    from neve.client.http import new_call as new_call_id
    from neve.client.requests import Request as Request

    __version__: str

_HOMES = {
    "Client": "neve.client",
    "connect": "neve.client.connect",
    "new_call_id": "neve.client.http",
    "Request": "neve.client.requests",
}
"""Public name → its module. All other public names are in `neve.client.errors`."""

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


def __getattr__(name: str) -> Any:
    """Load the module of a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = _installed_version() if name == "__version__" else _loaded(name)
    return value


def _loaded(name: str) -> Any:
    module = import_module(_HOMES.get(name, "neve.client.errors"))
    return getattr(module, "new_call" if name == "new_call_id" else name)


def _installed_version() -> str:
    """Return the version of the package; `0+source` in a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("neve")
    except PackageNotFoundError:
        return "0+source"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
