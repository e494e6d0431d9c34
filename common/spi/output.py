"""The configurer door: how the outputs of a job are written. Entry points `neve.configurers`.

A configurer is pure: same parameters, same answer; no clock, no I/O, no randomness.
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
    """What a configurer may look at, for one job."""

    table: Table
    kind: Kind
    inputs: tuple[DataFile, ...]
    hints: Mapping[str, str] = field(default_factory=dict)
    """Of the user request; empty for SYSTEM."""

    @property
    def input_bytes(self) -> int:
        """Bytes of all inputs."""
        return sum(file.size_bytes for file in self.inputs)


class OutputConfigurer(Protocol):
    """Chooses codec and row groups by what is merged; its options are the table's setting."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse options that are missing, unknown or wrong.

        Raises:
            RequestError: Names the option, and what was expected.
        """
        ...

    def configure(self, parameters: OutputParameters) -> OutputSpec:
        """Return what differs from the table's settings; None stands for no difference."""
        ...
