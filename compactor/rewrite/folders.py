"""Folders of attempts on the compactor's own disk: marks of progress, runs and parts.

An attempt's folder goes with it. One whose driver was killed stays behind; the next
attempt of any driver on the machine removes it. The system lets go of a dead driver's
lock, also where drivers share a disk but do not see each other's processes.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r"neve-attempt-([0-9]+)-.*")
_LOCK = "alive"


@contextmanager
def attempt_folder() -> Iterator[str]:
    """Yield a new folder, which is gone afterwards."""
    remove_left_folders()
    folder = tempfile.mkdtemp(prefix=f"neve-attempt-{os.getpid()}-")
    try:
        with open(Path(folder, _LOCK), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_folders() -> None:
    """Remove the folders of drivers that are no more."""
    for path in Path(tempfile.gettempdir()).glob("neve-attempt-*"):
        named = _NAME.fullmatch(path.name)
        if named is not None and not _runs(int(named[1])) and not _locked(path / _LOCK):
            shutil.rmtree(path, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # Somebody else's.
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
