"""The folder of what lives as long as a stack: sockets, Ray's session, scratch of Spark.

Its owner alone may enter it (0700), so whatever is below it is out of reach of the
machine's other users, whatever modes Ray, Spark and Java give to what they make there.
"""

import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from common.errors import ConfigError

PREFIX = "neve-"
SOCKET_CHARACTERS_MAX = 103
"""Longest path of a socket that every system takes."""
RAY_CHARACTERS = 64
"""What Ray adds to its folder for its sockets."""
OWN_CHARACTERS = len(f"/{PREFIX}01234567/ray")
BASE_CHARACTERS_MAX = SOCKET_CHARACTERS_MAX - RAY_CHARACTERS - OWN_CHARACTERS


def base_folder(usual: Path | None = None) -> Path:
    """Return where temporary files go; its name leaves room for Ray's sockets.

    Args:
        usual: Where they go if its name is short enough; the system's choice if left out.

    Raises:
        ConfigError: Others may replace what is in it.
    """
    usual = usual or Path(tempfile.gettempdir())
    base = usual if len(str(usual)) <= BASE_CHARACTERS_MAX else Path("/tmp")
    if others_may_replace(base):
        raise ConfigError(
            f"temporary folder {base} is open to every user of this machine and has no sticky bit: "
            f"choose another one with TMPDIR, or run `chmod +t {base}`"
        )
    return base


def new_folder(base: Path) -> Path:
    """Return a folder that does not exist yet, in what `base_folder` has returned."""
    return base / f"{PREFIX}{secrets.token_hex(4)}"


def make_private(folder: Path) -> None:
    """Make a folder for nobody but its owner, or close one of ours that others may enter.

    Args:
        folder: Where; the folders above it are made likewise if they are missing.

    Raises:
        ConfigError: It is somebody else's, or others may replace it.
    """
    above = folder.parent
    if not above.exists():
        make_private(above)
    elif others_may_replace(above):
        raise ConfigError(
            f"folder {above} lets other users of this machine replace what is in it: "
            f"run `chmod go-w {above}`, or choose another one"
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    if (owner := folder.stat().st_uid) != os.geteuid():
        raise ConfigError(f"folder {folder} belongs to another user (uid {owner})")
    folder.chmod(0o700)


def others_may_replace(folder: Path) -> bool:
    """Return whether another user could rename or remove what a folder holds."""
    found = folder.stat()
    open_to_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(open_to_others) and not found.st_mode & stat.S_ISVTX


def remove_folder(folder: Path) -> None:
    """Remove a stack's folder; anything else that a state file may name is left alone."""
    if folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
