"""Secrets that a setting holds itself, or names a file for.

What an actor is started with is kept by Ray's head, so a secret had better be in a file.
"""

from pathlib import Path

from common.setting_rules import SettingError


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
        text = Path(path).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is no text"
        raise SettingError(f"setting {setting}_file: {path} cannot be read: {cause}") from error
    if not text:
        raise SettingError(f"setting {setting}_file: {path} is empty, expected one line")
    return text
