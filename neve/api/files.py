"""Files that an operator or a user names: only regular ones are read; private ones are replaced."""

import errno
import os
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading; pipes and devices are rejected, as they may never end.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    # Open without blocking: opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def write_private(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Replace a file, as a whole or not at all, by one that only its owner may read.

    Args:
        path: The file; only one process at a time may write it.
        content: Its new content.
        is_durable: Whether the content is on disk before the file is replaced.

    Raises:
        OSError: It cannot be written; the old file stays, and no part of the new one.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as output:
            os.fchmod(output.fileno(), 0o600)
            output.write(content)
            if is_durable:
                output.flush()
                os.fsync(output.fileno())
    except OSError:  # A full disk must not leave a partial file.
        fresh.unlink(missing_ok=True)
        raise
    fresh.replace(path)
