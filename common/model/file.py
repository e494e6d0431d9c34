"""A data file: an immutable Parquet file with the statistics that decisions need."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from common.model.fields import StoredValue
from neve.api.messages import readable_across_releases

FAULTY_LAYOUT = ("layout", "faulty")
"""Tag of a file whose column chunks are placed such that some readers miss rows."""

DATA_VERSION = "data-version"
"""Name of the tag with the version that `neve add --version` gave to the rows of a file."""

DELETE_FILES = "delete-files"
"""Name of the tag with the number of files of a lake table that delete rows of it."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile(StoredValue):
    """One Parquet file of one tablet. Sizes in bytes, times in seconds since the epoch.

    `path` is relative to the table's location, so that a copied table stays valid.
    Keys and versions are order-preserving encodings (`common.model.keys`); for a table
    without a key they are None. `key_min` and `key_max` may be rounded outwards, never
    inwards.
    """

    path: str
    size_bytes: int
    rows: int
    key_min: bytes | None = None
    key_max: bytes | None = None
    version_min: bytes | None = None
    version_max: bytes | None = None
    time_min_s: float | None = None
    time_max_s: float | None = None
    tombstones: int = 0
    tombstones_since_s: float | None = None
    """When its oldest tombstone was first added; only planners use it."""
    live_bytes: int | None = None
    """Bytes of rows that a reader sees or a rewrite has to keep, as counted by an analysis: the
    file's size times the share of such rows. None: not counted."""
    schema_id: int = 0
    clean: bool = False
    """Keys are unique within the file and none is a tombstone."""
    open: bool = False
    """Whether its producer still writes it; planners skip such files. Not used: every added file is
    complete."""
    added_at_s: float = 0.0
    tags: tuple[tuple[str, str], ...] = ()
    """Tags set by planners and tiers: level, window, run."""
    job: str | None = None
    """The job that wrote it; None for files that users added."""
    request: str | None = None
    """The user request of the job that made it (its transform is already applied)."""
    measured_at_s: float | None = None
    """Time for which `live_bytes` was counted: the `now` of the row rules."""
    measured_version: int | None = None
    """Version of the tablet that was read for it."""

    @property
    def has_faulty_layout(self) -> bool:
        """Whether some readers are known to miss rows of the file; see `FAULTY_LAYOUT`."""
        return FAULTY_LAYOUT in self.tags

    @property
    def data_version(self) -> int:
        """Version of its rows; an add of a higher version may replace the file. 0: none."""
        text = next((value for name, value in self.tags if name == DATA_VERSION), "")
        return int(text) if text.isdecimal() else 0

    @property
    def delete_files(self) -> int:
        """Number of files that delete rows of it; readers apply each of them."""
        text = next((value for name, value in self.tags if name == DELETE_FILES), "")
        return int(text) if text.isdecimal() else 0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if not self.path or self.path.startswith("/") or ".." in self.path.split("/"):
            message = f"file path {self.path!r} must be relative to the location, without '..'"
            raise ValueError(message)
        if self.size_bytes < 0 or self.rows < 0 or self.tombstones < 0:
            message = f"file {self.path}: size, rows and tombstones must not be negative"
            raise ValueError(message)


def with_tags(file: DataFile, tags: tuple[tuple[str, str], ...]) -> DataFile:
    """Return a file with tags in place of those with the same names; its other tags stay."""
    names = {name for name, _ in tags}
    return replace(file, tags=(*(tag for tag in file.tags if tag[0] not in names), *tags))


def with_data_version(file: DataFile, version: int) -> DataFile:
    """Return a file whose rows have a version; 0: none."""
    if version:
        return with_tags(file, ((DATA_VERSION, str(version)),))
    return replace(file, tags=tuple(tag for tag in file.tags if tag[0] != DATA_VERSION))


def total_bytes(files: Iterable[DataFile]) -> int:
    """Return the total bytes of the files."""
    return sum(file.size_bytes for file in files)


def may_cross(file: DataFile, at: bytes) -> bool:
    """Return whether a file may hold keys on both sides of a split key."""
    return file.key_min is None or file.key_max is None or file.key_min <= at < file.key_max


CHUNKS_OF_FILE_MAX = 16
"""A file in more chunks than this is counted in none of them."""


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """How a planner divides time: into chunks of equal length, numbered from an origin."""

    length_s: float
    origin_s: float = 0.0

    def numbers(self, start_s: float, end_s: float) -> range:
        """Return the numbers of the chunks that a range of time overlaps; its end is exclusive."""
        first = (start_s - self.origin_s) // self.length_s
        last = -((self.origin_s - end_s) // self.length_s) - 1
        return range(int(first), int(last) + 1)

    def chunks_of(self, file: DataFile) -> range:
        """Return the numbers of the chunks of a file; none for a file without times."""
        if file.time_min_s is None:
            return range(0)
        last_s = max(file.time_min_s, file.time_max_s or file.time_min_s)
        return self.numbers(file.time_min_s, math.nextafter(last_s, math.inf))

    def counted(self, file: DataFile) -> range:
        """Return the numbers of the chunks in which a file is counted; none if it is in many."""
        numbers = self.chunks_of(file)
        return numbers if len(numbers) <= CHUNKS_OF_FILE_MAX else range(0)

    def span(self, number: int) -> tuple[float, float]:
        """Return the start of a chunk and its end, which is exclusive."""
        start_s = self.origin_s + number * self.length_s
        return start_s, self.origin_s + (number + 1) * self.length_s


def overlapping_files(files: Iterable[DataFile], keyless: Collection[str] | None = None) -> int:
    """Return the maximum number of files that may hold the same key.

    Args:
        files: The files.
        keyless: Paths of the files that count although they have no key bounds; None: all.
    """
    begins, ends, unbounded = list[bytes](), list[bytes](), 0
    for file in files:
        if file.key_min is None or file.key_max is None:
            unbounded += keyless is None or file.path in keyless
        else:
            begins.append(file.key_min)
            ends.append(file.key_max)
    ends.sort()
    most = ended = 0
    for begun, begin in enumerate(sorted(begins), 1):
        while ends[ended] < begin:
            ended += 1
        most = max(most, begun - ended)
    return most + unbounded


MIRRORED_MAX = 1_000
"""Files that one change of a mirror may bring and take, in total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredFiles:
    """What a change of the mirror does in one tablet."""

    came: tuple[DataFile, ...] = ()
    """New files, and files whose deleted rows have changed."""
    went: tuple[str, ...] = ()
    """Paths of files that the log no longer names."""
    partition: str | None = None
    """Text of the partition, for a tablet that does not exist so far."""
