"""The folder for a stack's temporary files: Ray's session, sockets, scratch of Spark."""

import secrets
import shutil
import tempfile
from pathlib import Path

PREFIX = "neve-"
BASE_CHARACTERS_MAX = 40
"""Ray adds up to 64 characters for its sockets; the system takes 107 in all."""


def base_folder() -> Path:
    """Return where temporary files go; its name leaves room for Ray's sockets."""
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= BASE_CHARACTERS_MAX else Path("/tmp")


def new_folder() -> Path:
    """Return a folder that does not exist yet."""
    return base_folder() / f"{PREFIX}{secrets.token_hex(4)}"


def remove_folder(folder: Path) -> None:
    """Remove a stack's folder; anything else that a state file may name is left alone."""
    if folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
