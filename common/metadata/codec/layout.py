"""Values as bytes: a version byte, then msgpack; decoded within bounds, never pickle.

A dataclass is encoded as the list of its fields in a fixed order, without trailing defaults. A
field may be added at the end with a default; other changes need a new version. A malformed value is
a `MetadataError` that names the key.

Fields after the known ones come from a newer release. They are kept in `unknown_fields` and
written back, so that both releases can run at the same time. A newer release may add such a field
only if an older release that ignores it does no harm. Otherwise it takes a new version byte, and
the value is refused here.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Generic, TypeVar, cast

import msgpack

from common.errors import BrokenValueError, MetadataError
from common.model.fields import UNKNOWN, StoredValue, known_fields

VERSION = 1
VALUE_BYTES_MAX = 32 * 1024**2
ITEMS_MAX = 1_000_000
TEXT_BYTES_MAX = 1024**2
SMALL_BYTES = min(TEXT_BYTES_MAX, ITEMS_MAX)
"""Size of values for which no part can exceed the decoder's limits."""
UNKNOWN_FIELDS_MAX = 64
UNKNOWN_BYTES_MAX = 64 * 1024
"""Largest size of fields that this release does not know, per value."""
SHAPES_MAX = 4096
"""Type patterns cached per layout; further ones are checked each time."""

PREFIX = bytes([VERSION])

T = TypeVar("T", bound=StoredValue)


def pack(value: object) -> bytes:
    """Return a plain value (lists, texts, bytes, numbers) as bytes that `unpack` accepts.

    Raises:
        MetadataError: The value, or a part of it, is too large.
    """
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    data = PREFIX + packed
    if len(data) > VALUE_BYTES_MAX:
        message = f"a value of {len(data)} bytes exceeds the store's {VALUE_BYTES_MAX}"
        raise MetadataError(message)
    if len(data) > SMALL_BYTES:
        try:
            unpack("a value", data)
        except BrokenValueError as error:
            raise MetadataError(
                f"a value cannot be stored, because it could not be read back: {error}"
            ) from error
    return data


