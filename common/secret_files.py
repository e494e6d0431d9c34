"""Files that an operator names: only regular ones of bounded size are read; secrets in them.

What an actor is started with is kept by Ray's head, so a secret had better be in a file.
"""

import errno
import os
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from common.setting_rules import SettingError
from common.units import format_bytes

SECRET_BYTES_MAX = 1024**2


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file to read it; the end of a pipe or a device may never come.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    # Without blocking: the opening of a pipe would wait for somebody who writes.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def regular_text(path: str | Path, bytes_max: int) -> str:
    """Return what a regular file holds.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger than that.
        UnicodeDecodeError: It is no text.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > bytes_max:
            most = format_bytes(bytes_max)
            raise OSError(errno.EFBIG, f"it is larger than {most}", str(path))
        return file.read(bytes_max).decode()


def secret_of(setting: str, value: str, path: str) -> str:
    """Return the secret of a setting, from its file if there is one.

    Args:
        setting: Its full name; `<setting>_file` names the file.
        value: Of the setting.
        path: Of the file; empty: the value counts.

    Raises:
        SettingError: The file cannot be read, or is empty.
    """
    if not path:
        return value
    try:
        text = regular_text(path, SECRET_BYTES_MAX).strip()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is no text"
        raise SettingError(f"setting {setting}_file: {path} cannot be read: {cause}") from error
    if not text:
        raise SettingError(f"setting {setting}_file: {path} is empty, expected one line")
    return text
