"""Files that an operator or a user names: only regular ones are read."""

import errno
import os
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file to read it; the end of a pipe or a device may never come.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    # Without blocking: the opening of a pipe would wait for somebody who writes.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")
