"""What goes on beside a merge in the same task: decoding ahead of it, encoding behind it.

    decode (two threads) ──► words, winners, gather (two) ──► encode, write (a thread)

Decoding, sorting and encoding happen outside of Python's own lock, so that one task keeps
about two cores busy: it decodes every row group once, and writes outputs where they belong.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import pyarrow as pa

from compactor.rewrite.kernel.bounds import Group
from compactor.rewrite.kernel.lanes import LANE_CORES, Room
from compactor.rewrite.kernel.layout import Held
from compactor.rewrite.kernel.steps import Reads
from compactor.rewrite.together import FILES_MAX, Together

AHEAD_BYTES = 96 * 1024**2
"""Decoded ahead of the merge, at most."""
BEHIND_BYTES = 16 * 1024**2
"""Rows that wait for the encoder, at most, beside those that it has, and one step."""


def reading_order(groups: Iterable[Group]) -> list[Group]:
    """Return row groups in the order in which a merge asks for them."""
    # It takes the last one of those sorted downwards, so of several alike the last comes first.
    return sorted(groups, key=lambda group: group.low or b"", reverse=True)[::-1]


class Ahead:
    """Row groups of all inputs, decoded in threads before the merge asks for them."""

    def __init__(
        self,
        readers: Mapping[int, Reads],
        groups: Iterable[Group],
        room: Room,
        together: Together | None = None,
    ) -> None:
        """Begin to decode.

        Args:
            readers: Of all inputs, by number.
            groups: In the order in which they will be asked for; any other is right, but slow.
            room: What may be decoded beside what the merge holds.
            together: Reads small files, many by one call.
        """
        self._readers = readers
        self._coming = deque(groups)
        self._threads = ThreadPoolExecutor(LANE_CORES, "decode")
        self._together = together
        self._ready: dict[Group, Future[dict[Group, Held]]] = {}
        self._room = room
        self._ahead_bytes = 0
        self._fill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def read(self, group: Group) -> Held:
        """Return the rows of a row group; see `Reader.read`."""
        ready = self._ready.pop(group, None)
        if ready is not None:
            held = ready.result()[group]
            self._ahead_bytes -= group.size_bytes
        else:
            if group in self._coming:
                self._coming.remove(group)
            held = self._threads.submit(self._decoded, [group]).result()[group]
        # Polars does not count what its texts leave unused of the pages that they lie in.
        if held.rows:
            held.size_bytes = max(held.size_bytes, group.size_bytes)
        self._room.held_bytes += held.size_bytes
        self._fill()
        return held

    def _fill(self) -> None:
        """Have the threads decode what may be held already."""
        while batch := self._next_batch():
            decoding = self._threads.submit(self._decoded, batch)
            self._ready |= dict.fromkeys(batch, decoding)

    def _next_batch(self) -> list[Group]:
        """Return row groups for which there is room: one, or several of small files."""
        batch: list[Group] = []
        bytes_max = min(self._room.free_bytes, AHEAD_BYTES)
        while self._coming and self._ahead_bytes + self._coming[0].size_bytes <= bytes_max:
            small = self._together is not None and self._together.may(self._coming[0])
            if batch and (not small or len(batch) == FILES_MAX):
                break
            if not batch and small and self._ready and 2 * self._ahead_bytes > bytes_max:
                break  # Rather many at once, soon.
            batch.append(self._coming.popleft())
            self._ahead_bytes += batch[-1].size_bytes
            if not small:
                break
        return batch

    def _decoded(self, batch: list[Group]) -> dict[Group, Held]:
        if len(batch) > 1 and self._together is not None:
            found = self._together.read(batch)
            if found is not None:
                return dict(zip(batch, found, strict=True))
        return {group: self._readers[group.input].read(group) for group in batch}


class Behind:
    """Calls about rows that are made in a thread, one after the other; few of them wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "encode")
        self._waiting: deque[tuple[Future[None], int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def call(self, work: Callable[..., None], rows: pa.Table, *more: Any) -> None:
        """Have a call made after those before.

        Raises:
            Exception: What an earlier one has raised.
        """
        while sum(size_bytes for _, size_bytes in self._waiting) > BEHIND_BYTES:
            self._next()
        self._waiting.append((self._thread.submit(work, rows, *more), rows.get_total_buffer_size()))

    def settle(self) -> None:
        """Wait for all.

        Raises:
            Exception: What one of them has raised.
        """
        while self._waiting:
            self._next()

    def _next(self) -> None:
        done, _ = self._waiting.popleft()
        done.result()
