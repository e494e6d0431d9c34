"""How many rows a transform has changed and deleted: told by each task that reads an input.

Spark brings rows back from the tasks that read them, and no counts. So each leaves a small
file per input for the driver on the same machine; who reads an input again leaves the same.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

_COUNTS = struct.Struct("<QQ")
_SUFFIX = "changes"


@dataclass(slots=True)
class ChangeCounts:
    """Of one input, or of all."""

    changed: int = 0
    """Rows that were given values, whether or not these are new."""
    deleted: int = 0

    def tell(self, folder: str, at: int) -> None:
        """Leave the counts of an input, by its number; empty folder: for nobody.

        Raises:
            OSError: They cannot be written; without them the driver would tell too few.
        """
        if folder:
            Path(folder, f"{at}.{_SUFFIX}").write_bytes(_COUNTS.pack(self.changed, self.deleted))


def read_counts(folder: str) -> ChangeCounts:
    """Return the sums over all inputs."""
    total = ChangeCounts()
    for path in Path(folder).glob(f"*.{_SUFFIX}"):
        changed, deleted = _COUNTS.unpack(path.read_bytes())
        total.changed, total.deleted = total.changed + changed, total.deleted + deleted
    return total
