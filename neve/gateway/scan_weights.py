"""What files of a table take when they are decoded, remembered: files never change."""

import threading
from collections.abc import Sequence
from functools import partial

from common.bounded_map import BoundedMap
from common.model.file import DataFile
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location, map_files
from common.parquet.row_batches import OpenFile, decoded_bytes

KNOWN_MAX = 50_000
"""Weights that are remembered, some 10 MB; the oldest are forgotten."""

_Key = tuple[str, str, tuple[str, ...]]


class ScanWeights:
    """Decoded bytes of files. For many threads."""

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        """Know of none."""
        self._lock = threading.Lock()
        self._known: BoundedMap[_Key, int] = BoundedMap(known_max)

    def of(
        self, location: Location, files: Sequence[DataFile], columns: Sequence[str]
    ) -> dict[str, int]:
        """Return by path how many bytes columns of files take, decoded. Blocks.

        Args:
            location: Of their table.
            files: Which may be opened in this process.
            columns: Of the table; those that a file lacks weigh nothing.

        Raises:
            RequestError: A file is missing, not Parquet or damaged.
            UnavailableError: The storage does not answer.
        """
        names = tuple(columns)
        with self._lock:
            known = {file.path: self._known.get((location.uri, file.path, names)) for file in files}
        fresh = [path for path, weight in known.items() if weight is None]
        found = map_files(location, partial(_weight, location, names), fresh)
        weights = dict(zip(fresh, found, strict=True))
        with self._lock:
            for path, weight in weights.items():
                self._known.put((location.uri, path, names), weight)
        return weights | {path: weight for path, weight in known.items() if weight is not None}


def _weight(location: Location, names: tuple[str, ...], path: str) -> int:
    with open_table_file(location, path) as parquet:
        known = [name for name in names if name in parquet.schema_arrow.names]
        return decoded_bytes(OpenFile(location, path, parquet), known)
