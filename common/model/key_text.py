"""What users write for the values of a key, and what they read.

Dates, times and timestamps are ISO 8601 with up to nine digits of a second, or a plain
JSON number (days, nanoseconds); binary is `0x` and hex digits.
"""

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation

from common.errors import RequestError
from common.model.key_values import EPOCH, EPOCH_DAY, NANOS, KeyType, plain_value

_FRACTION = re.compile(r"(?P<head>[^.]*?)(?:\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?")


def value_from_text(raw: object, key_type: KeyType) -> object:
    """Return the plain value of what a user wrote in JSON or on a command line.

    Numbers may be text. A timestamp without a zone is UTC.

    Raises:
        RequestError: It cannot be read as this family.
    """
    if not isinstance(raw, str):
        if isinstance(raw, float) and key_type is KeyType.DECIMAL:
            raw = Decimal(repr(raw))
        return plain_value(raw, key_type)
    try:
        return plain_value(_FROM_TEXT[key_type](raw), key_type)
    except (ValueError, InvalidOperation, OverflowError, KeyError) as error:
        message = f"key value {raw!r} cannot be read as {key_type}: wanted {_WANTED[key_type]}"
        raise RequestError(message) from error


def value_to_json(value: object, key_type: KeyType) -> object:
    """Return a plain value as JSON that people can read and `value_from_text` reads back."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, int) and key_type in _ISO:
        try:
            return _ISO[key_type](value)
        except (OverflowError, ValueError):  # Beyond the years 1 to 9999: left as a number.
            return value
    return value


def _split_fraction(text: str) -> tuple[str, str, int]:
    match = _FRACTION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match["head"], match["zone"] or "", int((match["fraction"] or "0").ljust(9, "0"))


def _timestamp_from_text(text: str) -> int:
    head, zone, nanos = _split_fraction(text.strip())
    whole = plain_value(datetime.fromisoformat(head + zone), KeyType.TIMESTAMP)
    assert isinstance(whole, int)
    return whole + nanos


def _time_from_text(text: str) -> int:
    head, zone, nanos = _split_fraction(text.strip())
    whole = plain_value(time.fromisoformat(head), KeyType.TIME)
    if zone:
        raise ValueError(text)
    assert isinstance(whole, int)
    return whole + nanos


def _with_fraction(text: str, nanos: int) -> str:
    return f"{text}.{nanos:09d}".rstrip("0") if nanos else text


def _timestamp_to_iso(value: int) -> str:
    seconds, nanos = divmod(value, NANOS)
    whole = (EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None)
    return _with_fraction(whole.isoformat(), nanos) + "Z"


def _time_to_iso(value: int) -> str:
    seconds, nanos = divmod(value, NANOS)
    whole = time(seconds // 3600, seconds // 60 % 60, seconds % 60)
    return _with_fraction(whole.isoformat(), nanos)


def _date_to_iso(value: int) -> str:
    return date.fromordinal(value + EPOCH_DAY).isoformat()


def _binary_from_text(text: str) -> bytes:
    if not text.startswith("0x"):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


_FROM_TEXT: dict[KeyType, Callable[[str], object]] = {
    KeyType.BOOL: lambda text: {"true": True, "false": False}[text.lower()],
    KeyType.INT: int,
    KeyType.FLOAT: float,
    KeyType.DECIMAL: Decimal,
    KeyType.STRING: str,
    KeyType.BINARY: _binary_from_text,
    KeyType.DATE: date.fromisoformat,
    KeyType.TIME: _time_from_text,
    KeyType.TIMESTAMP: _timestamp_from_text,
}
_ISO: dict[KeyType, Callable[[int], str]] = {
    KeyType.DATE: _date_to_iso,
    KeyType.TIME: _time_to_iso,
    KeyType.TIMESTAMP: _timestamp_to_iso,
}
_WANTED = {
    KeyType.BOOL: "true or false",
    KeyType.INT: "a whole number",
    KeyType.FLOAT: "a number",
    KeyType.DECIMAL: "a decimal number",
    KeyType.STRING: "text",
    KeyType.BINARY: "0x and hex digits",
    KeyType.DATE: "a date such as 2024-12-31",
    KeyType.TIME: "a time such as 23:59:59.5",
    KeyType.TIMESTAMP: "a timestamp such as 2024-12-31T23:59:59Z",
}
