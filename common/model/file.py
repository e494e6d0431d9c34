"""A data file: an immutable Parquet file with the statistics that decisions need."""

from collections.abc import Iterable
from dataclasses import dataclass

from common.model.fields import StoredValue
from neve.api.messages import readable_across_releases

FAULTY_LAYOUT = ("layout", "faulty")
"""Tag of a file of which some readers miss rows, because of where its column chunks lie."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile(StoredValue):
    """One Parquet file of one tablet. Sizes in bytes, times in seconds since the epoch.

    `path` is relative to the table's location, so that a copied table is still whole.
    Keys and versions are order-preserving encodings (`common.model.keys`); for a table
    without a key they are None. `key_min`/`key_max` may be wider than the truth, never
    narrower.
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
    """When the oldest tombstone in it was first added; it triggers planners, no more."""
    live_bytes: int | None = None
    """Bytes of rows that a reader sees or a rewrite has to keep, as an analysis has counted them:
    the file's size times the share of such rows. None: nobody has counted."""
    schema_id: int = 0
    clean: bool = False
    """Keys are unique within the file and none is a tombstone."""
    open: bool = False
    """Still being written by its producer: visible to no planner. Not used yet: every file that
    is added is complete."""
    added_at_s: float = 0.0
    tags: tuple[tuple[str, str], ...] = ()
    """Level, window, run: what planners and tiers wrote on it."""
    job: str | None = None
    """The job that made it; None for files that users added."""
    request: str | None = None
    """The user request of the job that made it (its transform is already applied)."""
    measured_at_s: float | None = None
    """As of when `live_bytes` was counted: the `now` of the row rules."""
    measured_version: int | None = None
    """Version of the tablet that was read for it."""

    @property
    def has_faulty_layout(self) -> bool:
        """Whether it was seen that some readers miss rows of it; see `FAULTY_LAYOUT`."""
        return FAULTY_LAYOUT in self.tags

    def __post_init__(self) -> None:
        """Refuse what no file can be."""
        if not self.path or self.path.startswith("/") or ".." in self.path.split("/"):
            message = f"file path {self.path!r} must be relative to the location, without '..'"
            raise ValueError(message)
        if self.size_bytes < 0 or self.rows < 0 or self.tombstones < 0:
            message = f"file {self.path}: size, rows and tombstones must not be negative"
            raise ValueError(message)


def total_bytes(files: Iterable[DataFile]) -> int:
    """Return the bytes of all files together."""
    return sum(file.size_bytes for file in files)
