"""Threads for work on storage that may never come back: a file server that is gone, a dead mount.

Every piece of work has a deadline. Its thread may go on waiting, so a location of which one
waits beyond it is given no more work until that has come back: what stands still takes the few
threads that wait for it by then, and holds up its own tables only.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from common.errors import UnavailableError
from common.redaction import redacted

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 64
DEADLINE_S = 300.0
"""Longer than any step on a storage that answers; clients of object stores give up sooner."""


class StorageThreads:
    """Does work on locations in threads."""

    def __init__(self, threads: int = THREADS, deadline_s: float = DEADLINE_S) -> None:
        """Start no thread yet.

        Args:
            threads: At most so many at a time; more work waits.
            deadline_s: How long a piece of work is waited for.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="storage")
        self._deadline_s = deadline_s
        self._silent: set[str] = set()

    async def run(
        self, location: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what `work` returns.

        Args:
            location: URI that it works on.
            work: Blocks.
            args: For it.
            kwargs: For it.

        Raises:
            UnavailableError: The storage has not answered in time, now or before.
        """
        if location in self._silent:
            raise UnavailableError(
                f"the storage of {redacted(location)} has not answered yet to what it was asked "
                f"more than {self._deadline_s:g} s ago; is it mounted, and does its server run?"
            )
        future = asyncio.get_running_loop().run_in_executor(
            self._pool, partial(work, *args, **kwargs)
        )
        done, _ = await asyncio.wait({future}, timeout=self._deadline_s)
        if done:
            return future.result()
        self._silent.add(location)
        future.add_done_callback(partial(self._answered, location))
        raise UnavailableError(
            f"the storage of {redacted(location)} has not answered for {self._deadline_s:g} s; is "
            "it mounted, and does its server run? It is asked again when it has answered"
        )

    def _answered(self, location: str, future: "asyncio.Future[T]") -> None:
        self._silent.discard(location)
        if not future.cancelled():
            future.exception()  # Nobody waits for it any more.
