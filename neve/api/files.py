"""Opening of files that an operator or a user names. Only regular files are read."""

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
