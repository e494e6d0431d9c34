"""Files of a storage with long ways are looked into beside each other."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from common.parquet.location import Location

Found = TypeVar("Found")

FAR_AT_ONCE = 8
"""Files of an object store that one process looks into at a time."""


def look_at_each(
    location: Location, look: Callable[[str], Found], paths: Sequence[str]
) -> list[Found]:
    """Return what is found in each file, in their order; threads are used where ways are long.

    Args:
        location: Of the table.
        look: Called with each path.
        paths: Of the files.
    """
    if location.is_local or len(paths) < 2:
        return [look(path) for path in paths]
    with ThreadPoolExecutor(FAR_AT_ONCE) as threads:
        return [*threads.map(look, paths)]
