"""The backlog of leveled compaction, after ScyllaDB.

Level 0 has the backlog of size-tiered compaction of its files. Each higher level has a target size,
a tenth of the next level's; the highest level holds the rest. Bytes above a level's target move up
and rewrite the overlapping data, up to ten files of the next level. They then count as part of the
next level and may move on.

    backlog += excess x min(10, ceil(bytes of the next level / bytes of a file))

Bytes that a job has read no longer count on their level; written bytes count on the output's level.
A level with a negative size counts as empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from common.model.file import DataFile
from common.spi.options import of_table, option
from common.spi.tracker import PartialOutput, WorkUnderWay
from coordinator.plugins.planners.leveled import LEVEL_MAX, level_of
from coordinator.plugins.trackers.size_tiered import (
    SizeTieredBacklogOptions,
    TierTrackers,
    tier_tracker,
)

SHARE_OF_HIGHEST = 1.111
"""Size of a full tree relative to its highest level, if each level is a tenth of the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeveledBacklogOptions(SizeTieredBacklogOptions):
    """Options of the tracker; the tier options apply to level 0."""

    max_file_bytes: int = of_table("target_bytes", at_least=1)
    fan_out: int = option(10, at_least=2)


def leveled_backlog_bytes(
    levels: Mapping[int, int], max_file_bytes: int, fan_out: int = 10
) -> float:
    """Return the backlog of the levels, without level 0's own merges.

    Args:
        levels: Level → bytes, including the progress of running jobs.
        max_file_bytes: Maximum size of one file.
        fan_out: Size ratio of two adjacent levels.
    """
    held = {level: size for level, size in levels.items() if size > 0}
    if not held:
        return 0.0
    highest = max(held)
    most_bytes = ceil(sum(held.values()) / SHARE_OF_HIGHEST)
    backlog = 0.0
    for level in range(highest):
        target = max(ceil(most_bytes / fan_out ** (highest - level)), max_file_bytes)
        excess = held.get(level, 0) - target
        if excess > 0:
            above = held.get(level + 1, 0)
            backlog += excess * min(fan_out, ceil(above / max_file_bytes))
            held[level + 1] = above + excess
    return backlog


class LeveledTracker:
    """Backlog of one leveled tablet."""

    def __init__(self, options: LeveledBacklogOptions) -> None:
        self._options = options
        self._arrived = tier_tracker(options)
        """Tracker of level 0."""
        self._files: dict[str, tuple[int, int]] = {}
        """Path → level and bytes."""
        self._levels: dict[int, int] = {}

    def add(self, file: DataFile) -> None:
        """Add a file to the level in its tag."""
        self.remove(file.path)
        level = level_of(file)
        self._files[file.path] = (level, file.size_bytes)
        self._levels[level] = self._levels.get(level, 0) + file.size_bytes
        if level == 0:
            self._arrived.add(file)

    def remove(self, path: str) -> None:
        """Remove a file."""
        level, size_bytes = self._files.pop(path, (0, 0))
        if size_bytes:
            self._levels[level] -= size_bytes
        self._arrived.remove(path)

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        levels = dict(self._levels)
        for path, read_bytes in work.read_bytes.items():
            level, size_bytes = self._files.get(path, (0, 0))
            if size_bytes:
                levels[level] -= min(max(read_bytes, 0), size_bytes)
        arrived = list[PartialOutput]()
        for output in work.outputs:
            level = min(max(output.level, 0), LEVEL_MAX)
            levels[level] = levels.get(level, 0) + output.size_bytes
            if level == 0:
                arrived.append(output)
        own = WorkUnderWay(read_bytes=work.read_bytes, outputs=tuple(arrived), now_s=work.now_s)
        options = self._options
        return self._arrived.backlog_bytes(own) + leveled_backlog_bytes(
            levels, options.max_file_bytes, options.fan_out
        )


class LeveledTrackers(TierTrackers[LeveledBacklogOptions]):
    """Factory of trackers for leveled compaction; see the module."""

    def __init__(self) -> None:
        """Create the factory."""
        super().__init__("leveled", LeveledBacklogOptions, LeveledTracker)
