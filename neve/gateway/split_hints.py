"""Which tablets were seen being split lately: what an append cuts beforehand.

Without it every append during a split would write a file in vain before it is told where
to cut. Only a hint: a tablet that is split and not known here costs one more try.
"""

from collections.abc import Iterable

TABLETS_MAX = 1000
"""Of all tables; when there are more, all are forgotten."""


class SplitHints:
    """Ends of tablets by table."""

    def __init__(self) -> None:
        """Know of none."""
        self._ends: dict[str, dict[bytes, None]] = {}

    def of(self, table: str) -> tuple[bytes, ...]:
        """Return the ends of the tablets of a table that are perhaps being split."""
        return tuple(self._ends.get(table, ()))

    def seen(self, table: str, looked: Iterable[bytes], splitting: Iterable[bytes]) -> None:
        """Note which of the tablets that were looked at are being split."""
        ends = self._ends.setdefault(table, {})
        for end in looked:
            ends.pop(end, None)
        ends.update(dict.fromkeys(splitting))
        if not ends:
            del self._ends[table]
        if sum(map(len, self._ends.values())) > TABLETS_MAX:
            self._ends.clear()
