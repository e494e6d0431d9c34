"""Long work as a stream of JSON lines: progress, then the result or an error.

The stream sends a line at least every few seconds, so that proxies do not treat the connection as
dead. When the caller disconnects, the work is cancelled.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from common.errors import CompactionError
from common.telemetry import Log
from neve.gateway.access.callers import current_call
from neve.gateway.problems import problem_response
from neve.recovery.archive import line_of

BEAT_S = 5.0
WAITING_MAX = 1000
LongWork = Callable[[Callable[..., None]], Awaitable[Any]]
ProgressStep = tuple[str, dict[str, int]] | None
"""A sentence and named numbers; None: the work has ended."""


async def progress_lines(work: LongWork, log: Log) -> AsyncIterator[bytes]:
    """Yield the lines of long work.

    Args:
        work: Takes a callback for progress, called with a sentence and named numbers; returns a
            wire model.
        log: Receives unexpected errors.
    """
    news: asyncio.Queue[ProgressStep] = asyncio.Queue(WAITING_MAX)

    def on_progress(text: str, **numbers: int) -> None:
        put((text, numbers))

    def put(step: ProgressStep) -> None:
        with suppress(asyncio.QueueFull):  # A caller that reads slowly misses some progress.
            news.put_nowait(step)

    task = asyncio.ensure_future(work(on_progress))
    task.add_done_callback(lambda _done: put(None))
    try:
        last: ProgressStep = ("begun", {})
        while True:
            if last is not None:
                yield line_of("progress", text=last[0], **last[1])
            if task.done() and news.empty():
                break
            try:
                async with asyncio.timeout(BEAT_S):
                    last = await news.get()
            except TimeoutError:
                last = ("still at it", {})
        yield _last_line(task, log)
    finally:
        if not task.done():
            # The caller disconnected, so the work ends unfinished.
            current_call().error = "BrokenOff"
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


def _last_line(task: "asyncio.Future[Any]", log: Log) -> bytes:
    error = task.exception()
    if error is None:
        return line_of("result", result=asdict(task.result()))
    return error_line(error, log)


def error_line(error: BaseException, log: Log) -> bytes:
    """Return the line that reports an error, with the content of a problem."""
    current_call().error = type(error).__name__
    if isinstance(error, CompactionError):
        return line_of("error", **json.loads(bytes(problem_response(error).body)))
    log("request failed", cause=f"{type(error).__name__}: {error}")
    detail = "the service failed in a way that it did not expect; see its log"
    return line_of("error", error="InternalError", status=500, detail=detail)
