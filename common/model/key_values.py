"""The values of keys, versions and times, and their text form.

The values here are not encoded; `common.model.keys` encodes them.

A `KeyType` is a family of column types whose values compare alike and encode to the same bytes
whatever their width. A *plain* value is the single Python representation of a family: `bool`,
`int`, `float`, `Decimal`, `str`, `bytes`. Dates are days, and times of day and timestamps are
nanoseconds, so no value is out of range or rounded.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from common.errors import RequestError

DECIMAL_SCALE = 38
"""Digits after the point of every decimal, whatever its column declares."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY = date(1970, 1, 1).toordinal()
NANOS = 1_000_000_000
_TYPE_NAME = re.compile(r"[a-z]+")


class KeyType(StrEnum):
    """A family of column types with one order and one encoding."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"


_FAMILIES = {
    "bool": KeyType.BOOL,
    "int": KeyType.INT,
    "uint": KeyType.INT,
    "float": KeyType.FLOAT,
    "double": KeyType.FLOAT,
    "decimal": KeyType.DECIMAL,
    "string": KeyType.STRING,
    "binary": KeyType.BINARY,
    "date": KeyType.DATE,
    "time": KeyType.TIME,
    "timestamp": KeyType.TIMESTAMP,
}


def key_type_of(type_text: str) -> KeyType:
    """Return the family of a column type given as text (`int32`, `timestamp[us, UTC]`).

    Raises:
        RequestError: Columns of this type cannot be in a key.
    """
    match = _TYPE_NAME.match(type_text)
    family = _FAMILIES.get(match[0]) if match else None
    if family is None:
        message = f"column type {type_text} has no order; a key, version or time cannot have it"
        raise RequestError(message)
    return family


def plain_value(value: object, key_type: KeyType) -> object:
    """Return the plain form of a Python value; None stays None.

    Dates, times and datetimes become numbers (a datetime without a zone is UTC).

    Raises:
        RequestError: The value is not of this family, or out of its range.
    """
    if value is None:
        return None
    plain = _PLAIN[key_type](value)
    if plain is None:
        message = f"key value {value!r:.100} is not of type {key_type}"
        raise RequestError(message)
    return plain


DECIMAL_DIGITS_READ = 1000
"""Longest decimal that is read, in digits; digits beyond the first 76 must be zeros."""


def decimal_units(value: Decimal) -> int | None:
    """Return the value in units of 10^-38; None if it does not fit 38 + 38 digits."""
    if not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    shift = DECIMAL_SCALE + exponent
    if not any(digits):
        return 0
    # Checked before the computation: a few characters may stand for a billion digits.
    if len(digits) > DECIMAL_DIGITS_READ or not -DECIMAL_DIGITS_READ <= shift <= 76:
        return None
    number = int("".join(map(str, digits)))
    ten: int = 10 ** abs(shift)
    units, rest = (number * ten, 0) if shift >= 0 else divmod(number, ten)
    if rest or units >= 10**76:
        return None
    return -units if sign else units


def decimal_from_units(units: int) -> Decimal:
    """Return the decimal that has this many units of 10^-38, without trailing zeros."""
    magnitude, exponent = abs(units), -DECIMAL_SCALE
    while exponent < 0 and magnitude % 10 == 0:
        magnitude, exponent = magnitude // 10, exponent + 1
    return Decimal((int(units < 0), tuple(map(int, str(magnitude))), exponent))


def _plain_int(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -(2**63) <= value < 2**64 else None


def _plain_float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _plain_decimal(value: object) -> Decimal | None:
    number = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(number, Decimal):
        return None
    units = decimal_units(number)
    return None if units is None else decimal_from_units(units)


def _plain_date(value: object) -> int | None:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - EPOCH_DAY
    return _signed(value)


def _plain_time(value: object) -> int | None:
    if isinstance(value, time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * NANOS + value.microsecond * 1000
    return _signed(value)


def _plain_timestamp(value: object) -> int | None:
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH
        return (since.days * 86_400 + since.seconds) * NANOS + since.microseconds * 1000
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -(2**63) <= value // NANOS < 2**63 else None


def _signed(value: object) -> int | None:
    number = _plain_int(value)
    return number if number is not None and number < 2**63 else None


def _plain_string(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return value if value.encode(errors="ignore").decode() == value else None  # lone surrogates


def _typed(kind: type) -> Callable[[object], object]:
    return lambda value: value if isinstance(value, kind) else None


_PLAIN: dict[KeyType, Callable[[object], object]] = {
    KeyType.BOOL: _typed(bool),
    KeyType.INT: _plain_int,
    KeyType.FLOAT: _plain_float,
    KeyType.DECIMAL: _plain_decimal,
    KeyType.STRING: _plain_string,
    KeyType.BINARY: _typed(bytes),
    KeyType.DATE: _plain_date,
    KeyType.TIME: _plain_time,
    KeyType.TIMESTAMP: _plain_timestamp,
}


# ---- Values as text
#
# Dates, times and timestamps are ISO 8601 with up to nine digits of a second, or a plain JSON
# number (days, nanoseconds); binary is `0x` and hex digits.


_FRACTION = re.compile(r"(?P<head>[^.]*?)(?:\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?")


def value_from_text(raw: object, key_type: KeyType) -> object:
    """Return the plain value of a user's JSON value or command-line text.

    Numbers may be text. A timestamp without a zone is UTC.

    Raises:
        RequestError: The text is not a value of this family.
    """
    if not isinstance(raw, str):
        if isinstance(raw, float) and key_type is KeyType.DECIMAL:
            raw = Decimal(repr(raw))
        return plain_value(raw, key_type)
    try:
        return plain_value(_FROM_TEXT[key_type](raw), key_type)
    except (ValueError, InvalidOperation, OverflowError, KeyError) as error:
        message = (
            f"key value {raw!r:.100} cannot be read as {key_type}: expected {_WANTED[key_type]}"
        )
        raise RequestError(message) from error


def value_to_json(value: object, key_type: KeyType) -> object:
    """Return a plain value as readable JSON that `value_from_text` parses back."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, int) and key_type in _ISO:
        try:
            return _ISO[key_type](value)
        except (OverflowError, ValueError):  # Outside the years 1 to 9999: kept as a number.
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
