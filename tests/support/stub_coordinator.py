"""A coordinator actor for tests of compactors: hands out what the test puts in, and listens."""

from __future__ import annotations

import asyncio
from typing import Any

import ray

from common.wire import (
    COORDINATOR_NAME,
    NAMESPACE,
    Assignment,
    AttemptReport,
    Heartbeat,
    HeartbeatReply,
    TakeRequest,
)


class StubCoordinator:
    """Keeps jobs, beats, reports and goodbyes in memory."""

    def __init__(self) -> None:
        self._jobs: asyncio.Queue[Assignment] = asyncio.Queue()
        self._beats: dict[str, Heartbeat] = {}
        self._reports: list[AttemptReport] = []
        self._left: list[str] = []
        self._drain = False

    async def take(self, request: TakeRequest) -> Assignment | None:
        try:
            return await asyncio.wait_for(self._jobs.get(), min(request.wait_max_s, 2.0))
        except TimeoutError:
            return None

    async def withdraw(self, take: str) -> None:
        pass  # Its takes are short.

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        self._beats[beat.incarnation] = beat
        return HeartbeatReply(coordinator="stub", drain=self._drain)

    async def report(self, report: AttemptReport) -> None:
        self._reports.append(report)

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        self._left.append(incarnation)

    async def put(self, assignment: Assignment) -> None:
        await self._jobs.put(assignment)

    async def ask_drain(self) -> None:
        self._drain = True

    async def heard(self) -> tuple[dict[str, Heartbeat], list[AttemptReport], list[str]]:
        return self._beats, self._reports, self._left


def start_stub() -> Any:
    """Start the stub under the coordinator's name; it ends with the driver."""
    actor = ray.remote(StubCoordinator)
    return actor.options(
        name=COORDINATOR_NAME, namespace=NAMESPACE, num_cpus=0, max_concurrency=100
    ).remote()
