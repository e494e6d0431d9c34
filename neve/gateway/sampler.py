"""One sampler for all viewers of the console: the coordinator's answers, and live parts of pages.

While pages are open, a sample begins every two seconds. All viewers of a sample share the
coordinator's answers, and viewers of one address with the same grants share the rendered part. So
the cost of a sample grows with the number of different pages and grants, not of viewers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from common.runtime import Clock
from neve.gateway.services import Services, SharedAnswer

if TYPE_CHECKING:
    from coordinator.actor import CoordinatorActor

SAMPLE_S = 2.0
"""Time between two samples, and how long an answer is shared."""
ANSWERS_MAX = 1000
"""Shared answers and parts of pages that are kept at once."""
STREAMS_MAX, STREAMS_OF_SESSION_MAX = 500, 20
SHARED_CALLS = frozenset(
    {
        "activity",
        "compactors",
        "control",
        "explain",
        "owed_tablets",
        "queue",
        "recorded_tables",
        "running",
        "series",
        "status",
        "story",
        "tablet_backlogs",
    }
)
"""Calls of the coordinator that only read, and whose answers do not depend on the caller."""


class Sampler:
    """Shares answers within a sample, and wakes the streams when a sample begins."""

    def __init__(self, services: Services) -> None:
        """Create a sampler without viewers.

        Args:
            services: Ports of the gateway.
        """
        self._coordinator: Any = services.coordinator
        self._clock: Clock = services.clock
        self._answers: dict[Hashable, SharedAnswer[Any]] = {}
        self._turn = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None
        self._is_closed = False
        self.at_s = 0.0
        """When the current sample began."""
        self.streams = 0
        """Open streams."""

    def services(self, services: Services) -> Services:
        """Return the services with the coordinator's answers shared."""
        return services.with_coordinator(cast("CoordinatorActor", self))

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return a call of the coordinator; its answer is shared if it only reads."""
        call: Callable[..., Awaitable[Any]] = getattr(self._coordinator, name)
        return partial(self._shared_call, name, call) if name in SHARED_CALLS else call

    async def _shared_call(
        self, name: str, call: Callable[..., Awaitable[Any]], *values: Hashable
    ) -> Any:
        return await self.shared(("call", name, *values), partial(call, *values))

    async def shared(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return an answer of this sample; the first viewer that wants it asks.

        Args:
            key: All that the answer depends on.
            ask: Called for the answer.

        Raises:
            Exception: Any exception of `ask`.
        """
        self._begin_if_old()
        if (answer := self._answers.get(key)) is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            answer = self._answers[key] = SharedAnswer(ask, SAMPLE_S)
        return await answer.answer()

    def forget(self) -> None:
        """Begin a new sample: a change was made, and the next page must show it."""
        self._answers = {}
        self.at_s = self._clock.now_s()

    def _begin_if_old(self) -> None:
        if not 0 <= self._clock.now_s() - self.at_s < SAMPLE_S:
            self.forget()

    # -------------------------------------------------------------------------------------- Streams

    async def next_sample(self) -> bool:
        """Wait for the next sample; return False: the gateway ends."""
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        await self._turn.wait()
        return not self._is_closed

    async def _tick(self) -> None:
        """Begin a sample every two seconds while streams are open."""
        while self.streams and not self._is_closed:
            await asyncio.sleep(SAMPLE_S)
            self.forget()
            self._wake()

    def _wake(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    def close(self) -> None:
        """End all streams: the gateway ends."""
        self._is_closed = True
        self._wake()
