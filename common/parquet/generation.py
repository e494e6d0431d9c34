"""The generation beside the data: `_neve/generation` shows that Redis has gone back in time.

The coordinator counts a table's generation up in the store and then writes it here. A
store that lost its last minutes (a fail-over, a restored dump) knows a lower number than
its location does: it is *behind*, and its table is read-only until an operator has
looked (`neve fsck`) and accepted what is there.
"""

from common.model.own_paths import GENERATION_PATH
from common.parquet.location import Location
from common.parquet.small_files import read_small, write_small

_BYTES_MAX = 64
UNREADABLE = 1 << 62
"""What a file that holds no number counts as: nobody can say how far the store is behind."""


def written_generation(location: Location) -> int:
    """Return the generation that a location was left with; 0: none was ever written.

    Raises:
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, GENERATION_PATH, _BYTES_MAX)
    if content is None:
        return 0
    text = content.decode("ascii", errors="replace").strip()
    return int(text) if text.isdigit() else UNREADABLE


def write_generation(location: Location, generation: int) -> None:
    """Write the generation of a table into its location.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    write_small(location, GENERATION_PATH, b"%d\n" % generation)


def behind(name: str, stored: int, written: int) -> str | None:
    """Return why a table is read-only: its store is older than its location; None: it is not.

    Args:
        name: Of the table.
        stored: The generation in the store, read after the location's.
        written: The generation in the location.
    """
    if stored >= written:
        return None
    known = "no number" if written == UNREADABLE else str(written)
    return (
        f"table {name} is read-only: its store is at generation {stored}, but {GENERATION_PATH} "
        f"of its location says {known}, so the store has gone back in time; look with "
        f"`neve fsck {name}`, then accept with `neve fsck {name} --accept`"
    )
