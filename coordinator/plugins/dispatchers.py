"""The simple dispatcher: a table's service, or a service dedicated to a kind or type of work.

Services are found by name. A table with the service `tidy` uses the first configured service of
this list:

    SYSTEM                      tidy-system, tidy
    USER                        tidy-user, tidy
    USER, compaction_type=big   tidy-user-big, tidy-user, tidy

The hint `service=<name>` of a request names a configured service directly.
"""

from collections.abc import Iterator

from common.spi.planner import DispatchParameters

TYPE_HINT = "compaction_type"
SERVICE_HINT = "service"


class SimpleDispatcher:
    """Chooses a service by the table's setting, the kind, and the request's hints."""

    def dispatch(self, parameters: DispatchParameters) -> str:
        """Return the most specific service that is configured, or the table's own."""
        services = parameters.services
        chosen = (name for name in _names(parameters) if name in services)
        return next(chosen, parameters.table.settings.service)


def _names(parameters: DispatchParameters) -> Iterator[str]:
    """Yield names of services, the most specific first."""
    hints = parameters.hints
    by_kind = f"{parameters.table.settings.service}-{parameters.kind.value.lower()}"
    if SERVICE_HINT in hints:
        yield hints[SERVICE_HINT]
    if TYPE_HINT in hints:
        yield f"{by_kind}-{hints[TYPE_HINT]}"
    yield by_kind
