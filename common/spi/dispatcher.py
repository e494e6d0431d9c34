"""The dispatcher interface: chooses the service of a tablet. Group `neve.dispatchers`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.model.job import Kind
from common.model.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchParameters:
    """The inputs of a dispatcher."""

    table: Table
    kind: Kind
    hints: Mapping[str, str] = field(default_factory=dict)
    """Hints of the user request; empty for SYSTEM."""
    services: tuple[str, ...] = ()
    """Names of the configured services."""


class Dispatcher(Protocol):
    """Chooses the service for a table, kind and hints."""

    def dispatch(self, parameters: DispatchParameters) -> str:
        """Return the name of a service."""
        ...
