"""A small disk for a run, in memory, which can be filled up.

It is mounted in a mount namespace of the run's own, so it is gone when the run's processes are, and
no other process of the machine ever sees it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SIZE = "1500m"
OWN_VARIABLE = "CHAOS_OWN_MOUNTS"
CHUNK_BYTES = 1024**2


class Disk:
    """A mounted disk."""

    def __init__(self, folder: Path) -> None:
        """Mount it on an empty folder; call only in a process of `with_own_mounts`."""
        self.folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "neve-chaos", str(folder)]
        subprocess.run(mount, check=True)

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Leave no byte for the length of a block."""
        filler = self.folder / "filler"
        try:
            self._fill(filler)
            yield
        finally:
            filler.unlink(missing_ok=True)

    def _fill(self, filler: Path) -> None:
        with filler.open("wb", buffering=0) as file:
            free = shutil.disk_usage(self.folder).free
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, free))
            file.seek(0, os.SEEK_END)
            size = CHUNK_BYTES
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def unmount(self) -> None:
        """Take it away, with what is on it."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def has_own_mounts() -> bool:
    """Return whether this process can mount disks that no other process sees."""
    return bool(os.environ.get(OWN_VARIABLE))


def with_own_mounts() -> str:
    """Go on in a process that can mount disks; return why there is none if this one goes on."""
    if has_own_mounts():
        return ""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *user, "--mount", "--propagation", "private", "--"]
    trial = [*unshare, "mount", "-t", "tmpfs", "trial", "/mnt"]
    try:
        done = subprocess.run(trial, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no disk is filled: unshare cannot be started: {error.strerror}"
    if done.returncode:
        return f"no disk is filled: {done.stderr.strip() or 'no disk can be mounted'}"
    os.environ[OWN_VARIABLE] = "1"
    return os.execvp("unshare", [*unshare, sys.executable, "-m", "tests.chaos"])
