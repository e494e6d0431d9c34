"""The tracker interface: bytes still to be rewritten in a tablet. Group `neve.trackers`.

The backlog is the number of bytes that a planner will have rewritten before it is done. Each
family of planners has its own estimate, taken from ScyllaDB's controller. A tracker holds one
tablet. Its caller reports files that are added and removed, and may read the backlog at any time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.model.file import DataFile
from common.model.table import TableSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialOutput:
    """A file that a running job or a writer has not finished."""

    size_bytes: int
    """Bytes written so far."""
    time_max_s: float = 0.0
    """Latest time of its rows, for trackers that work by windows."""
    level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnderWay:
    """Progress of a tablet's jobs. It changes between reads while the files stay the same."""

    read_bytes: Mapping[str, int] = field(default_factory=dict)
    """Path of an input → bytes of it that are rewritten. Values are limited to the file's size;
    paths that are not files of the tablet are ignored."""
    outputs: tuple[PartialOutput, ...] = ()
    now_s: float = 0.0


class BacklogTracker(Protocol):
    """The backlog of one tablet."""

    def add(self, file: DataFile) -> None:
        """Add a file, or replace the file with the same path."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; an unknown path is ignored."""
        ...

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes still to be rewritten, never below 0.

        The cost is proportional to the number of unfinished files, unless files were added or
        removed.
        """
        ...


class TrackerPlugin(Protocol):
    """Creates trackers. `option_names` and `setting_names` are as for planners."""

    option_names: frozenset[str]
    setting_names: frozenset[str]

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return a tracker for a tablet without files.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        ...
