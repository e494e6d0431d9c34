"""The files of a simulation and the rows in them; deleted ones are remembered as such."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from common.errors import InputError
from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import encode_key

ROW_BYTES = 1000
"""Size of a row; nothing shrinks when it is merged."""
VERSION_BYTES = 8
_KEY_PREFIX = encode_key([0], (KeyType.INT,))[:-2]
LAST_KEY = 0xFEFF
"""Keys are numbers of two bytes, and sort before the end of the last tablet."""

Rows = Mapping[int, tuple[str, ...]]
"""Row → the requests that have transformed it, each as often as it did."""


def key_bytes(number: int) -> bytes:
    """Return a key as tablets order it: as the product encodes whole numbers."""
    return _KEY_PREFIX + number.to_bytes(2, "big")


def key_number(key: bytes) -> int:
    """Return the number of a key."""
    return int.from_bytes(key[-2:], "big")


def version_bytes(now_s: float) -> bytes:
    """Return the version of rows that are written at a time."""
    return int(now_s * 1000).to_bytes(VERSION_BYTES, "big")


class Disk:
    """Files by path. Every row has one key and one version, whatever file holds it."""

    def __init__(self) -> None:
        self.files: dict[str, Rows] = {}
        self.deleted: dict[str, Rows] = {}
        self.written_s: dict[str, float] = {}
        self.retaken: dict[str, None] = {}
        """Names that somebody has used again: two users would overwrite each other's file."""
        self.key_of: dict[int, int] = {}
        self.version_of: dict[int, bytes] = {}
        """When a row was first written."""
        self.late_deletes = 0.0
        """Probability that the storage does not answer a deletion, and does it later."""
        self.on_delete: Callable[[str], None] = lambda _path: None

    def write(self, path: str, rows: Rows, now_s: float) -> DataFile:
        """Write a file and return what is said of it."""
        assert path not in self.files, f"{path} is written twice"
        assert path not in self.deleted, f"{path} is written again after it was deleted"
        assert rows, path
        self.files[path], self.written_s[path] = rows, now_s
        for row in rows:
            self.version_of.setdefault(row, version_bytes(now_s))
        return self.described(path)

    def described(self, path: str) -> DataFile:
        """Return what is said of a file."""
        rows = self.files[path]
        keys = [self.key_of[row] for row in rows]
        versions = [self.version_of[row] for row in rows]
        return DataFile(
            path=path,
            size_bytes=ROW_BYTES * len(rows),
            rows=len(rows),
            key_min=key_bytes(min(keys)),
            key_max=key_bytes(max(keys)),
            version_min=min(versions),
            version_max=max(versions),
            clean=True,
        )

    def read(self, path: str) -> Rows:
        if path not in self.files:
            raise InputError(f"simulated: {path} is not there")
        return self.files[path]

    def ever(self, path: str) -> Rows:
        """Return the rows of a file, also of a deleted one."""
        return self.files[path] if path in self.files else self.deleted[path]

    def delete(self, path: str) -> bool:
        rows = self.files.pop(path, None)
        if rows is None:
            return False
        self.deleted[path] = rows
        self.on_delete(path)
        return True
