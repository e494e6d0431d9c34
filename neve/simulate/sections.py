"""One section of a specification, read key by key with bounds; unknown keys are rejected."""

from collections.abc import Mapping
from typing import Any

from common.errors import RequestError
from common.units import parse_duration_s, parse_size_bytes
from neve.offline import a_count, a_list, a_number, a_switch, a_text, an_object, unknown_field


class Section:
    """A table of the document. The reader calls `close` at the end, which rejects unread keys."""

    def __init__(self, value: object, where: str) -> None:
        """Start reading.

        Args:
            value: The table; None: an empty table.
            where: Path of the table in the document, for error messages.

        Raises:
            RequestError: The value is not a table.
        """
        self.where = where
        self._left = an_object({} if value is None else value, where)
        self._known: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def names(self) -> list[str]:
        """Return the keys that have not been read."""
        return list(self._left)

    def place(self, name: str) -> str:
        """Return the full path of a key, for error messages."""
        return f"{self.where}.{name}" if self.where else name

    def raw(self, name: str) -> Any:
        """Return a raw value, or None."""
        self._known.append(name)
        return self._left.pop(name, None)

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a number within bounds."""
        value = self.raw(name)
        read = default if value is None else a_number(value, self.place(name))
        return self._within(name, read, least, most)

    def count(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        value = self.raw(name)
        read = default if value is None else a_count(value, self.place(name))
        return int(self._within(name, read, least, most))

    def size_bytes(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a size such as `32MB` within bounds."""
        value = self.raw(name)
        read = default if value is None else parse_size_bytes(value, self.place(name))
        return int(self._within(name, read, least, most))

    def duration_s(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a duration such as `5m` within bounds, in seconds."""
        value = self.raw(name)
        read = default if value is None else parse_duration_s(value, self.place(name))
        return self._within(name, read, least, most)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text, which is required if there is no default."""
        value = self.raw(name)
        if value is None and default is not None:
            return default
        return a_text(value, self.place(name))

    def switch(self, name: str, *, default: bool) -> bool:
        """Return a Boolean value."""
        value = self.raw(name)
        return default if value is None else a_switch(value, self.place(name))

    def table(self, name: str) -> dict[str, Any]:
        """Return a table with arbitrary keys; empty if it is missing."""
        return an_object(self.raw(name) or {}, self.place(name))

    def section(self, name: str) -> "Section":
        """Return a nested section; empty if it is missing."""
        return Section(self.raw(name), self.place(name))

    def sections(self, name: str, *, most: int) -> "list[Section]":
        """Return a list of nested sections; empty if it is missing."""
        entries = a_list(self.raw(name) or [], self.place(name))
        if len(entries) > most:
            raise RequestError(
                f"{self.place(name)} has {len(entries):,} entries, expected at most {most:,}"
            )
        return [Section(each, f"{self.place(name)}[{at}]") for at, each in enumerate(entries)]

    def close(self) -> None:
        """Reject keys that were not read.

        Raises:
            RequestError: A key is unknown; the message suggests a known key.
        """
        for name in self._left:
            raise unknown_field(f"{self.place(name)}: key {name!r}", name, self._known)

    def _within(self, name: str, value: float, least: float, most: float) -> float:
        if least <= value <= most:
            return value
        raise RequestError(
            f"{self.place(name)} is {value:,.12g}, expected {least:,.12g} to {most:,.12g}"
        )


def checked_total(what: str, value: float, most: int, advice: str) -> None:
    """Reject a specification with too large a total.

    Args:
        what: What is counted, with its verb: `files would arrive`.
        value: The total.
        most: The limit.
        advice: A suggested change.

    Raises:
        RequestError: The total exceeds the limit.
    """
    if value > most:
        raise RequestError(f"{value:,.0f} {what}, expected at most {most:,}; {advice}")


def merged_documents(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `over`; tables are merged key by key."""
    merged = dict(base)
    for name, value in over.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = merged_documents(before, value) if both else value  # type: ignore[arg-type]  # `both` says so
    return merged
