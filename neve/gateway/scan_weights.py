"""What files of a table take when they are decoded, remembered: files never change."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from common.model.file import DataFile
from common.parquet.batches import OpenFile, decoded_bytes
from common.parquet.inspect import FAR_AT_ONCE, opened
from common.parquet.location import Location

KNOWN_MAX = 50_000
"""Weights that are remembered, some 10 MB; the oldest are forgotten."""

_Key = tuple[str, str, tuple[str, ...]]


class ScanWeights:
    """Decoded bytes of files. For many threads."""

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        """Know of none."""
        self._known_max = known_max
        self._lock = threading.Lock()
        self._known: dict[_Key, int] = {}

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
        found = {file.path: self._known.get((location.uri, file.path, names)) for file in files}
        fresh = [path for path, weight in found.items() if weight is None]
        weigh = partial(_weight, location, names)
        if location.is_local or len(fresh) < 2:
            weights = [*map(weigh, fresh)]
        else:
            with ThreadPoolExecutor(FAR_AT_ONCE) as threads:
                weights = [*threads.map(weigh, fresh)]
        self._note(location, names, dict(zip(fresh, weights, strict=True)))
        return {path: weight for path, weight in found.items() if weight is not None} | dict(
            zip(fresh, weights, strict=True)
        )

    def _note(self, location: Location, names: tuple[str, ...], weights: dict[str, int]) -> None:
        with self._lock:
            self._known.update({(location.uri, path, names): weights[path] for path in weights})
            for _ in range(len(self._known) - self._known_max):
                del self._known[next(iter(self._known))]


def _weight(location: Location, names: tuple[str, ...], path: str) -> int:
    with opened(location, path) as parquet:
        known = [name for name in names if name in parquet.schema_arrow.names]
        return decoded_bytes(OpenFile(location, path, parquet), known)
