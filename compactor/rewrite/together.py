"""Small files that are decoded together: opening each by itself would take longer than its rows.

Only files that hold exactly the columns of the table in one row group are read like this,
from a local disk. Whatever does not go well with several is tried with each alone.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from common.parquet.location import Location
from compactor.rewrite.allowance import Allowance
from compactor.rewrite.kernel.bounds import Group
from compactor.rewrite.kernel.layout import Held, Layout, known_to_polars
from compactor.rewrite.page_sums import PAGES_START, PageError, check_pages

FILES_MAX = 64


class Together:
    """Reads the row groups of several small files by one call."""

    def __init__(
        self,
        location: Location,
        paths: Mapping[int, str],
        layout: Layout,
        small: Mapping[int, int],
        allowance: Allowance,
        *,
        by_key: bool = True,
    ) -> None:
        """Read nothing yet.

        Args:
            location: Of all files.
            paths: Of the files, by number.
            layout: How rows are wanted.
            small: Bytes of the files that are small and plain, by number; see `RewritePlan`.
            allowance: Pays for what is read.
            by_key: Whether rows have to be in the order of their keys.
        """
        known = location.is_local and all(map(known_to_polars, layout.schema.types))
        self._small = small if known else {}
        self._location, self._paths, self._layout = location, paths, layout
        self._allowance, self._by_key = allowance, by_key

    def may(self, group: Group) -> bool:
        """Return whether a row group may be read with others."""
        return group.input in self._small and group.start == 0 == group.skip

    def read(self, groups: Sequence[Group]) -> list[Held] | None:
        """Return the rows of row groups, in order; None: these have to be read one by one.

        Row groups whose keys nobody knows are all held before any of their rows is settled, so
        the rows of all go with the first: a merge of a few long runs is less work.
        """
        self._allowance.pay(sum(self._small[group.input] for group in groups))
        paths = [Path(self._location.full(self._paths[group.input])) for group in groups]
        names = self._layout.schema.names
        try:
            for path, group in zip(paths, groups, strict=True):
                _check(path, self._small[group.input])
            frame = pl.scan_parquet(paths, glob=False).select(names).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, PageError):
            return None  # Whoever reads it alone says what is wrong with it.
        right = frame.dtypes == [self._layout.dtype(name) for name in names]
        if not right or frame.height != sum(group.rows for group in groups):
            return None
        if all(group.low is None for group in groups):
            return self._united(frame, groups)
        return self._layout.held_apart(frame, [group.rows for group in groups])

    def _united(self, frame: pl.DataFrame, groups: Sequence[Group]) -> list[Held]:
        if self._by_key:
            frame = frame.rechunk()  # A gather from many chunks costs several times the copy.
        whole = self._layout.held(frame, None, by_key=self._by_key)
        whole.size_bytes = max(whole.size_bytes, sum(group.size_bytes for group in groups))
        nothing = self._layout.held(frame.clear(), None, by_key=False)
        return [whole, *(replace(nothing) for _ in groups[1:])]


def _check(path: Path, size_bytes: int) -> None:
    """Look at the checksums of all pages of a small file.

    Raises:
        PageError: One is wrong.
        OSError: It cannot be read.
    """
    with path.open("rb", buffering=0) as stored:
        check_pages(os.pread(stored.fileno(), size_bytes, PAGES_START))
