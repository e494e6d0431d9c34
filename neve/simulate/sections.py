"""One section of a specification, read key by key with bounds; unknown keys are rejected."""

from collections.abc import Mapping
from typing import Any

from common.documents import FieldKind, FieldRule, unknown
from common.errors import RequestError
from neve.offline import a_list, an_object


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
        return float(self._read(FieldKind.NUMBER, name, default, least=least, most=most))

    def count(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        return int(self._read(FieldKind.COUNT, name, default, least=least, most=most))

    def size_bytes(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a size such as `32MB` within bounds."""
        return int(self._read(FieldKind.SIZE, name, default, least=least, most=most))

    def duration_s(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a duration such as `5m` within bounds, in seconds."""
        return float(self._read(FieldKind.DURATION, name, default, least=least, most=most))

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text that is not empty, which is required if there is no default."""
        return str(self._read(FieldKind.TEXT, name, default, least=1))

    def switch(self, name: str, *, default: bool) -> bool:
        """Return a Boolean value."""
        return bool(self._read(FieldKind.FLAG, name, default))

    def _read(self, kind: FieldKind, name: str, default: Any, **bounds: float) -> Any:
        value, rule = self.raw(name), FieldRule(kind=kind, **bounds)  # type: ignore[arg-type]  # bounds only
        return rule.read(default if value is None else value, self.place(name))

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
            raise unknown(f"{self.place(name)}: key {name!r}", name, self._known)


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
