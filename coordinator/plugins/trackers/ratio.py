"""The backlog of the ratio planner: the bytes that it reads until no job is left.

There is no closed formula. The tracker runs the planner's rule on the file sizes until no set
qualifies, and assumes that an output is as large as the sum of its inputs. Bytes that running jobs
have read are subtracted.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from common.model.file import DataFile
from common.model.table import TableSettings
from common.spi.options import option_names, settings_of
from common.spi.tracker import BacklogTracker, WorkUnderWay
from coordinator.plugins.planners.ratio import RatioRule, SizedFile, find_set, rule_of


def bytes_until_rest(sizes: Iterable[tuple[int, str]], ratio: float, max_files: int) -> int:
    """Return how many bytes merges read until no set of files qualifies.

    Args:
        sizes: Size in bytes and path of each file.
        ratio: The planner's ratio.
        max_files: Maximum number of input files of a job.
    """
    pool: list[SizedFile] = sorted((size, 0, path) for size, path in sizes)
    owed_bytes = merges = 0
    while chosen := find_set(pool, ratio, max_files):
        merged = sum(size for size, _, _ in chosen)
        start = bisect_left(pool, chosen[0])
        del pool[start : start + len(chosen)]
        merges += 1
        insort(pool, (merged, merges, ""))
        owed_bytes += merged
    return owed_bytes


class RatioTracker:
    """Backlog of one tablet under the ratio planner."""

    def __init__(self, rule: RatioRule) -> None:
        self._rule = rule
        self._sizes: dict[str, int] = {}
        self._owed_bytes: int | None = 0
        """Cached backlog; None after files were added or removed."""

    def add(self, file: DataFile) -> None:
        """Add a file."""
        self._sizes[file.path] = file.size_bytes
        self._owed_bytes = None

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self._sizes.pop(path, None) is not None:
            self._owed_bytes = None

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        if self._owed_bytes is None:
            sizes = ((size, path) for path, size in self._sizes.items())
            self._owed_bytes = bytes_until_rest(sizes, self._rule.ratio, self._rule.max_files)
        done_bytes = sum(
            min(max(read_bytes, 0), self._sizes.get(path, 0))
            for path, read_bytes in work.read_bytes.items()
        )
        return float(max(0, self._owed_bytes - done_bytes))


class RatioTrackers:
    """Factory of trackers for the ratio planner; see the module."""

    option_names = option_names(RatioRule)
    setting_names = settings_of(RatioRule)

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files.

        Raises:
            ConfigError: An option is unknown or invalid.
        """
        return RatioTracker(rule_of(settings, options))
