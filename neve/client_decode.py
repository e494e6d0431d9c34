"""Wire models from JSON. Imports nothing of the project."""

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, cast

from neve.client_errors import ProtocolError

T = TypeVar("T")


def decode(kind: type[T], value: Any) -> T:
    """Return a value of an annotated type from its JSON form.

    Names that the class does not know are left out: the server may be newer.

    Raises:
        ProtocolError: A field that must be there is not, or has another form.
    """
    try:
        return cast("T", _decode(kind, value, kind.__name__))
    except ValueError as error:
        message = f"the service's answer is not understood: {error}; are the versions alike?"
        raise ProtocolError(message) from error


def decode_list(kind: type[T], answer: Any, name: str) -> list[T]:
    """Return the values under one name of an answer.

    Args:
        kind: Of each value.
        answer: A JSON object.
        name: Where in it they are.
    """
    listed = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        message = f"the service's answer has no list {name!r}; are the versions alike?"
        raise ProtocolError(message)
    return [decode(kind, each) for each in listed]


def _decode(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _decode_object(cast("type[Any]", kind), value, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        present = [option for option in inner if option is not type(None)]
        return None if value is None else _decode(present[0], value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_decode(inner[0], each, where) for each in value)
    if origin is dict and isinstance(value, dict):
        return dict(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    whole = kind is not int or not isinstance(value, bool)
    if isinstance(kind, type) and isinstance(value, kind) and whole:
        return value
    raise ValueError(f"{where} is {value!r}, wanted {kind}")


def _decode_object(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}, wanted an object")  # noqa: TRY004  one kind of error for callers
    hints = typing.get_type_hints(kind)
    known: dict[str, Any] = {}
    for each in fields(kind):
        if each.name in value:
            known[each.name] = _decode(hints[each.name], value[each.name], f"{where}.{each.name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{where}.{each.name} is missing")
    return kind(**known)
