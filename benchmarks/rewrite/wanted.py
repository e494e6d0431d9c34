"""What every contender is asked for."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.rewrite.datasets import TOMBSTONE, VERSION, Dataset

THREADS = 2
RESULT = "result.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be written, and where."""

    data: Dataset
    out: str
    """An empty folder."""
    group_rows: int
    level: int
    """Of zstd."""
    reference: str = ""
    """A file that holds the result already; for `limit`."""

    @property
    def file(self) -> str:
        """The output."""
        return f"{self.out}/{RESULT}"

    @property
    def order(self) -> list[str]:
        """Columns by which the best row of a key comes last."""
        return [*self.data.key, VERSION, TOMBSTONE]


Form = Callable[[Wanted], None]


Form = Callable[[Wanted], None]
"""One way to do it."""
