"""Folders that others change while a test looks at them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from common.model.location_identity import is_guard


def files_below(folder: Path) -> Iterator[Path]:
    """Walk over the files below a folder; what vanishes meanwhile is left out.

    `Path.rglob` raises an error when a folder goes between its being found and looked into.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent, name)


def stored_below(location: Path) -> set[str]:
    """Return the paths of all files below a table's location, but for the service's own notes.

    The guards against plain readers stay as long as the table.
    """
    below = (path.relative_to(location) for path in files_below(location))
    return {
        str(path)
        for path in below
        if str(path.parent) != "_neve"
        and path.parts[:2] not in (("_neve", "manifest"), ("_neve", "guards"))
        and not is_guard(path.name)
    }
