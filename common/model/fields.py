"""Fields of stored values: type checks, and fields of a newer release. Pure.

While releases are exchanged one process after the other, an older one reads what a newer
one has written, and writes some of it back. Unknown fields are read with the value, go along
with `dataclasses.replace`, and are written back as they were. They count neither for equality
nor for people. Values also come from archives and files: one whose field has a wrong type is
refused where it is made.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

UNKNOWN = "unknown_fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValue:
    """A stored value, which may carry fields of a newer release."""

    unknown_fields: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """Values that follow the known ones, in order, or pairs of name and value."""


def known_fields(value: Any) -> tuple[Field[Any], ...]:
    """Return the fields of a dataclass or its instance that this release defines."""
    return tuple(entry for entry in fields(value) if entry.name != UNKNOWN)


def as_plain(value: Any) -> dict[str, Any]:
    """Return a dataclass and its nested dataclasses as mappings, without unknown fields."""
    return asdict(value, dict_factory=_without_unknown)


def _without_unknown(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name != UNKNOWN}


Fits = Callable[[Any], bool]


def check_field_types(value: Any) -> None:
    """Refuse a dataclass with a field that does not have its declared type.

    Raises:
        TypeError: Names the field, its value and the expected type.
    """
    kind: Any = type(value)
    for name, wanted, fits in _checks(kind):
        field_value = getattr(value, name)
        if not fits(field_value):
            shown = f"{type(field_value).__name__} {str(field_value)[:100]!r}"
            message = f"{name} is {shown}, expected {wanted}"
            raise TypeError(message)


@lru_cache(maxsize=64)
def _checks(kind: Any) -> tuple[tuple[str, str, Fits], ...]:
    hints = get_type_hints(kind)
    wanted = [(known_field.name, hints[known_field.name]) for known_field in known_fields(kind)]
    return tuple((name, _name_of(hint), _fits(hint)) for name, hint in wanted)


def _name_of(hint: Any) -> str:
    plain = isinstance(hint, type) and not get_args(hint)
    return hint.__name__ if plain else str(hint).replace("collections.abc.", "")


def _fits(hint: Any) -> Fits:
    """Return a check for a type. It covers the types that fields of values have."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is UnionType:
        choices = [_fits(part) for part in parts]
        return lambda value: any(fits(value) for fits in choices)
    if origin is tuple:
        assert parts[1:] == (...,), hint
        inner = _fits(parts[0])
        return lambda value: type(value) is tuple and all(map(inner, value))
    if origin is Mapping:
        first, second = map(_fits, parts)
        return lambda value: (
            isinstance(value, Mapping)
            and all(first(key) and second(item) for key, item in value.items())
        )
    assert isinstance(hint, type), hint
    return _PLAIN.get(hint) or (lambda value: isinstance(value, hint))


_FLOAT_MAX = sys.float_info.max
_WHOLE_MAX = (1 << 63) - 1
"""Largest integer that every part, and msgpack, supports."""


def _is_whole(value: Any) -> bool:
    return type(value) is int and -_WHOLE_MAX <= value <= _WHOLE_MAX


def _is_real(value: Any) -> bool:
    return _is_whole(value) or (type(value) is float and -_FLOAT_MAX <= value <= _FLOAT_MAX)


_PLAIN: Mapping[type, Fits] = {
    bool: lambda value: type(value) is bool,
    int: _is_whole,
    float: _is_real,
    NoneType: lambda value: value is None,
}
