"""Ids derived from content, and the time that a call id carries. Pure.

A job id is derived from the content of the job, so planning the same job twice gives the same id.
"""

import hashlib
from collections.abc import Iterable

CALL_LIFE_S = 24 * 3600
"""How long the mark of a call is kept; older call ids are refused."""


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
    """Return a hex digest of a sequence of texts; different sequences have different encodings.

    Args:
        parts: What identifies the object, in an order that the caller fixes.
        length: Number of hex digits, at most 64.
    """
    # Parts are joined first: one long update takes half the time of many short ones, and every
    # planned job needs an id.
    pieces: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        pieces += (len(data).to_bytes(8, "big"), data)
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:length]
