"""The configurer interface: how a job's outputs are written. Group `neve.configurers`.

A configurer is pure: same parameters, same result; no clock, no I/O, no randomness.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.model.file import DataFile
from common.model.job import Kind
from common.model.request import OutputSpec
from common.model.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParameters:
    """The inputs of a configurer, for one job."""

    table: Table
    kind: Kind
    inputs: tuple[DataFile, ...]
    hints: Mapping[str, str] = field(default_factory=dict)
    """Hints of the user request; empty for SYSTEM."""

    @property
    def input_bytes(self) -> int:
        """Total bytes of the inputs."""
        return sum(file.size_bytes for file in self.inputs)


class OutputConfigurer(Protocol):
    """Chooses codec and row groups for a job; its options are a setting of the table."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse missing, unknown or wrong options.

        Raises:
            RequestError: Names the option and what was expected.
        """
        ...

    def configure(self, parameters: OutputParameters) -> OutputSpec:
        """Return settings that differ from the table's; None means the table's setting."""
        ...
