"""The tracker door: how many bytes are still to be rewritten in a tablet. Group `neve.trackers`.

The backlog is what a planner will have rewritten when it wants nothing any more, in bytes. Each
family of planners has its own estimate; ScyllaDB's controller is where they come from. A tracker
holds one tablet. It is told of files that come and go, and is read as often as anybody likes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.model.file import DataFile
from common.model.table import TableSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialOutput:
    """A file that is being written, by a job under way or by a writer."""

    size_bytes: int
    """Written so far."""
    time_max_s: float = 0.0
    """Latest time of its rows, for trackers that go by windows."""
    level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnderWay:
    """How far the jobs of a tablet are. It changes from read to read, and the files do not."""

    read_bytes: Mapping[str, int] = field(default_factory=dict)
    """Path of an input → bytes of it that are rewritten. More than its size counts as all of it;
    paths that are no files of the tablet count nothing."""
    outputs: tuple[PartialOutput, ...] = ()
    now_s: float = 0.0


class BacklogTracker(Protocol):
    """The backlog of one tablet."""

    def add(self, file: DataFile) -> None:
        """Note a file; one of the same path is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Forget a file; one that is not known is ignored."""
        ...

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes still to be rewritten, never below 0.

        Costs as much as the files under way are many, unless files came or went.
        """
        ...


class TrackerPlugin(Protocol):
    """Makes trackers. `option_names` and `setting_names` are as for planners."""

    option_names: frozenset[str]
    setting_names: frozenset[str]

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        ...
