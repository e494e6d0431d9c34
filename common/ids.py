"""Random identifiers: a port for shells, and its sources.

Attempt, call, request and table ids are random and never used twice
(protocol: a reservation is compared by attempt, and job ids repeat). `common.digests` derives ids
from content and reads the time from call ids.
"""

import secrets
from typing import Protocol

from common.clock import Clock, SystemClock


class IdSource(Protocol):
    """Where a shell draws random ids."""

    def next(self, prefix: str) -> str:
        """Return a new, unique id `<prefix>-<random>`."""
        ...


class RandomIds:
    """Ids with 80 random bits."""

    def next(self, prefix: str) -> str:
        """Return a new id."""
        return f"{prefix}-{secrets.token_hex(10)}"


def call_id(clock: Clock | None = None) -> str:
    """Return a fresh call id that carries its time (UUIDv7, RFC 9562).

    Args:
        clock: Source of the time; the machine's clock if left out.
    """
    millis = int((clock or SystemClock()).now_s() * 1000)
    chance = secrets.randbits(74)
    value = (millis & (1 << 48) - 1) << 80 | 7 << 76 | (chance >> 62) << 64
    value |= 0b10 << 62 | chance & (1 << 62) - 1
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
