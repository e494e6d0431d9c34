"""Do the fields of a value have the types that they are declared with? Pure.

Values of tables come from archives, from files beside the data and from Redis, not only
from callers that a type checker has seen. A wrong one is refused where it is made, so that
no part of the service ever meets it.
"""

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from common.model.unknown_fields import known_fields

Fits = Callable[[Any], bool]


def check_field_types(value: Any) -> None:
    """Refuse a dataclass one of whose fields has another type than it is declared with.

    Raises:
        TypeError: Names the field, what it holds and what was wanted.
    """
    kind: Any = type(value)
    for name, wanted, fits in _checks(kind):
        found = getattr(value, name)
        if not fits(found):
            message = f"{name} is {type(found).__name__} {str(found)[:100]!r}, wanted {wanted}"
            raise TypeError(message)


@lru_cache(maxsize=64)
def _checks(kind: Any) -> tuple[tuple[str, str, Fits], ...]:
    hints = get_type_hints(kind)
    wanted = [(each.name, hints[each.name]) for each in known_fields(kind)]
    return tuple((name, _name_of(hint), _fits(hint)) for name, hint in wanted)


def _name_of(hint: Any) -> str:
    plain = isinstance(hint, type) and not get_args(hint)
    return hint.__name__ if plain else str(hint).replace("collections.abc.", "")


def _fits(hint: Any) -> Fits:
    """Return whether a value is of a type, for the types that fields of values have."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is UnionType:
        choices = [_fits(each) for each in parts]
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
"""What every part, and msgpack, can hold."""


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
