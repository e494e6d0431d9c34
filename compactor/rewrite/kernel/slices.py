"""Rows of row groups that are settled, and where they are cut: between keys, or anywhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compactor.rewrite.kernel.reading import Held
from compactor.rewrite.kernel.words import at

_SAMPLES = 16
"""Keys that are looked at for each step."""


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
    """Return keys that cut rows into steps of about the wanted size."""
    stride = max(1, wanted // _SAMPLES)
    samples = sorted(
        at(each.held.levels, place)
        for each in slices
        for place in range(each.start + min(stride, each.rows) // 2, each.stop, stride)
    )
    steps = -(-total // wanted)
    places = (len(samples) * step // steps for step in range(1, steps))
    return list(dict.fromkeys(samples[place] for place in places))
