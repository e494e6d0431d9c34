"""The dispatcher door: which service plans a tablet. Entry point group `neve.dispatchers`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.model.job import Kind
from common.model.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchParameters:
    """What a dispatcher may look at."""

    table: Table
    kind: Kind
    hints: Mapping[str, str] = field(default_factory=dict)
    """Execution hints of the user request; empty for SYSTEM."""
    services: tuple[str, ...] = ()
    """Names of the services that are configured."""


class Dispatcher(Protocol):
    """Chooses the service for a table, kind and hints."""

    def dispatch(self, parameters: DispatchParameters) -> str:
        """Return the name of a service."""
        ...
