"""Which row groups readers find that split files: their rules, over a footer.

Facts of their sources, told in our words: parquet-mr 1.13 (`filterFileMetaDataByMidpoint`), which
Spark reads with; Trino before 469, up to 476, and since; Hive's record reader (`getSplit`);
Impala's scanner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from compactor.rewrite.parquet_bytes import footer as ids
from compactor.rewrite.parquet_bytes.footer import Span, StoredRowGroup, integer, located
from tests.support.layouts import layout_of_file

Rule = Callable[[StoredRowGroup], int]
"""Returns the byte of a row group that decides: whoever reads the split that holds it, reads it."""


def middle(group: StoredRowGroup) -> int:
    """Return the byte of parquet-mr: half of all pages behind the first column's first one."""
    total = integer(group.struct, ids.GROUP_COMPRESSED)
    return _begin(group, 0) + (group.compressed_bytes if total is None else total) // 2


def begin_of_columns(group: StoredRowGroup) -> int:
    """Return the byte of Trino since 477: the first column's first page."""
    return _begin(group, 0)


def begin_as_told(group: StoredRowGroup) -> int:
    """Return the byte of Trino 469 to 476, and of Velox: where the footer says it begins."""
    told = integer(group.struct, ids.GROUP_OFFSET)
    return _begin(group, 0) if told is None else told


def begin_of_values(group: StoredRowGroup) -> int:
    """Return the byte of Hive and old Trino: the first column's first page with values."""
    meta = located(group.chunks[0].struct, ids.META)
    assert meta is not None
    start = integer(meta, ids.DATA_PAGE)
    assert start is not None
    return start


def middle_of_ends(group: StoredRowGroup) -> int:
    """Return the byte of Impala: between the first column's begin and the last column's end."""
    begin, last = _begin(group, 0), group.chunks[-1]
    end = _begin(group, -1) + last.data.size
    return begin + int((end - begin) / 2)  # As C++ divides: towards zero.


RULES: dict[str, Rule] = {
    "Spark": middle,
    "Trino": begin_of_columns,
    "Trino 469 to 476": begin_as_told,
    "Hive": begin_of_values,
    "Impala": middle_of_ends,
}


def rows_by_rule(path: Path, rule: Rule, split_bytes: int) -> int:
    """Return how many rows a reader with such a rule sees in a file."""
    layout = layout_of_file(path)
    decisive = [(rule(group), group.rows) for group in layout.groups if group.rows]
    return sum(
        rows
        for split in _splits(layout.size_bytes, split_bytes)
        for at, rows in decisive
        if split.start <= at < split.end
    )


def _splits(size_bytes: int, split_bytes: int) -> Iterator[Span]:
    for start in range(0, size_bytes, split_bytes):
        yield Span(start, min(split_bytes, size_bytes - start))


def _begin(group: StoredRowGroup, column: int) -> int:
    return group.chunks[column].data.start
