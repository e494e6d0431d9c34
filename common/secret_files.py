"""Read files that an operator names: regular files of bounded size, with or without secrets.

Ray's head keeps the arguments of actors, so secrets are better passed in files.
"""

import errno
import os
from pathlib import Path

from common.setting_rules import SettingError
from common.units import format_bytes
from neve.api.files import open_regular

SECRET_BYTES_MAX = 1024**2


def regular_text(path: str | Path, bytes_max: int) -> str:
    """Return the text of a regular file.

    Raises:
        OSError: It cannot be read, is not a regular file, or is larger than `bytes_max`.
        UnicodeDecodeError: It is not text.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > bytes_max:
            most = format_bytes(bytes_max)
            raise OSError(errno.EFBIG, f"it is larger than {most}", str(path))
        return file.read(bytes_max).decode()


def secret_of(setting: str, value: str, path: str) -> str:
    """Return the secret of a setting, from its file if one is given.

    Args:
        setting: Its full name; `<setting>_file` names the file.
        value: Value of the setting.
        path: Path of the file; empty: `value` is used.

    Raises:
        SettingError: The file cannot be read, or is empty.
    """
    if not path:
        return value
    try:
        text = regular_text(path, SECRET_BYTES_MAX).strip()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is not text"
        raise SettingError(f"setting {setting}_file: {path} cannot be read: {cause}") from error
    if not text:
        raise SettingError(f"setting {setting}_file: {path} is empty, expected one line")
    return text
