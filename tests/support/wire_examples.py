"""An example of every message of `common.wire`, with a value of its own in each field.

A program as well, which runs with this release or an older one and uses nothing else of the
tests: `python wire_examples.py write` prints each message as a pickle and as plain values,
`python wire_examples.py read` reads that from its input and prints the plain values it finds.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
import sys
from collections.abc import Mapping
from enum import Enum
from itertools import count
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from common import wire
from common.model.tablet import TabletId

_NUMBERS = count(1000)
ABSENT = {("Table", "filling"), ("Table", "lake")}
"""Fields that no message between releases has: nothing is planned for a table that is being filled,
and older compactors get no job of a lake table."""


def messages() -> dict[str, type]:
    """Return the messages by name."""
    return {
        name: kind
        for name, kind in vars(wire).items()
        if dataclasses.is_dataclass(kind)
        and kind.__module__.startswith((wire.__name__, "neve.api"))
    }


def hints_of(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's or named tuple's fields."""
    # `common.model.job` names it for the checker of types only.
    return get_type_hints(kind, localns={"TabletId": TabletId})


def example(hint: Any) -> Any:
    """Return a value of a type, unlike every other and unlike its default."""
    if get_origin(hint) in (Union, UnionType):
        return example(next(get_arg for get_arg in get_args(hint) if get_arg is not NoneType))
    if get_origin(hint) is tuple:
        return tuple(example(get_arg) for get_arg in get_args(hint) if get_arg is not ...)
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        return {example(each): example(other) for each, other in [get_args(hint)]}
    if dataclasses.is_dataclass(hint):
        return _filled(hint)
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return hint(**{name: example(each) for name, each in hints_of(hint).items()})
    return _single(hint)


def _filled(kind: Any) -> Any:
    """Return a dataclass whose fields need not fit each other, as after reading a pickle."""
    value = object.__new__(kind)
    names = [each.name for each in dataclasses.fields(kind)]
    for name, hint in ((name, hints_of(kind)[name]) for name in names):
        absent = (kind.__name__, name) in ABSENT
        object.__setattr__(value, name, None if absent else example(hint))
    return value


def _single(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    number = next(_NUMBERS)
    simple = {
        bool: True,
        int: number,
        float: number + 0.5,
        bytes: str(number).encode(),
        str: f"text-{number}",
        Any: f"anything-{number}",
    }
    return simple[hint]


def plain(value: Any) -> Any:
    """Return a value as JSON knows it; dataclasses and named tuples become mappings."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value.hex() if isinstance(value, bytes) else value


def written() -> dict[str, dict[str, Any]]:
    """Return an example of each message: its pickle in base64, and what is in it."""
    examples = {name: example(kind) for name, kind in messages().items()}
    return {
        name: {
            "pickle": base64.b64encode(pickle.dumps(each, protocol=5)).decode(),
            "plain": plain(each),
        }
        for name, each in examples.items()
    }


def read(text: str) -> Any:
    """Return a message from its pickle in base64."""
    return pickle.loads(base64.b64decode(text))


def main(verb: str) -> None:
    if verb == "write":
        json.dump(written(), sys.stdout)
    else:
        json.dump(
            {name: plain(read(each)) for name, each in json.load(sys.stdin).items()}, sys.stdout
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
