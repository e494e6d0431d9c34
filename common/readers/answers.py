"""What a reader answers with. A reader has opened hostile bytes, so its answers run no code.

Orders go to readers by `pickle`: the service is trusted by them. Answers come back by it, too,
but only values of known kinds are made of them: our dataclasses, enumerations and errors,
schemas of Arrow, numbers, texts and times.
"""

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

from common.errors import CompactionError

OUR_PACKAGES = frozenset({"common", "coordinator", "compactor", "neve"})
PLAIN = frozenset(
    {
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "bytearray"),
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("copyreg", "_reconstructor"),
        ("builtins", "object"),
    }
)


@dataclass(frozen=True, slots=True)
class Done:
    """What the work returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """What the work raised on purpose."""

    error: CompactionError


@dataclass(frozen=True, slots=True)
class Failed:
    """What the work raised without meaning to."""

    cause: str


@dataclass(frozen=True, slots=True)
class Short:
    """The work wanted more memory than a reader has."""


Result = Done | Refused | Failed | Short


@dataclass(frozen=True, slots=True)
class Order:
    """A piece of work."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


class AnswerError(Exception):
    """An answer is none."""


def ordered(message: bytes) -> Order:
    """Return the order in a message of the service."""
    # From the process that started this one, over a link that nobody else has.
    found = pickle.loads(message)
    assert isinstance(found, Order)
    return found


def packed(value: object) -> bytes:
    """Return a value as a message."""
    sink = io.BytesIO()
    _Packer(sink, protocol=5).dump(value)
    return sink.getvalue()


def unpacked(message: bytes) -> Result:
    """Return the result in an answer.

    Raises:
        AnswerError: There is none, or it holds something else than plain values.
    """
    try:
        found = _Values(io.BytesIO(message)).load()
    except Exception as error:  # Whatever a reader may be made to send.
        raise AnswerError(f"{type(error).__name__}: {error}") from error
    if not isinstance(found, Result):
        raise AnswerError(f"a value of {type(found).__name__}")
    return found


class _Packer(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        # Python 3.11.0 to 3.11.3 would write `getattr`, which no answer may hold.
        return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented


class _Values(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in PLAIN:
            return super().find_class(module, name)
        if module == "pyarrow.lib" and _makes_a_type(name):
            return super().find_class(module, name)
        if module.partition(".")[0] in OUR_PACKAGES and "." not in name:
            # Who asked for it knows it; nothing is imported on a reader's word.
            found = getattr(sys.modules.get(module), name, None)
            if _is_value(found):
                return found
        raise pickle.UnpicklingError(f"an answer holds {module}.{name}, which is no plain value")


def _is_value(found: object) -> bool:
    return isinstance(found, type) and (
        is_dataclass(found) or issubclass(found, Enum | CompactionError)
    )


def _makes_a_type(name: str) -> bool:
    """Return whether a name of Arrow makes schemas, fields and types, and nothing else."""
    return name in {"schema", "field", "type_for_alias", "KeyValueMetadata"} or name in _TYPES


_TYPES = frozenset(
    {
        *("decimal128", "decimal256", "decimal32", "decimal64", "timestamp", "duration", "time32"),
        *("time64", "list_", "large_list", "struct", "map_", "dictionary", "binary", "union"),
        *("list_view", "large_list_view", "run_end_encoded", "fixed_size_binary"),
        *("uuid", "json_", "bool8", "opaque", "fixed_shape_tensor"),
    }
)
