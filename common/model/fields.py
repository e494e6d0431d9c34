"""Fields of stored values: do they have their declared types, and those of a newer release. Pure.

While releases are exchanged one process after the other, an older one reads what a newer
one has written, and writes some of it back. Unknown fields are read with the value, go along
with `dataclasses.replace`, and are written back as they were. They count neither for equality
nor for people. Values also come from archives and files: one whose field has a wrong type is
refused where it is made.

Messages travel as pickles, whose fields have places and no names: `readable_across_releases`.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

UNKNOWN = "unknown_fields"
T = TypeVar("T")


def readable_across_releases(kind: type[T]) -> type[T]:
    """Let a slotted dataclass be read from a pickle of the release before this one, or after it.

    Such a pickle is a list of values in the order of the fields. Without this, a field that the
    sender did not know stays without a value, and whoever reads it fails. Here it gets its
    default. Values behind the last known field are dropped, also by releases without this.

    Therefore a new field comes last, with a default, and no field is removed or moved. It has a
    type that the release before knows, where that release reads the message.
    """
    kind.__setstate__ = restore_fields  # type: ignore[attr-defined]  # pickle calls it
    return kind


def restore_fields(value: Any, state: list[Any]) -> None:
    """Fill a value that pickle has made.

    Raises:
        TypeError: A field without a default is not in the pickle.
    """
    for place, each in enumerate(fields(value)):
        found = state[place] if place < len(state) else _default(value, each)
        object.__setattr__(value, each.name, found)


def _default(value: Any, missing: Field[Any]) -> Any:
    if missing.default is not MISSING:
        return missing.default
    if missing.default_factory is not MISSING:
        return missing.default_factory()
    raise TypeError(
        f"{type(value).__name__} of another release has no {missing.name}, which has no default"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValue:
    """A value that is stored, and may carry fields of a newer release."""

    unknown_fields: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """Values in their order behind the known ones, or pairs of name and value."""


def known_fields(value: Any) -> tuple[Field[Any], ...]:
    """Return the fields of a dataclass, or of a value of it, that this release knows."""
    return tuple(each for each in fields(value) if each.name != UNKNOWN)


def as_plain(value: Any) -> dict[str, Any]:
    """Return a dataclass and those inside it as mappings, without unknown fields."""
    return asdict(value, dict_factory=_known)


def _known(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name != UNKNOWN}


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
            message = f"{name} is {type(found).__name__} {str(found)[:100]!r}, expected {wanted}"
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
    """Return whether a value is of a type, for the types that fields of values have."""
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
