"""What a service and its reader processes say to each other: limits, frames, orders, answers.

A reader has opened hostile bytes, so its answers run no code: they are values of known kinds.
Imported by the fork server, so nothing heavy may be imported here.
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
    """At a time; as many again if none of them ends for a while."""
    memory_bytes: int = 1024**3
    """Of the data of each, beyond what it begins with."""
    wait_s: float = 300.0
    """Longest time for one piece of work."""
    patience_s: float = 10.0
    """So much later, one that did not end itself is ended: it is frozen. And how long work waits
    for a place before it gets a spare one."""
    kept: int = IDLE_READERS_MAX
    """Readers that wait for work; more are ended when they have done theirs."""
    works: int = 1000
    """Pieces of work after which another one takes its place: memory that was taken stays taken."""
    answer_bytes: int = 256 * 1024**2
    """Largest answer."""


# ------------------------------------------------------------------------------------------- Frames


FORK, END = b"f", b"e"
"""Orders to a nursery: fork a reader, end one."""
ID = struct.Struct(">q")
"""Of a process."""
LIMITS = struct.Struct(">qd?")
"""Of a reader to be forked: bytes of memory, seconds for a piece of work, with network or not."""
ENDED_BY_US = -2
"""In place of what `waitpid` says: the reader still ran."""
LENGTH = struct.Struct(">Q")


class LinkError(Exception):
    """The other side is gone, silent for too long, or sends more than it may."""


def send(link: socket.socket, message: bytes) -> None:
    """Send a message.

    Raises:
        LinkError: Nobody takes it.
    """
    try:
        link.sendall(LENGTH.pack(len(message)))
        link.sendall(message)
    except OSError as error:
        raise LinkError(f"nobody takes the message: {error}") from error


def receive(link: socket.socket, bytes_max: int) -> bytes:
    """Return the next message.

    Args:
        link: Its time-out counts for each piece of the message.
        bytes_max: A longer message is refused before memory is taken for it.

    Raises:
        TimeoutError: Nothing came for too long.
        LinkError: The other side is gone, or the message is too long.
    """
    (length,) = LENGTH.unpack(_exactly(link, LENGTH.size))
    if length > bytes_max:
        raise LinkError(f"a message of {length} bytes, at most {bytes_max} are taken")
    return _exactly(link, length)


def _exactly(link: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        try:
            piece = link.recv(min(count - len(found), 1 << 20))
        except TimeoutError:
            raise
        except OSError as error:
            raise LinkError(f"the other side is gone: {error}") from error
        if not piece:
            raise LinkError("the other side is gone")
        found += piece
    return bytes(found)


# ---- Orders and answers
#
# Orders go to readers by `pickle`: the service is trusted by them. Answers come back by it, too,
# but only values of known kinds are made of them: our dataclasses, enumerations and errors,
# schemas of Arrow, numbers, texts and times.


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
    """What the work returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class ReaderRefusal:
    """What the work raised on purpose."""

    error: CompactionError


@dataclass(frozen=True, slots=True)
class ReaderFailure:
    """What the work raised without meaning to."""

    cause: str


@dataclass(frozen=True, slots=True)
class ReaderOutOfMemory:
    """The work wanted more memory than a reader has."""


Result = ReaderResult | ReaderRefusal | ReaderFailure | ReaderOutOfMemory


@dataclass(frozen=True, slots=True)
class ReaderOrder:
    """A piece of work."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


class ReaderAnswerError(Exception):
    """An answer is none."""


def unpack_order(message: bytes) -> ReaderOrder:
    """Return the order in a message of the service."""
    # From the process that started this one, over a link that nobody else has.
    found = pickle.loads(message)
    assert isinstance(found, ReaderOrder)
    return found


def pack_message(value: object) -> bytes:
    """Return a value as a message."""
    sink = io.BytesIO()
    _Packer(sink, protocol=5).dump(value)
    return sink.getvalue()


def unpack_answer(message: bytes) -> Result:
    """Return the result in an answer.

    Raises:
        AnswerError: There is none, or it holds something else than plain values.
    """
    try:
        found = _Values(io.BytesIO(message)).load()
    except Exception as error:  # Whatever a reader may be made to send.
        raise ReaderAnswerError(f"{type(error).__name__}: {error}") from error
    if not isinstance(found, Result):
        raise ReaderAnswerError(f"a value of {type(found).__name__}")
    return found


class _Packer(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        if isinstance(value, datetime) and value.tzinfo is not None:
            # Arrow's times have a `ZoneInfo`, which is written with `getattr`; no answer may hold
            # that. The same instant in UTC is written with plain values.
            return value.astimezone(UTC).__reduce_ex__(5)
        # Python 3.11.0 to 3.11.3 would write `getattr`, too.
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
