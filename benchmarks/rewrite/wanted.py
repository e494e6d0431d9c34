"""What every contender is asked for."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.rewrite.datasets import TOMBSTONE, VERSION, Dataset

THREADS = 2
RESULT = "result.parquet"
ENGINE_SHARE = 0.6
"""Share of the memory that an engine with a setting for it is given. The rest is for what these
settings do not count: libraries, decoded pages, buffers of the writer."""


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
    memory_bytes: int = 0
    """Memory at which the process is ended; 0: no limit."""

    @property
    def file(self) -> str:
        """The output."""
        return f"{self.out}/{RESULT}"

    @property
    def spill(self) -> str:
        """Folder for what an engine moves out of memory."""
        return f"{self.out}/spill"

    @property
    def engine_bytes(self) -> int:
        """Value for an engine's own memory setting."""
        return int(self.memory_bytes * ENGINE_SHARE)

    @property
    def order(self) -> list[str]:
        """Columns by which the best row of a key comes last."""
        return [*self.data.key, VERSION, TOMBSTONE]


Form = Callable[[Wanted], None]
"""One way to do it."""
