"""The values that keys, versions and times are made of, before they are bytes.

A `KeyType` is a family of column types whose values compare alike and encode to the
same bytes whatever their width. A *plain* value is the one Python form per family:
`bool`, `int`, `float`, `Decimal`, `str`, `bytes`; dates are days, times of day and
timestamps nanoseconds, so that nothing is out of range or rounded.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import StrEnum

from common.errors import RequestError

DECIMAL_SCALE = 38
"""Every decimal is held with this many digits after the point, whatever its column declares."""
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
    """Return the family of a column type in its text form (`int32`, `timestamp[us, UTC]`).

    Raises:
        RequestError: Columns of this type cannot be in a key.
    """
    match = _TYPE_NAME.match(type_text)
    family = _FAMILIES.get(match[0]) if match else None
    if family is None:
        message = f"column type {type_text} has no order; a key, version or time cannot be of it"
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
        message = f"key value {value!r} is not of type {key_type}"
        raise RequestError(message)
    return plain


DECIMAL_DIGITS_READ = 1000
"""Of a decimal; of all but 76 of them nothing may be left but zeros."""


def decimal_units(value: Decimal) -> int | None:
    """Return the value in units of 10^-38; None if it does not fit 38 + 38 digits."""
    if not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    shift = DECIMAL_SCALE + exponent
    if not any(digits):
        return 0
    # Looked at before anything is computed: a few characters may stand for a billion digits.
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
