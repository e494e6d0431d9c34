"""The folder of an attempt on the compactor's own disk, and the reports of tasks in it.

The folder holds runs and parts of a merge. Each task also keeps small files in it for the driver:
its progress, and how many rows a transform has changed and deleted. So executors on other machines
need a shared folder. Folders that a dead process has left are removed.
"""

import fcntl
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError
from common.parquet.location import storage_error
from common.runtime import Clock, SystemClock

_NAME = re.compile(r"neve-attempt-([0-9]+)-.*")
_LOCK = "alive"


@contextmanager
def attempt_folder(scratch: str = "") -> Iterator[str]:
    """Yield a new folder, which is deleted afterwards.

    Args:
        scratch: The compactor's own parent folder; empty: the folder for temporary files.

    Raises:
        ConfigError: The folder is not writable.
        UnavailableError: The disk is full now.
    """
    try:
        if scratch:
            Path(scratch).mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_left_folders(scratch)
        folder = tempfile.mkdtemp(prefix=f"neve-attempt-{os.getpid()}-", dir=scratch or None)
    except OSError as error:
        where = f"setting compactor.scratch: {scratch}" if scratch else "the temporary folder"
        message = f"{where} cannot be written to: {error}"
        raise storage_error(ConfigError, message, error) from error
    try:
        with open(Path(folder, _LOCK), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_folders(scratch: str = "") -> None:
    """Remove the folders of dead drivers.

    In a scratch folder a process id is meaningless, because the process may have been on another
    machine. The folder belongs to one compactor, and its lock shows whether it is in use.
    """
    for path in Path(scratch or tempfile.gettempdir()).glob("neve-attempt-*"):
        named = _NAME.fullmatch(path.name)
        if named is None or (not scratch and _runs(int(named[1]))):
            continue
        if not _locked(path / _LOCK):
            shutil.rmtree(path, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # The process belongs to another user.
    return True


def _locked(path: Path) -> bool:
    try:
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


# -------------------------------------------------------------------------------- Progress of tasks


MARK_INTERVAL_S = 0.1
"""The driver reads the marks less often."""
_MARK = struct.Struct("<QQ")


class ProgressMark:
    """One task's progress, written at intervals."""

    def __init__(self, folder: str, name: str, clock: Clock | None = None) -> None:
        """Create a mark without writing it.

        Args:
            folder: Folder that the driver reads; empty: nothing is written.
            name: Distinguishes the task from others of the rewrite.
            clock: None: the system's clock.
        """
        self._clock = clock or SystemClock()
        self._path = Path(folder, f"{name}.mark") if folder else None
        self._bytes = self._rows = 0
        self._marked_s = self._clock.now_s()

    def add(self, size_bytes: int, rows: int) -> None:
        """Add the work since the last call."""
        self._bytes += size_bytes
        self._rows += rows
        if self._path is None or (now_s := self._clock.now_s()) - self._marked_s < MARK_INTERVAL_S:
            return
        self._marked_s = now_s
        with suppress(OSError):
            self._path.write_bytes(_MARK.pack(self._bytes, self._rows))


def read_marks(folder: str) -> tuple[int, int]:
    """Return decoded bytes and rows processed by all tasks that write to a folder."""
    done_bytes = done_rows = 0
    for path in Path(folder).glob("*.mark"):
        with suppress(OSError, struct.error):
            size_bytes, rows = _MARK.unpack(path.read_bytes())
            done_bytes, done_rows = done_bytes + size_bytes, done_rows + rows
    return done_bytes, done_rows


# ---------------------------------------------------------------------- Rows changed by a transform


_COUNTS = struct.Struct("<QQ")
_CHANGES_SUFFIX = "changes"


@dataclass(slots=True)
class ChangeCounts:
    """Counts of one input, or of all inputs."""

    changed: int = 0
    """Rows that were assigned values, whether or not they differ."""
    deleted: int = 0

    def write(self, folder: str, at: int) -> None:
        """Write the counts of an input, by its number; empty folder: write nothing.

        Raises:
            OSError: They cannot be written; without them the driver's sum would be too small.
        """
        if folder:
            Path(folder, f"{at}.{_CHANGES_SUFFIX}").write_bytes(
                _COUNTS.pack(self.changed, self.deleted)
            )


def read_change_counts(folder: str) -> ChangeCounts:
    """Return the sums over all inputs."""
    total = ChangeCounts()
    for path in Path(folder).glob(f"*.{_CHANGES_SUFFIX}"):
        changed, deleted = _COUNTS.unpack(path.read_bytes())
        total.changed, total.deleted = total.changed + changed, total.deleted + deleted
    return total
