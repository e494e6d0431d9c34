"""Rows of row groups that are settled, and where they are cut: between keys, or anywhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compactor.rewrite.kernel.layout import Held
from compactor.rewrite.kernel.words import at

_SAMPLES = 16
"""Keys that are looked at for each step."""
_GOLDEN = 0.6180339887498949


@dataclass(slots=True)
class Slice:
    """Some rows of a row group, from `start` to `stop`."""

    held: Held
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start


def portions(slices: Sequence[Slice], rows_max: int) -> Iterator[list[Slice]]:
    """Cut rows anywhere into portions of bounded size."""
    portion: list[Slice] = []
    room = rows_max
    for each in slices:
        start = each.start
        while start < each.stop:
            stop = min(each.stop, start + room)
            portion.append(Slice(each.held, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield portion
                portion, room = [], rows_max
    if portion:
        yield portion


def cuts_of(slices: Sequence[Slice], wanted: int, total: int) -> list[tuple[int, ...]]:
    """Return keys that cut rows into steps of about the wanted size.

    Args:
        slices: Rows by key, each.
        wanted: Rows of a step.
        total: Rows of all.
    """
    samples = sorted(
        at(slices[number].held.levels, slices[number].start + place)
        for number, place in _spread(slices, max(1, wanted // _SAMPLES), total)
    )
    steps = -(-total // wanted)
    places = (len(samples) * step // steps for step in range(1, steps))
    return list(dict.fromkeys(samples[place] for place in places))


def _spread(slices: Sequence[Slice], stride: int, total: int) -> Iterator[tuple[int, int]]:
    """Yield a row of every stretch of so many: the number of its slice, and its place there.

    Rows are anywhere in their stretches, evenly over all (multiples of the golden ratio).
    Always the middle of each would be the middle of each slice, where there are many small
    ones: a few thousand rows about one key, and all others left and right of them.
    """
    starts = np.cumsum([0, *(each.rows for each in slices)])
    stretches = np.arange(max(1, total // stride))
    rows = np.minimum(((stretches + stretches * _GOLDEN % 1) * stride).astype(np.int64), total - 1)
    numbers = np.searchsorted(starts, rows, "right") - 1
    yield from zip(numbers.tolist(), (rows - starts[numbers]).tolist(), strict=True)