def unpack(where: str, data: bytes) -> Any:
    """Return the plain value in `data`; lists become tuples.

    Args:
        where: The key and field of the value, for the message.
        data: The stored bytes.

    Raises:
        MetadataError: It has another version, is too large, or is not msgpack.
    """
    if data[:1] != PREFIX or len(data) > VALUE_BYTES_MAX:
        raise _foreign(where, data)
    try:
        return msgpack.unpackb(
            data[1:],
            use_list=False,
            raw=False,
            max_str_len=TEXT_BYTES_MAX,
            max_bin_len=TEXT_BYTES_MAX,
            max_array_len=ITEMS_MAX,
            max_map_len=ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise broken_value_error(where, f"cannot be decoded ({error})") from error


def broken_value_error(where: str, fact: str) -> BrokenValueError:
    """Return the error for a malformed stored value."""
    return BrokenValueError(f"{where}: the stored value {fact}; run `neve fsck`")


def stored_name(where: str, stored: bytes) -> str:
    """Return a name that is stored as text.

    Raises:
        BrokenValueError: It is not text.
    """
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        raise broken_value_error(
            f"{where} {stored[:100]!r}", "has a name that is not text"
        ) from error


def whole_number(where: str, stored: bytes | None) -> int:
    """Return a number that is stored as text; 0 if it is missing.

    Raises:
        BrokenValueError: It is not a number.
    """
    try:
        return int(stored or 0)
    except ValueError as error:
        raise broken_value_error(where, f"is not a whole number ({error})") from error


def kept_fields(where: str, unknown: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return fields of a newer release, if their number and size are within the limits.

    Raises:
        MetadataError: They exceed the limits.
    """
    if len(unknown) > UNKNOWN_FIELDS_MAX:
        few = f"at most {UNKNOWN_FIELDS_MAX} can be kept"
        raise broken_value_error(where, f"has {len(unknown)} unknown fields, {few}")
    size_bytes = len(msgpack.packb(unknown, use_bin_type=True))
    if size_bytes > UNKNOWN_BYTES_MAX:
        few = f"at most {UNKNOWN_BYTES_MAX} can be kept"
        raise broken_value_error(where, f"has {size_bytes} bytes of unknown fields, {few}")
    return unknown


def _foreign(where: str, data: bytes) -> BrokenValueError:
    if len(data) > VALUE_BYTES_MAX:
        return broken_value_error(
            where, f"has {len(data)} bytes, at most {VALUE_BYTES_MAX} are allowed"
        )
    if not data:
        return broken_value_error(where, "is empty")
    return BrokenValueError(
        f"{where}: the stored value has format version {data[0]}, this release reads {VERSION}"
    )


@dataclass(frozen=True, slots=True)
class Slot:
    """One field of a layout: its plain types, and its conversion to one."""

    name: str
    types: tuple[type, ...]
    to_plain: Callable[[Any], object] | None = None
    from_plain: Callable[[Any], object] | None = None


def text_slot(name: str, *, optional: bool = False) -> Slot:
    """Return a slot for text."""
    return Slot(name, (str, type(None)) if optional else (str,))


def bytes_slot(name: str, *, optional: bool = True) -> Slot:
    """Return a slot for bytes."""
    return Slot(name, (bytes, type(None)) if optional else (bytes,))


def integer_slot(name: str, *, optional: bool = False) -> Slot:
    """Return a slot for a whole number."""
    return Slot(name, (int, type(None)) if optional else (int,))


def number_slot(name: str, *, optional: bool = False) -> Slot:
    """Return a slot for a number."""
    return Slot(name, (float, int, type(None)) if optional else (float, int))


def flag_slot(name: str) -> Slot:
    """Return a slot for yes or no."""
    return Slot(name, (bool,))


def texts_slot(name: str) -> Slot:
    """Return a slot for a tuple of texts."""
    return Slot(name, (tuple,), None, _texts)


def enum_slot(name: str, words: Callable[[str], Any]) -> Slot:
    """Return a slot for a member of a `StrEnum`."""
    return Slot(name, (str,), str, words)


def pairs_slot(name: str, first: type, *second: type) -> Slot:
    """Return a slot for a tuple of pairs of the given types."""

    def from_plain(value: tuple[Any, ...]) -> tuple[tuple[Any, Any], ...]:
        for pair in value:
            if type(pair) is not tuple or len(pair) != 2:
                raise ValueError(f"{name} is no list of pairs")
            if type(pair[0]) is not first or type(pair[1]) not in second:
                raise ValueError(f"{name} holds other types")
        return value

    return Slot(name, (tuple,), None, from_plain)


def _texts(value: tuple[Any, ...]) -> tuple[str, ...]:
    if any(type(item) is not str for item in value):
        raise ValueError("a list of texts holds something else")
    return value


class PackedLayout(Generic[T]):
    """Encoding of one dataclass. Every field is in a slot or given by the key."""

    def __init__(
        self,
        made: type[T],
        *slots: Slot,
        given: tuple[str, ...] = (),
        bytes_max: int = VALUE_BYTES_MAX,
    ) -> None:
        defaults = {field.name: field.default for field in known_fields(made)}
        assert {slot.name for slot in slots} | {*given} == set(defaults), made
        self._make = made
        self._slots = slots
        self._bytes_max = bytes_max
        self._defaults = tuple(defaults[slot.name] for slot in slots)
        self._least = sum(default is MISSING for default in self._defaults)
        self.plain_defaults = tuple(map(_plain, slots, self._defaults))
        self._changes = tuple(slot for slot in slots if slot.from_plain)
        self.shapes: set[tuple[type, ...]] = set()

    def row(self, value: T) -> list[object]:
        """Return the fields as plain values, without trailing defaults."""
        row = [_plain(slot, getattr(value, slot.name)) for slot in self._slots]
        if value.unknown_fields:
            return [*row, *value.unknown_fields]
        count = len(row)
        while count > self._least and row[count - 1] == self.plain_defaults[count - 1]:
            count -= 1
        return row[:count]

    def pack(self, value: T) -> bytes:
        """Return `value` as bytes.

        Raises:
            MetadataError: It is larger than such a value may be.
        """
        data = pack(self.row(value))
        if len(data) > self._bytes_max:
            message = f"a {self._make.__name__} of {len(data)} bytes, at most {self._bytes_max}"
            raise MetadataError(f"{message} can be stored")
        return data

    def unpack(self, where: str, data: bytes, **given: object) -> T:
        """Return the value in `data`.

        Args:
            where: The key and field of the value.
            data: The stored bytes.
            **given: The fields that the key determines.

        Raises:
            MetadataError: It is not such a value.
        """
        return self.made(where, unpack(where, data), **given)

    def made(self, where: str, plain: object, **given: object) -> T:
        """Return the value in a row of plain values; otherwise like `unpack`."""
        row, unknown = self.checked(where, plain)
        named: dict[str, Any] = dict(zip((slot.name for slot in self._slots), row, strict=True))
        named[UNKNOWN] = unknown
        try:
            for slot in self._changes:
                if slot.from_plain is not None and named[slot.name] is not None:
                    named[slot.name] = slot.from_plain(named[slot.name])
            make: Any = self._make
            return cast("T", make(**named, **given))
        except (ValueError, TypeError, OverflowError) as error:
            raise broken_value_error(where, f"is no {self._make.__name__} ({error})") from error

    def checked(self, where: str, row: object) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return a row of the right types with defaults added, and the unknown fields after it."""
        if type(row) is not tuple or len(row) < self._least:
            raise broken_value_error(where, f"is no {self._make.__name__}: wrong number of fields")
        unknown: tuple[Any, ...] = ()
        if len(row) > len(self._slots):
            unknown = kept_fields(where, row[len(self._slots) :])
            row = row[: len(self._slots)]
        full: tuple[Any, ...] = row + self.plain_defaults[len(row) :]
        shape = tuple(map(type, full))
        if shape not in self.shapes:
            for slot, kind in zip(self._slots, shape, strict=True):
                if kind not in slot.types:
                    raise broken_value_error(
                        where, f"is no {self._make.__name__}: {slot.name} is {kind}"
                    )
            if len(self.shapes) < SHAPES_MAX:
                self.shapes.add(shape)
        return full, unknown


def _plain(slot: Slot, value: object) -> object:
    if slot.to_plain is None or value is None or value is MISSING:
        return value
    return slot.to_plain(value)


def plain_tree(value: object, depth_max: int = 6) -> object:
    """Return `value` if it consists of plain values only.

    Raises:
        ValueError: It holds other values, or is nested too deeply.
    """
    if value is None or type(value) in {bool, int, float, str, bytes}:
        return value
    if depth_max == 0:
        raise ValueError("nested too deeply")
    if isinstance(value, Mapping):
        return {str(key): plain_tree(item, depth_max - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(plain_tree(item, depth_max - 1) for item in value)
    raise ValueError(f"{type(value).__name__} is no plain value")
