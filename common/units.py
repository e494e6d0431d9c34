"""Parse and print bytes and durations. Sizes are binary: `32M` is 32 x 1024^2 bytes."""

import re
import reprlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from common.errors import RequestError

_SIZE_UNITS = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_DURATION_UNITS = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:I?B)?\s*", re.IGNORECASE)
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|[smhdw]?)\s*")


CHARS_MAX = 100
"""Longest number that is parsed, in digits."""
SIZE_MAX_BYTES = (1 << 63) - 1
"""Largest size that is parsed: larger ones cannot be stored, and their square overflows."""


SHOWN_CHARS_MAX = 80
"""Longest value in a message; the rest is left out."""
SECONDS_MAX = 1e100
"""Longest duration that is parsed: above any bound, and still a float."""


class _Beginning(reprlib.Repr):
    """Shows the beginning of a value, in time that does not depend on the value's size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = SHOWN_CHARS_MAX

    def repr_int(self, x: int, level: int) -> str:
        return "a number of too many digits" if abs(x) > SIZE_MAX_BYTES else repr(x)

    def repr_dict(self, x: Mapping[Any, Any], level: int) -> str:
        # The inherited method sorts all names.
        shown_items = [
            f"{self.repr1(name, level - 1)}: {self.repr1(value, level - 1)}"
            for name, value in islice(x.items(), self.maxdict if level > 0 else 0)
        ]
        return f"{{{', '.join(shown_items)}{', ...' * (len(x) > len(shown_items))}}}"


_BEGINNING = _Beginning()


def shown(value: object) -> str:
    """Return a value as the user wrote it, shortened: `'32 parsecs'`."""
    text = _BEGINNING.repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 3] + "..."


def whole_number(text: str) -> int | None:
    """Return the number that a text of digits stands for; None: it is no such text, or too long."""
    digits = text.strip()
    return int(digits) if len(digits) <= CHARS_MAX and digits.isdecimal() else None


def parse_size_bytes(text: str | int, name: str = "size") -> int:
    """Return a size in bytes from a number or from text such as `32MB`, `32M`, `1.5 GiB`.

    text: The user's input.
    name: Name of the size, for the message.

    Raises:
        RequestError: The text is not a size, or is negative.
    """
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return _bounded_size(text, name)
    match = _SIZE.fullmatch(text) if isinstance(text, str) and len(text) <= CHARS_MAX else None
    if match is None:
        message = (
            f"{name} {shown(text)} is not a size; write bytes or a binary size such as 32MB or 1.5G"
        )
        raise RequestError(message)
    # A float would lose digits of a large number.
    number = float(match[1]) if "." in match[1] else int(match[1])
    return _bounded_size(int(number * 1024 ** _SIZE_UNITS[match[2].upper()]), name)


def _bounded_size(size_bytes: int, name: str) -> int:
    if size_bytes > SIZE_MAX_BYTES:
        raise RequestError(f"{name} is larger than the limit of 8 EiB")
    return size_bytes


def parse_duration_s(text: str | float, name: str = "duration") -> float:
    """Return a duration in seconds from a number or from text such as `2m`, `500ms`, `7d`.

    Args:
        text: The user's input.
        name: Name of the duration, for the message.

    Raises:
        RequestError: The text is not a duration, or is negative.
    """
    if isinstance(text, int | float) and not isinstance(text, bool) and 0 <= text < SECONDS_MAX:
        return float(text)
    match = _DURATION.fullmatch(text) if isinstance(text, str) and len(text) <= CHARS_MAX else None
    if match is None:
        message = (
            f"{name} {shown(text)} is not a duration;"
            " write seconds or a duration such as 500ms, 2m, 7d"
        )
        raise RequestError(message)
    return float(match[1]) * _DURATION_UNITS[match[2]]


def format_bytes(size_bytes: float) -> str:
    """Return a human-readable size: `1.5 MiB`."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"


def format_duration(seconds: float) -> str:
    """Return a human-readable duration: `340 ms`, `12.3 s`, `4 m 05 s`, `2 h 10 m`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def exact_bytes(size_bytes: float) -> str:
    """Return a size that `parse_size_bytes` parses to the same value: `64MB`, `1048577`."""
    return _exact(size_bytes, {f"{unit}B": 1024 ** _SIZE_UNITS[unit] for unit in "GMK"})


def exact_duration(seconds: float) -> str:
    """Return a duration that `parse_duration_s` parses to the same value: `7d`, `1.5`."""
    return _exact(seconds, {unit: _DURATION_UNITS[unit] for unit in "dhms"})


def _exact(value: float, units: Mapping[str, float]) -> str:
    """Return a value in the largest unit that divides it."""
    for unit, amount in units.items():
        if value and value % amount == 0:
            return f"{int(value // amount)}{unit}"
    return str(value)


def utc_text(at_s: float) -> str:
    """Return a time in UTC: `2026-03-01 12:30:00`, with a fraction of a second if it has one."""
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)
    except OverflowError:
        return f"second {at_s:.0f}"
    return at.replace(tzinfo=None).isoformat(" ")


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 file`, `1,200 files`.

    Args:
        count: The number.
        noun: The noun in the singular.
        plural: The noun in the plural; empty: the singular with an `s`.
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
