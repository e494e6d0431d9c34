"""Rows that wait until there are enough of them to be written together."""

from collections.abc import Callable

import pyarrow as pa


class Waiting:
    """Rows in the order in which they came."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self.size_bytes = 0
        """Decoded."""

    def __bool__(self) -> bool:
        return bool(self._tables)

    def add(self, table: pa.Table) -> None:
        """Have rows wait behind the others."""
        self._tables.append(table)
        self.size_bytes += table.nbytes

    def take(
        self, portion: Callable[[pa.Table], int], *, everything: bool
    ) -> tuple[pa.Table, int, int]:
        """Return all rows, how many of them wait no longer, and how many make a portion.

        Args:
            portion: How many rows of these are written together.
            everything: None waits on; else those that fill no portion do.
        """
        rows = pa.concat_tables(self._tables)
        portion_rows = portion(rows)
        count = rows.num_rows if everything else rows.num_rows // portion_rows * portion_rows
        rest = rows.slice(count)
        self._tables, self.size_bytes = ([rest], rest.nbytes) if rest.num_rows else ([], 0)
        return rows, count, portion_rows
