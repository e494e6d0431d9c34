"""What is stitched and what comes of it: values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from common.parquet.location import Location

ROW_GROUPS_MAX = 32_767
"""More a Parquet file cannot number: the ordinal of a row group has 16 bits."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Row groups of one file, in the order in which they are to follow each other."""

    path: str
    """Relative to `location`."""
    row_groups: tuple[int, ...] | None = None
    """Their numbers, each once; None: all. Those without rows are left out."""
    location: Location | None = None
    """None: the location of the output. Parts on a local disk have another one."""


@dataclass(frozen=True, slots=True)
class SortedBy:
    """One column of a declared order, as Parquet's SortingColumn has it."""

    column: int
    """Number among the leaf columns."""
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Footing:
    """What the footer of the output says beside its row groups."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """Key-value metadata; that of the pieces is not taken over."""
    schema: pa.Schema | None = None
    """How readers that know Arrow see the columns; None: as all pieces say."""
    sorting: tuple[SortedBy, ...] | None = None
    """Declared for every row group; None: each keeps its own; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stitched:
    """An output that was written, made durable and read back."""

    size_bytes: int
    rows: int
    row_groups: int
    copied_bytes: int
    """How much of it came from the pieces."""
    synced_bytes: int = field(default=0, compare=False)
    """How much a local disk made durable in `sync_s`."""
    sync_s: float = field(default=0.0, compare=False)
