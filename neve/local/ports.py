"""Ports on the loopback address."""

import socket
from collections.abc import Callable

from common.errors import ConfigError

LOOPBACK = "127.0.0.1"
TRIES_MAX = 5
"""Ports tried for something that somebody else keeps being quicker with."""


def is_free(port: int) -> bool:
    """Return whether nobody listens on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that were free a moment ago."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def claim(wanted: int | None, preferred: int | None, what: str) -> int:
    """Return the port to use for `what`.

    Args:
        wanted: The port that the operator asked for; refused if it is taken.
        preferred: The port to use if nothing was asked for and it is free.
        what: Named in the refusal.
    """
    if wanted is not None:
        if not is_free(wanted):
            raise ConfigError(
                f"port {wanted} for {what} is in use on {LOOPBACK}: "
                "choose another one, or leave it out to get a free one"
            )
        return wanted
    if preferred is not None and is_free(preferred):
        return preferred
    return free_ports(1)[0]


def bound(start: Callable[[int], None], port: int, *, insisted: bool) -> int:
    """Start something that binds a port itself; return the port that it has bound.

    A port that was free a moment ago may be taken by now: only who binds it has it. Then
    others are tried, unless the operator wants this one.

    Args:
        start: Starts it at a port.
        port: To try first.
        insisted: Whether no other will do.

    Raises:
        ConfigError: As `start` raises it: for another reason, or after `TRIES_MAX` tries.
    """
    for tries in range(1, TRIES_MAX + 1):
        try:
            start(port)
        except ConfigError:
            if insisted or tries == TRIES_MAX or is_free(port):
                raise
            port = free_ports(1)[0]
        else:
            return port
    raise AssertionError("a bounded loop ends in its last try")
