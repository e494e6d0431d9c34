"""Where the service keeps its own notes in a table's location. Pure: names only."""

OWN_FOLDER = "_neve"
APPEND_FOLDER = f"{OWN_FOLDER}/append"
DESCRIPTION_PATH = f"{OWN_FOLDER}/table.json"
GENERATION_PATH = f"{OWN_FOLDER}/generation"
MANIFEST_FOLDER = f"{OWN_FOLDER}/manifest"

GONE_WITH_THE_TABLE = (MANIFEST_FOLDER, DESCRIPTION_PATH, GENERATION_PATH)
"""What a drop deletes if it was to delete files; the mark of the owner stays."""


def is_own(path: str) -> bool:
    """Return whether a path, relative to the location, is one that only the service writes."""
    return path.startswith(f"{OWN_FOLDER}/")
