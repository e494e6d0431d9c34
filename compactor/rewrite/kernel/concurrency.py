"""Concurrent work of one merge: by few threads, in bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MERGE_CORES = 2
"""Cores that one merge uses: the number of concurrently decoded row groups, and merged steps."""

_Result = TypeVar("_Result")


class MemoryInUse:
    """Memory that a merge holds out of its budget; the rest is for decoding ahead."""

    __slots__ = ("bytes_max", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        """Grows with rows passed to the merge; the merge reduces it when it releases rows."""

    @property
    def free_bytes(self) -> int:
        """Bytes that may be decoded in addition."""
        return max(0, self.bytes_max - self.held_bytes)


def ordered_map(name: str, calls: Iterable[Callable[[], _Result]]) -> Iterator[_Result]:
    """Run calls in a few threads; yield their results in the order of the calls.

    Args:
        name: Name of the threads.
        calls: Taken one by one, whenever a thread has room.

    Raises:
        Exception: The error of a call, raised at its position.
    """
    pending: deque[Future[_Result]] = deque()
    threads = ThreadPoolExecutor(MERGE_CORES, name)
    try:
        for call in calls:
            pending.append(threads.submit(call))
            # One more than threads, so that an idle thread finds the next call at once.
            while len(pending) > MERGE_CORES:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
