"""Over the links: messages of eight bytes of length and so many bytes; orders of a fork."""

import socket
import struct

FORK, END = b"f", b"e"
"""Orders to a nursery: fork a reader, end one."""
ID = struct.Struct(">q")
"""Of a process."""
LIMITS = struct.Struct(">qd")
"""Of a reader to be forked: bytes of memory, seconds for a piece of work."""
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
