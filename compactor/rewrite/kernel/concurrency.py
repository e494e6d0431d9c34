"""Work of one merge that is done at the same time: by few threads, in bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MERGE_CORES = 2
"""Cores that one merge keeps busy: so many row groups are decoded, and steps merged, at a time."""

_Result = TypeVar("_Result")


class MemoryInUse:
    """What a merge holds of what its task may hold; the rest is for what is decoded ahead."""

    __slots__ = ("bytes_max", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        """Grows with what is handed to the merge; the merge sets it when it lets go of rows."""

    @property
    def free_bytes(self) -> int:
        """How much may be decoded besides."""
        return max(0, self.bytes_max - self.held_bytes)


def ordered_map(name: str, calls: Iterable[Callable[[], _Result]]) -> Iterator[_Result]:
    """Have calls made by few threads; yield their results in the order of the calls.

    Args:
        name: Of the threads.
        calls: Asked for one by one, when there is room for another.

    Raises:
        Exception: What one of the calls has raised, in its turn.
    """
    pending: deque[Future[_Result]] = deque()
    threads = ThreadPoolExecutor(MERGE_CORES, name)
    try:
        for call in calls:
            pending.append(threads.submit(call))
            # One more than threads: whoever is done has the next one at hand.
            while len(pending) > MERGE_CORES:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
