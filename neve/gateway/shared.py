"""One answer for all who ask the same at about the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Asks at most once in a while, and one question at a time, however many want to know."""

    def __init__(self, ask: Callable[[], Awaitable[T]], lasts_s: float) -> None:
        """Ask nothing yet.

        Args:
            ask: Called for an answer; what it raises is told like one.
            lasts_s: How long an answer holds.
        """
        self._ask = ask
        self._lasts_s = lasts_s
        self._asked: asyncio.Future[T] | None = None
        self._until_s = 0.0

    async def answer(self) -> T:
        """Return the answer, a moment old at most.

        Raises:
            Exception: What asking has raised.
        """
        loop = asyncio.get_running_loop()
        old = self._asked is None or (self._asked.done() and loop.time() >= self._until_s)
        if old:
            self._asked = asyncio.ensure_future(self._ask_once())
        assert self._asked is not None
        # One who leaves does not take the answer from the others.
        return await asyncio.shield(self._asked)

    async def _ask_once(self) -> T:
        try:
            return await self._ask()
        finally:
            self._until_s = asyncio.get_running_loop().time() + self._lasts_s
