"""The messages between a service and its reader processes: limits, frames, orders, answers.

A reader has opened hostile bytes, so its answers must not run code: they are values of known kinds.
The fork server imports this module, so it must not import anything heavy.
"""

import io
import pickle
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from common.errors import CompactionError

# ------------------------------------------------------------------------------------------- Limits


IDLE_READERS_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLimits:
    """Limits of the readers of one service."""

    readers: int = 8
    """Concurrent readers; the same number in addition if none of them finishes for a while."""
    memory_bytes: int = 1024**3
    """Data memory of each reader, beyond what it starts with."""
    wait_s: float = 300.0
    """Longest time for one piece of work."""
    patience_s: float = 10.0
    """Time after `wait_s` at which a reader that did not end itself is ended. Also how long work
    waits for a regular slot before it gets a spare one."""
    kept: int = IDLE_READERS_MAX
    """Idle readers that are kept; further ones are ended after their work."""
    works: int = 1000
    """Pieces of work after which a reader is replaced, because its memory never shrinks."""
    answer_bytes: int = 256 * 1024**2
    """Largest answer."""


# ------------------------------------------------------------------------------------------- Frames


FORK, END = b"f", b"e"
"""Orders to the fork server: fork a reader, end a reader."""
ID = struct.Struct(">q")
"""Id of a process."""
LIMITS = struct.Struct(">qd?")
"""Limits of a new reader: bytes of memory, seconds for a piece of work, network or not."""
ENDED_BY_US = -2
"""Status of a reader that still ran, instead of one from `waitpid`."""
LENGTH = struct.Struct(">Q")


class LinkError(Exception):
    """The other side is gone, is silent for too long, or sends a message that is too long."""


def send(link: socket.socket, message: bytes) -> None:
    """Send a message.

    Raises:
        LinkError: The other side does not receive it.
    """
    try:
        link.sendall(LENGTH.pack(len(message)))
        link.sendall(message)
    except OSError as error:
        raise LinkError(f"the other side does not receive the message: {error}") from error


def receive(link: socket.socket, bytes_max: int) -> bytes:
    """Return the next message.

    Args:
        link: Its time-out applies to each piece of the message.
        bytes_max: A longer message is refused before memory is taken for it.

    Raises:
        TimeoutError: Nothing was received for too long.
        LinkError: The other side is gone, or the message is too long.
    """
    (length,) = LENGTH.unpack(_exactly(link, LENGTH.size))
    if length > bytes_max:
        raise LinkError(f"message of {length} bytes is larger than the limit of {bytes_max} bytes")
    return _exactly(link, length)


def _exactly(link: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        try:
            piece = link.recv(min(count - len(content), 1 << 20))
        except TimeoutError:
            raise
        except OSError as error:
            raise LinkError(f"the other side has closed the link: {error}") from error
        if not piece:
            raise LinkError("the other side has closed the link")
        content += piece
    return bytes(content)


# ---- Orders and answers
#
# Orders go to readers as pickles, because readers trust the service. Answers are pickles, too, but
# only values of known kinds are created from them: our dataclasses, enumerations and errors, Arrow
# schemas, numbers, texts and times.


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
class ReaderResult:
    """The return value of the work."""

    value: Any


@dataclass(frozen=True, slots=True)
class ReaderRefusal:
    """An error that the work raised on purpose."""

    error: CompactionError


@dataclass(frozen=True, slots=True)
class ReaderFailure:
    """An unexpected error of the work."""

    cause: str


@dataclass(frozen=True, slots=True)
class ReaderOutOfMemory:
    """The work exceeded the memory of a reader."""


Result = ReaderResult | ReaderRefusal | ReaderFailure | ReaderOutOfMemory


@dataclass(frozen=True, slots=True)
class ReaderOrder:
    """A piece of work."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


class ReaderAnswerError(Exception):
    """An answer is malformed."""


def unpack_order(message: bytes) -> ReaderOrder:
    """Return the order in a message from the service."""
    # From the parent process, over a link that no other process has.
    order = pickle.loads(message)
    assert isinstance(order, ReaderOrder)
    return order


def pack_message(value: object) -> bytes:
    """Return a value as a message."""
    sink = io.BytesIO()
    _Packer(sink, protocol=5).dump(value)
    return sink.getvalue()


def unpack_answer(message: bytes) -> Result:
    """Return the result in an answer.

    Raises:
        ReaderAnswerError: It is malformed, or holds other values than plain ones.
    """
    try:
        answer = _Values(io.BytesIO(message)).load()
    except Exception as error:  # A compromised reader may send anything.
        raise ReaderAnswerError(f"{type(error).__name__}: {error}") from error
    if not isinstance(answer, Result):
        raise ReaderAnswerError(f"a value of {type(answer).__name__}")
    return answer


class _Packer(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        if isinstance(value, datetime) and value.tzinfo is not None:
            # Arrow's times have a `ZoneInfo`, which is pickled with `getattr`. Answers must not use
            # it. The same instant in UTC is pickled with plain values.
            return value.astimezone(UTC).__reduce_ex__(5)
        # Python 3.11.0 to 3.11.3 would pickle enums with `getattr`, too.
        return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented


class _Values(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in PLAIN:
            return super().find_class(module, name)
        if module == "pyarrow.lib" and _makes_a_type(name):
            return super().find_class(module, name)
        if module.partition(".")[0] in OUR_PACKAGES and "." not in name:
            # The caller has imported the module already; nothing is imported on behalf of a reader.
            kind = getattr(sys.modules.get(module), name, None)
            if _is_value(kind):
                return kind
        raise pickle.UnpicklingError(f"an answer holds {module}.{name}, which is not a plain value")


def _is_value(kind: object) -> bool:
    return isinstance(kind, type) and (
        is_dataclass(kind) or issubclass(kind, Enum | CompactionError)
    )


def _makes_a_type(name: str) -> bool:
    """Return whether an Arrow function only creates schemas, fields or types."""
    return name in {"schema", "field", "type_for_alias", "KeyValueMetadata"} or name in _TYPES


_TYPES = frozenset(
    {
        *("decimal128", "decimal256", "decimal32", "decimal64", "timestamp", "duration", "time32"),
        *("time64", "list_", "large_list", "struct", "map_", "dictionary", "binary", "union"),
        *("list_view", "large_list_view", "run_end_encoded", "fixed_size_binary"),
        *("uuid", "json_", "bool8", "opaque", "fixed_shape_tensor"),
    }
)
