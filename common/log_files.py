"""One log file per part of a service, bounded in size, in one folder.

    <folder>/<part>.log          current output of the part
             <part>.log.1 …      rotated files, newest first
             <part>/…            output of parts that write several files

A part's file receives the output of every writer: the event log, tracebacks, a JVM, a C library.
So files are opened for appending and never renamed while writers have them open. Rotation copies
a file and then empties it. Lines written between the two steps are lost, a few per
`LogSettings.file_bytes_max`.
"""

import asyncio
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Every Python worker of Spark imports this module.
    from common.settings import LogSettings

SUFFIX = ".log"
ROTATE_INTERVAL_S = 10.0
COPY_BYTES = 1 << 20
FOLDER_FILES_MAX, CRASHES_KEPT = 200, 5
TASK_LOGS_VARIABLE = "NEVE_TASK_LOGS"
"""Environment variable for the folder of the Spark Python tasks' log files of one compactor."""
STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The log files of a folder; without a folder, output stays where it was."""

    folder: Path | None
    settings: "LogSettings"

    @classmethod
    def of(cls, folder: str, settings: "LogSettings") -> "LogFiles":
        """Return the files of a folder.

        Args:
            folder: Its path; empty: none.
            settings: Bounds on file sizes.
        """
        return cls(Path(folder) if folder else None, settings)

    def path(self, part: str) -> Path:
        """Return the current file of a part."""
        assert self.folder is not None
        return self.folder / f"{part}{SUFFIX}"

    def take_output(self, part: str) -> None:
        """Redirect stdout and stderr of this process to a part's file."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        send_to(self.path(part), STDOUT, STDERR)

    async def rotate_forever(self, parts: Iterable[str]) -> None:
        """Keep the files of some parts within their bounds. Only one process does this.

        Args:
            parts: Names of the parts.
        """
        chosen = tuple(parts)
        while self.folder is not None:
            await asyncio.sleep(ROTATE_INTERVAL_S)
            await asyncio.to_thread(self.rotate, chosen)

    def rotate(self, parts: Iterable[str]) -> None:
        """Rotate the files of some parts that have become too large, and delete old ones."""
        chosen = tuple(parts)
        for part in chosen:
            self._forget_old(part)
        self._forget_crashes()
        for path in self._files(chosen):
            # A missing file or a full disk must not end the part that rotates the files.
            with suppress(OSError):
                if path.stat().st_size > self.settings.file_bytes_max:
                    put_aside(path, self.settings.files_kept)

    def _forget_old(self, part: str) -> None:
        """Delete the oldest files of a part in which each process writes its own file."""
        if self.folder is None:
            return
        room_bytes = self.settings.file_bytes_max * (self.settings.files_kept + 1)
        for number, path in enumerate(newest_first(self.folder / part)):
            with suppress(OSError):
                room_bytes -= path.stat().st_size
                if number >= FOLDER_FILES_MAX or (number and room_bytes < 0):
                    path.unlink()

    def _forget_crashes(self) -> None:
        """Delete the oldest files that crashed JVMs have left here."""
        if self.folder is None:
            return
        crashes = {*self.folder.glob("hs_err_pid*.log")}
        reports = [path for path in newest_first(self.folder) if path in crashes]
        for path in reports[CRASHES_KEPT:]:
            with suppress(OSError):
                path.unlink()

    def _files(self, parts: Iterable[str]) -> Iterator[Path]:
        if self.folder is None:
            return
        for part in parts:
            yield self.path(part)
            yield from (self.folder / part).glob(f"*{SUFFIX}")


def send_to(path: Path, *descriptors: int) -> None:
    """Redirect descriptors of this process to the end of a file.

    Args:
        path: The file, created if it is missing.
        descriptors: Such as `STDERR`.
    """
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in descriptors:
        os.dup2(opened, descriptor)
    os.close(opened)


def put_aside(path: Path, kept: int) -> None:
    """Copy a file to `<name>.1` and empty it; older copies move up, the oldest is deleted.

    Args:
        path: A file that other processes append to.
        kept: Number of copies to keep; 0: none.
    """
    copies = [path.with_name(f"{path.name}.{number}") for number in range(1, kept + 1)]
    for older, newer in pairwise(reversed(copies)):
        if newer.exists():
            newer.replace(older)
    if copies:
        fresh = path.with_name(f"{path.name}.copy")
        with path.open("rb") as source, fresh.open("wb") as copy:
            shutil.copyfileobj(source, copy, COPY_BYTES)
            fresh.replace(copies[0])
            # Copy what was written during the first copy.
            shutil.copyfileobj(source, copy, COPY_BYTES)
    os.truncate(path, 0)


def newest_first(folder: Path) -> list[Path]:
    """Return the files below a folder, most recently written first."""
    files: list[tuple[float, Path]] = []
    with suppress(OSError):
        for path in folder.rglob("*"):
            with suppress(OSError):
                if path.is_file():
                    files.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(files, key=lambda dated: dated[0], reverse=True)]
