"""Bodies of requests: how long they may take to arrive, and where large ones wait."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.types import Message, Receive

from neve.gateway.problems import SlowBodyError

IN_MEMORY_BYTES_MAX = 1024**2
RATE_LEAST_BYTES_S = 16 * 1024
"""Slower than this on the whole, and a body is given up: nobody waits for it for hours."""


def timed_receive(receive: Receive, wait_s: float) -> Receive:
    """Return a `receive` that waits only so long for the next piece of a body.

    What comes after the body (the news that the caller has gone) is waited for without end.

    Args:
        receive: The server's.
        wait_s: Longest pause between two pieces, and longest time for a small body.

    Raises:
        SlowBodyError: A piece does not come, or all of them come too slowly.
    """
    loop = asyncio.get_running_loop()
    begun_s, seen, whole = loop.time(), 0, False

    async def next_message() -> Message:
        nonlocal seen, whole
        if whole:
            return await receive()
        left_s = begun_s + wait_s + seen / RATE_LEAST_BYTES_S - loop.time()
        try:
            async with asyncio.timeout(min(wait_s, left_s)):
                message = await receive()
        except TimeoutError as error:
            raise SlowBodyError(
                f"the body came too slowly: {seen} bytes, and then nothing in time;"
                f" expected a piece every {wait_s:g} s and {RATE_LEAST_BYTES_S} bytes/s"
            ) from error
        seen += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        return message

    return next_message


@asynccontextmanager
async def received_body(request: Request) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """Take the body of a request as it comes, on disk if it is large.

    Yields:
        Reads all of it, when it is its turn to be in memory.
    """
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES_MAX) as file:

        async def read() -> bytes:
            file.seek(0)
            return await asyncio.to_thread(file.read)

        async for chunk in request.stream():
            if file.tell() + len(chunk) <= IN_MEMORY_BYTES_MAX:
                file.write(chunk)
            else:
                await asyncio.to_thread(file.write, chunk)
        yield read
