"""Work of one merge that is done at the same time: by few threads, in bounded memory."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

LANE_CORES = 2
"""Cores that one merge keeps busy: so many row groups are decoded, and steps merged, at a time."""

_Result = TypeVar("_Result")


class Room:
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


class Ordered(Generic[_Result]):
    """Calls made by few threads, whose results come in the order of the calls."""

    def __init__(self, name: str) -> None:
        """Start no thread yet.

        Args:
            name: Of the threads.
        """
        self._threads = ThreadPoolExecutor(LANE_CORES, name)
        self._pending: deque[Future[_Result]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def call(self, work: Callable[[], _Result]) -> Iterator[_Result]:
        """Have a call made; yield results that had to be waited for to make room for it.

        Raises:
            Exception: What an earlier call has raised.
        """
        self._pending.append(self._threads.submit(work))
        # One more than threads: whoever is done has the next one at hand.
        while len(self._pending) > LANE_CORES:
            yield self._pending.popleft().result()

    def rest(self) -> Iterator[_Result]:
        """Yield the results that have not come yet.

        Raises:
            Exception: What one of the calls has raised.
        """
        while self._pending:
            yield self._pending.popleft().result()
