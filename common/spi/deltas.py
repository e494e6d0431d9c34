"""The base of a tablet and its deltas, for the planner `delta` and for `neve ops`. Pure.

    files ──► base: the largest non-overlapping files ──► sets: base files and their deltas
              deltas: all other files

In Apache Kudu a row set has base data and separate delta stores. Here updates and deletes are
rows of newer, smaller files. Size and keys alone decide which file is a delta, so no state is
needed, and the files of any other planner can be used.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.model.file import DataFile, total_bytes
from common.model.outcome import TabletStatistics

DELTA_TAG = "delta"
"""Tag of the outputs of delta compactions; its value is the kind of compaction."""
MINOR, MAJOR = "minor", "major"

Span = tuple[bytes, bytes]
"""The smallest and the greatest key."""
_ABOVE = b"\xff" * 64


def span_of(files: Iterable[DataFile]) -> Span:
    """Return the smallest and greatest key of files; a file with unknown keys spans all keys."""
    spans = [
        (file.key_min or b"", _ABOVE if file.key_max is None else file.key_max) for file in files
    ]
    return min(low for low, _ in spans), max(high for _, high in spans)


def overlapping_sets(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Group files into sets; files that overlap, directly or through others, are in the same."""
    sets: list[list[DataFile]] = []
    end = b""
    for file in sorted(files, key=lambda file: (*span_of([file]), file.path)):
        low, high = span_of([file])
        if sets and low <= end:
            sets[-1].append(file)
            end = max(end, high)
        else:
            sets.append([file])
            end = high
    return sets


@dataclass(frozen=True, slots=True)
class DeltaSet:
    """Files whose key ranges overlap, directly or through other files."""

    base: tuple[DataFile, ...]
    """Non-overlapping files, ascending by key."""
    deltas: tuple[DataFile, ...]
    """Other files, oldest first."""

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files."""
        return (*self.base, *self.deltas)

    @property
    def base_bytes(self) -> int:
        """Bytes of the base."""
        return total_bytes(self.base)

    @property
    def delta_bytes(self) -> int:
        """Bytes of the deltas."""
        return total_bytes(self.deltas)

    def updated_share(
        self, statistics: TabletStatistics | None = None, columns: Sequence[str] = ()
    ) -> float:
        """Return the number of updated or deleted base rows, per row of the base.

        An analysis has counted the dead rows of the base. All rows of later deltas are added, as
        if each of them changed one row of the base.

        Args:
            statistics: Statistics of the tablet; None: columns were not analysed.
            columns: Count only updates that change one of these columns, as far as known.

        Returns:
            0 if there is no base or no delta. The value may exceed 1.
        """
        if not self.base or not self.deltas:
            return 0.0
        counted = [file for file in self.base if file.live_bytes is not None]
        later = self.deltas
        dead_rows = 0.0
        if len(counted) == len(self.base):
            version = min(file.measured_version or 0 for file in counted)
            later = tuple(f for f in self.deltas if (f.measured_version or -1) < version)
            dead_rows = sum(_dead_rows(file) for file in counted)
        base_rows = sum(file.rows for file in self.base)
        if not base_rows:
            return self.delta_bytes / max(1, self.base_bytes)
        updated = (dead_rows + sum(file.rows for file in later)) / base_rows
        return updated * changed_share(statistics, columns)


def changed_share(statistics: TabletStatistics | None, columns: Sequence[str]) -> float:
    """Return the share of updates that change one of some columns; 1 if it was not measured.

    Of several columns the most frequently changed one counts, because they may change together.
    """
    if statistics is None or not columns:
        return 1.0
    shares = dict(statistics.changed_shares)
    if not all(name in shares for name in columns):
        return 1.0
    return max(shares[name] for name in columns)


def _dead_rows(file: DataFile) -> float:
    live = file.size_bytes if file.live_bytes is None else min(file.live_bytes, file.size_bytes)
    return file.rows * (1 - live / file.size_bytes) if file.size_bytes else 0.0


def delta_sets(files: Iterable[DataFile]) -> list[DeltaSet]:
    """Group the base files and deltas of a tablet into sets, ascending by key.

    Files are visited by descending size, and equal sizes by age. A file that overlaps no base
    file becomes a base file. All others are deltas, and so are files with unknown keys.

    Args:
        files: Files of a table with a key, in any order.
    """
    base, starts = list[DataFile](), list[bytes]()
    deltas = list[DataFile]()
    for file in sorted(files, key=lambda f: (-f.size_bytes, f.added_at_s, f.path)):
        low, high = span_of([file])
        at = bisect_left(starts, low)
        before = at == 0 or span_of([base[at - 1]])[1] < low
        ends_before_next = at == len(base) or high < starts[at]
        if file.key_min is None or file.key_max is None or not (before and ends_before_next):
            deltas.append(file)
        else:
            base.insert(at, file)
            starts.insert(at, low)
    return _sets(base, deltas)


def _sets(base: Sequence[DataFile], deltas: Sequence[DataFile]) -> list[DeltaSet]:
    base_paths = {file.path for file in base}
    return [_set_of(files, base_paths) for files in overlapping_sets([*base, *deltas])]


def _set_of(files: Sequence[DataFile], base: set[str]) -> DeltaSet:
    oldest = sorted(
        (file for file in files if file.path not in base), key=lambda f: (f.added_at_s, f.path)
    )
    return DeltaSet(tuple(file for file in files if file.path in base), tuple(oldest))


def within_reach(base: Sequence[DataFile], span: Span) -> Sequence[DataFile]:
    """Return the base files that have keys in a range.

    Args:
        base: Non-overlapping files, ascending by key.
        span: The range, both ends included.
    """
    starts, ends = [file.key_min or b"" for file in base], [file.key_max or b"" for file in base]
    return base[bisect_left(ends, span[0]) : bisect_right(starts, span[1])]


# ---- Apache Kudu's scores of delta compactions


STORES_UPPER = 1000
"""Number of delta stores at which a minor delta compaction gets the full score."""
MAJOR_RATIO_MIN = 0.1
"""Ratio of updates to base below which a major delta compaction scores 0."""


def minor_delta_score(stores: int) -> float:
    """Return the score of merging the delta stores of a row set, from 0 to 1."""
    return min(1.0, stores / STORES_UPPER) if stores > 1 else 0.0


def major_delta_score(redo_bytes: float, base_bytes: float) -> float:
    """Return the score of merging updates into their base, from 0 to 1."""
    if base_bytes <= 0 or redo_bytes / base_bytes < MAJOR_RATIO_MIN:
        return 0.0
    return min(1.0, redo_bytes / base_bytes)
