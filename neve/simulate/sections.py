"""One section of a specification, read key by key: each value within bounds, no key unknown."""

from collections.abc import Mapping
from typing import Any

from common.errors import RequestError
from common.units import parse_duration_s, parse_size_bytes
from neve.offline import a_count, a_list, a_number, a_switch, a_text, an_object, unknown_field


class Section:
    """A table of the document. Whoever has read it calls `close`, which refuses what is left."""

    def __init__(self, value: object, where: str) -> None:
        """Begin to read.

        Args:
            value: The table; None: an empty one.
            where: Its place in the document, for messages.

        Raises:
            RequestError: It is no table.
        """
        self.where = where
        self._left = an_object({} if value is None else value, where)
        self._known: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def names(self) -> list[str]:
        """Return the keys that are not read yet."""
        return list(self._left)

    def place(self, name: str) -> str:
        """Return where a key stands, for messages."""
        return f"{self.where}.{name}" if self.where else name

    def raw(self, name: str) -> Any:
        """Return a value as it was written, or None."""
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
        """Return a text. Without a default it has to be there."""
        value = self.raw(name)
        if value is None and default is not None:
            return default
        return a_text(value, self.place(name))

    def switch(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.raw(name)
        return default if value is None else a_switch(value, self.place(name))

    def table(self, name: str) -> dict[str, Any]:
        """Return a table of free keys, empty if it is missing."""
        return an_object(self.raw(name) or {}, self.place(name))

    def section(self, name: str) -> "Section":
        """Return a section inside this one, empty if it is missing."""
        return Section(self.raw(name), self.place(name))

    def sections(self, name: str, *, most: int) -> "list[Section]":
        """Return a list of sections, empty if it is missing."""
        entries = a_list(self.raw(name) or [], self.place(name))
        if len(entries) > most:
            raise RequestError(
                f"{self.place(name)} has {len(entries):,} entries, expected at most {most:,}"
            )
        return [Section(each, f"{self.place(name)}[{at}]") for at, each in enumerate(entries)]

    def close(self) -> None:
        """Refuse keys that nobody has asked for.

        Raises:
            RequestError: There is one; the message says what was probably meant.
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
    """Refuse a specification whose parts are too much together.

    Args:
        what: There is too much of, with its verb: `files would arrive`.
        value: How much.
        most: How much may be.
        advice: What to change.

    Raises:
        RequestError: It is more.
    """
    if value > most:
        raise RequestError(f"{value:,.0f} {what}, expected at most {most:,}; {advice}")


def merged_documents(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the keys of another one in it; tables are merged key by key."""
    merged = dict(base)
    for name, value in over.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = merged_documents(before, value) if both else value  # type: ignore[arg-type]  # `both` says so
    return merged
