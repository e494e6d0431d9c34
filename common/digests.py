"""Ids derived from content, and what ids tell. Pure.

A job id is derived from what the job is, so that planning twice gives it twice.
"""

import hashlib
from collections.abc import Iterable

CALL_LIFE_S = 24 * 3600
"""How long the mark of a call is kept; a call id older than this is refused."""


def call_time_s(call: str) -> float | None:
    """Return the time that a call id carries, or None if it is not a UUIDv7."""
    text = call.replace("-", "")
    if len(text) != 32 or text[12] != "7":
        return None
    try:
        return int(text[:12], 16) / 1000
    except ValueError:
        return None


def digest(parts: Iterable[str | bytes], length: int = 16) -> str:
    """Return a hex digest of a sequence of texts; no two sequences share an encoding.

    Args:
        parts: What identifies the thing, in an order that the caller fixes.
        length: Number of hex digits, at most 64.
    """
    # Joined first: each job of each plan has an id, and one long update is half of many short ones.
    pieces: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        pieces += (len(data).to_bytes(8, "big"), data)
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:length]
