"""A disk whose listings are late, and that does not answer, as a test wants it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from common.parquet import location as locations


@dataclass
class Faults:
    """What is wrong with it. Files are known by the last part of their paths."""

    missed: set[str] = field(default_factory=set)
    """Not listed, though they are there."""
    gone: list[fs.FileInfo] = field(default_factory=list)
    """Listed, though they are not there."""
    silent: dict[str, OSError] = field(default_factory=dict)
    """What whoever opens or moves a file is told."""

    def delete(self, place: Path) -> None:
        """Delete a file that is still listed."""
        (info,) = fs.LocalFileSystem().get_file_info([str(place)])
        place.unlink()
        self.gone.append(info)


class UnreliableDisk(fs.LocalFileSystem):  # type: ignore[misc]  # Arrow has no types
    """A disk with these faults; asked for a file by its name it tells the truth."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def get_file_info(self, paths_or_selector: Any) -> Any:
        found = super().get_file_info(paths_or_selector)
        if not isinstance(paths_or_selector, fs.FileSelector):
            return found
        base = f"{paths_or_selector.base_dir}/"
        listed = [each for each in found if each.base_name not in self._faults.missed]
        return listed + [each for each in self._faults.gone if each.path.startswith(base)]

    def open_input_file(self, path: str) -> pa.NativeFile:
        self._ask(path)
        return super().open_input_file(path)

    def move(self, src: str, dest: str) -> None:
        self._ask(dest)
        super().move(src, dest)

    def _ask(self, path: str) -> None:
        if (error := self._faults.silent.get(Path(path).name)) is not None:
            raise error


@contextmanager
def unreliable() -> Iterator[Faults]:
    """Let every location that is opened meanwhile be on such a disk; yield its faults."""
    faults = Faults()

    def opened(uri: str) -> tuple[fs.FileSystem, str]:
        return UnreliableDisk(faults), fs.FileSystem.from_uri(uri)[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locations, "_filesystem", opened)
        yield faults
