"""Bodies of requests: time limits, buffering, bounded JSON parsing; and streamed answers."""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import asdict, fields, is_dataclass
from typing import IO, Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from common.errors import CompactionError
from common.telemetry import Log
from neve.gateway.access.audit import body_text
from neve.gateway.access.callers import current_call
from neve.gateway.problems import BodyError, SlowBodyError, problem_response
from neve.recovery.archive import line_of

IN_MEMORY_BYTES_MAX = 1024**2
RATE_LEAST_BYTES_S = 16 * 1024
"""Minimum average rate of a body; slower bodies are rejected."""


def timed_receive(receive: Receive, wait_s: float) -> Receive:
    """Return a `receive` with a time limit for each piece of a body.

    Messages after the body, such as the disconnection of the caller, have no time limit.

    Args:
        receive: `receive` of the server.
        wait_s: Longest pause between two pieces, and longest time for a small body.

    Raises:
        SlowBodyError: The next piece, or the body as a whole, arrives too slowly.
    """
    loop = asyncio.get_running_loop()
    begun_s, received_bytes, whole = loop.time(), 0, False

    async def next_message() -> Message:
        nonlocal received_bytes, whole
        if whole:
            return await receive()
        left_s = begun_s + wait_s + received_bytes / RATE_LEAST_BYTES_S - loop.time()
        try:
            async with asyncio.timeout(min(wait_s, left_s)):
                message = await receive()
        except TimeoutError as error:
            raise SlowBodyError(
                f"the body came too slowly: {received_bytes} bytes, and then nothing in time;"
                f" expected a piece every {wait_s:g} s and {RATE_LEAST_BYTES_S} bytes/s"
            ) from error
        received_bytes += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        return message

    return next_message


class ReceivedBody:
    """The whole body of a request; a large one is on disk."""

    def __init__(self, chunks: list[bytes], file: IO[bytes] | None) -> None:
        self._chunks, self._file = chunks, file

    @property
    def is_on_disk(self) -> bool:
        """Whether the body is not in memory so far."""
        return self._file is not None

    async def read(self) -> bytes:
        """Return the body."""
        if self._file is not None:
            self._file.seek(0)
            return await asyncio.to_thread(self._file.read)
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


@asynccontextmanager
async def received_body(request: Request) -> AsyncIterator[ReceivedBody]:
    """Receive the body of a request, and buffer it on disk if it is large."""
    chunks: list[bytes] = []
    size_bytes = 0
    with ExitStack() as stack:
        file: IO[bytes] | None = None
        async for chunk in request.stream():
            size_bytes += len(chunk)
            chunks.append(chunk)
            if size_bytes > IN_MEMORY_BYTES_MAX:
                if file is None:
                    file = stack.enter_context(tempfile.TemporaryFile())
                await asyncio.to_thread(file.write, b"".join(chunks))
                chunks.clear()
        yield ReceivedBody(chunks, file)


# --------------------------------------------------------------------------------------------- JSON


INLINE_BYTES_MAX = 64 * 1024
"""Larger JSON is parsed in a thread, so that it does not block the event loop."""
VALUES_MAX = 1_000_000
"""Limit of commas, colons and brackets in a body, which bounds the number of parsed values."""
ENTRIES_MAX = 40_000
"""Limit of entries in all objects of a body; 10,000 columns have three entries each. Validating
many wrong entries is slow, although an answer names only the first one."""


class JsonRequest(Request):
    """A request with bounded JSON, which is parsed outside the event loop unless it is small."""

    tree: Any = None
    """The parsed body; None until it is parsed."""

    async def json(self) -> Any:
        """Return the parsed body.

        Raises:
            BodyError: The body has more values than any route accepts.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) <= INLINE_BYTES_MAX:
                self._json = json.loads(body)
            else:
                self._json = await asyncio.to_thread(_bounded_tree, body)
            self.tree = self._json
        return self._json


def _bounded_tree(body: bytes) -> Any:
    """Parse a body, and reject it if it has too many values to be validated quickly."""
    marks = sum(map(body.count, (b",", b":", b"[", b"{")))
    if marks > VALUES_MAX:
        raise BodyError(
            f"the body has {marks} commas, colons and brackets, expected at most {VALUES_MAX}:"
            " send it in parts"
        )
    tree = json.loads(body)
    entries = sum(len(object_) for object_ in _objects(tree))
    if entries > ENTRIES_MAX:
        raise BodyError(
            f"the body has objects with {entries} entries in all, expected at most {ENTRIES_MAX}"
        )
    return tree


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in a tree."""
    left = [tree]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            left += value.values()
        elif isinstance(value, list):
            left += value


class JsonRoute(APIRoute):
    """A route that parses its body with `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handler = super().get_route_handler()
        body = self.body_field.field_info.annotation if self.body_field is not None else None
        names = [field.name for field in fields(body)] if is_dataclass(body) else []

        async def answer(request: Request) -> Response:
            whole = JsonRequest(request.scope, request.receive)
            try:
                return await handler(whole)
            finally:
                if names and whole.tree is not None:
                    current_call().details = body_text(whole.tree, names)

        return answer


# -------------------------------------------------------------------------------- Streamed answers


async def begun_stream(stream: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Return a stream whose first chunk was read: an earlier error becomes a problem."""
    return _with_first(await anext(stream), stream)


async def _with_first(first: bytes, stream: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(stream):
        yield first
        async for chunk in stream:
            yield chunk


# ---------------------------------------------------------------------------------- Progress stream
# Long work as a stream of JSON lines: progress, then the result or an error.
#
# The stream sends a line at least every few seconds, so that proxies do not treat the connection as
# dead. When the caller disconnects, the work is cancelled.


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
