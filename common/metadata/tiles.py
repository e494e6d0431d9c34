"""The tile rule: what a range shows although splits and merges happen while it is read."""

from collections.abc import Iterable

from common.model.tablet import PLUS_INFINITY, Tablet


def tile(tablets: Iterable[Tablet], start: bytes | None, end: bytes | None) -> list[Tablet] | None:
    """Return the tablets that together cover the range once, or None if there is a hole.

    From the start of the range take the tablet that covers it and reaches furthest, go
    to its end, ignore those covered. So every file is seen exactly once, in whatever
    order the pieces were read.

    Args:
        tablets: As read, each at one moment, in any order.
        start: First key of the range; None: from the beginning.
        end: Last key of the range; None: to the last.
    """
    pieces = list(tablets)
    chosen: list[Tablet] = []
    last = PLUS_INFINITY if end is None else end
    first = [piece for piece in pieces if _begins(piece, start)]
    while first:
        best = max(first, key=lambda piece: piece.bounds.end)
        chosen.append(best)
        reached = best.bounds.end
        if reached >= last:
            return chosen
        first = [piece for piece in pieces if piece.bounds.start == reached]
    return None


def _begins(piece: Tablet, start: bytes | None) -> bool:
    if start is None:
        return piece.bounds.start is None
    return piece.bounds.holds(start, start)
