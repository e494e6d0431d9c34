"""The backlog of planners without a tracker: a constant, or 0, regardless of the files."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.model.file import DataFile
from common.model.table import TableSettings
from common.spi.options import option, option_names, read_options
from common.spi.tracker import BacklogTracker, WorkUnderWay


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBacklogOptions:
    """The constant backlog."""

    backlog_bytes: int = option(0, at_least=0)


class FixedTracker:
    """A tracker with a constant backlog."""

    def __init__(self, backlog_bytes: int = 0) -> None:
        self._backlog_bytes = backlog_bytes

    def add(self, file: DataFile) -> None:
        """Change nothing."""

    def remove(self, path: str) -> None:
        """Change nothing."""

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the constant."""
        return float(self._backlog_bytes)


class FixedTrackers:
    """Factory of trackers with the option `backlog_bytes` as backlog."""

    option_names = option_names(FixedBacklogOptions)
    setting_names: frozenset[str] = frozenset()

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files.

        Raises:
            ConfigError: An option is unknown or invalid.
        """
        found = read_options(FixedBacklogOptions, "tracker fixed", options)
        return FixedTracker(found.backlog_bytes)


class NullTrackers(FixedTrackers):
    """Factory of trackers with backlog 0."""

    option_names: frozenset[str] = frozenset()

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files.

        Raises:
            ConfigError: An option is given.
        """
        read_options(_NoOptions, "tracker none", options)
        return FixedTracker()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoOptions:
    """No options."""
