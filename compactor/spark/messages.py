"""What engine and driver process say to each other, and how it is framed.

A frame is a length of four bytes and a pickle. Both ends are processes of this
compactor, joined by a socket pair that nobody else can reach; nothing of it is stored.
"""

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

from compactor.core.result import RewriteProgress

FRAME_BYTES_MAX = 64 * 1024**2
"""An assignment of 100,000 files takes some 30 MB."""
_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Run:
    """Parent: do this work."""

    attempt: str
    payload: Any


@dataclass(frozen=True, slots=True)
class Cancel:
    """Parent: end this attempt."""

    attempt: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Parent: an attempt may move so many bytes/s from now on; None: no limit."""

    attempt: str
    bytes_s: float | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Parent: end Spark and go."""


@dataclass(frozen=True, slots=True)
class Started:
    """Child: Spark is up."""

    application: str
    took_s: float
    jvm_pid: int


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Child: Spark did not come up; the child ends."""

    cause: str


@dataclass(frozen=True, slots=True)
class LifeSign:
    """Child: its JVM has answered; of these attempts tasks run now."""

    busy: frozenset[str]


@dataclass(frozen=True, slots=True)
class Progressed:
    """Child: so far is an attempt."""

    attempt: str
    progress: RewriteProgress


@dataclass(frozen=True, slots=True)
class Done:
    """Child: an attempt's result."""

    attempt: str
    result: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """Child: an attempt failed; `error_class` is a name in `common.errors`."""

    attempt: str
    error_class: str
    cause: str


Order = Run | Cancel | Grant | Stop
Notice = Started | NotStarted | LifeSign | Progressed | Done | Failed


def frame(message: object) -> bytes:
    """Return a message as it crosses the pipe.

    Raises:
        ValueError: It is larger than a frame may be.
    """
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(_checked(len(body))) + body


def receive(link: socket.socket) -> Any:
    """Return the next message of a blocking socket.

    Raises:
        EOFError: The other end is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(link, _LENGTH.size))
    return pickle.loads(_exactly(link, _checked(length)))


async def read(stream: asyncio.StreamReader) -> Any:
    """Return the next message of a stream.

    Raises:
        EOFError: The other end is gone.
    """
    try:
        (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
        return pickle.loads(await stream.readexactly(_checked(length)))
    except ConnectionError as error:
        raise EOFError(str(error)) from error


def _exactly(link: socket.socket, size: int) -> bytes:
    """Return so many bytes."""
    parts = bytearray()
    while len(parts) < size:
        try:
            part = link.recv(min(size - len(parts), 1 << 20))
        except ConnectionError as error:
            raise EOFError(str(error)) from error
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _checked(length: int) -> int:
    """Return a length that is within the bound."""
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"frame of {length} bytes, at most {FRAME_BYTES_MAX} are allowed")
    return length
