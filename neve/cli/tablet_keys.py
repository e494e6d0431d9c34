"""Name tablets by their keys for people. Ids are for `--json` and for arguments of commands."""

from collections.abc import Callable, Iterable

from common.errors import RequestError
from common.model.key_values import key_type_of, value_to_json
from common.model.keys import decode_key, format_key
from common.model.tablet import PLUS_INFINITY, TabletId
from neve import api
from neve.client.errors import NeveError

TabletKeys = Callable[[str, str], str]
"""Maps the name of a table and the id of a tablet to the tablet's keys, as a user writes them."""

ALL_KEYS = "all keys"


class KnownTables:
    """Keys of the tablets of these tables. A table is read when its first tablet is shown.

    A tablet keeps its id if its table is gone or its keys have another type.
    """

    def __init__(self, tables: Callable[[], Iterable[api.Table]]) -> None:
        """Store the function that reads the tables."""
        self._read = tables
        self._tables: dict[str, api.Table] | None = None

    def __call__(self, table: str, tablet: str) -> str:
        """Return the keys of a tablet."""
        if self._tables is None:
            try:
                self._tables = {each.name: each for each in self._read()}
            except NeveError:
                self._tables = {}  # Show the listing without keys rather than fail.
        known = self._tables.get(table)
        return tablet if known is None else keys_of(known, tablet)


def keys_of(table: api.Table, tablet: str) -> str:
    """Return the keys of a tablet: a range such as `to [100]`, or a partition such as `day=1`."""
    columns = table.partition_by or table.key
    types = {column.name: column.type for column in table.schema}
    try:
        end = TabletId.parse(table.id, tablet).end
        if not columns:
            return ALL_KEYS if end == PLUS_INFINITY else tablet
        kinds = [key_type_of(types[name]) for name in columns]
        if not table.partition_by:
            return range_text(None, format_key(end, kinds))
        values = zip(columns, decode_key(end, kinds), kinds, strict=True)
        return "/".join(
            f"{name}={'null' if value is None else value_to_json(value, kind)}"
            for name, value, kind in values
        )
    except (KeyError, RequestError, ValueError):
        return tablet


def range_text(start: str | None, end: str | None, partition: str | None = None) -> str:
    """Return a range of keys as text.

    Args:
        start: The key before the first one; None if there is no bound or it is unknown.
        end: The last key; None if there is no bound.
        partition: Partition values, which replace the keys in a partitioned table.
    """
    if partition is not None:
        return partition
    first = [] if start is None else [f"after {start}"]
    last = [] if end is None else [f"to {end}"]
    return " ".join(first + last) or ALL_KEYS
