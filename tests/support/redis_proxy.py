"""A door before a real Redis that breaks connections just when an EXEC passes."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests.support.patience import PATIENCE_S

EXEC = b"\r\nEXEC\r\n"


class Cut(enum.StrEnum):
    """What happens to the next EXEC."""

    NONE = "it passes"
    BEFORE = "the connection breaks, nothing passes"
    AFTER = "it passes, the connection breaks before the answer"
    LATE = "the connection breaks, it passes when it is let go"
    SILENT = "it passes, the answer never comes"


class RedisProxy:
    """Forwards connections to a Redis; `cut` is used up by the next EXEC."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._login = parts.netloc.rpartition("@")[0]
        self.cut = Cut.NONE
        self.url = ""
        self._go = asyncio.Event()
        self._passed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        login = f"{self._login}@" if self._login else ""
        self.url = f"redis://{login}127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def stop(self) -> None:
        self._go.set()
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            client.transport.abort()

    async def let_go(self) -> None:
        """Let the late EXEC pass, and wait until Redis has answered it."""
        self._go.set()
        await asyncio.wait_for(self._passed.wait(), PATIENCE_S)

    def _accept(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        # Known at once: one whose task never comes to run must be closed, too.
        self._clients.append(answers)
        task = asyncio.ensure_future(self._serve(client, answers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, requests = await asyncio.open_connection(self._host, self._port)
        back = asyncio.ensure_future(_copy(server, answers))
        try:
            while data := await client.read(1 << 20):
                if EXEC in data and self.cut is not Cut.NONE:
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    await self._break(data, server, requests, answers)
                    return
                requests.write(data)
        finally:
            back.cancel()
            requests.transport.abort()
            answers.transport.abort()

    async def _break(
        self,
        data: bytes,
        server: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
        answers: asyncio.StreamWriter,
    ) -> None:
        cut, self.cut = self.cut, Cut.NONE
        if cut is Cut.LATE:
            answers.transport.abort()
            await self._go.wait()
        if cut is not Cut.BEFORE:
            requests.write(data)
            await server.read(1 << 16)
            self._passed.set()
        if cut is Cut.SILENT:
            await self._go.wait()
        answers.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 20):
        target.write(data)
    target.close()


@asynccontextmanager
async def proxy_to(url: str) -> AsyncIterator[RedisProxy]:
    """Run a proxy for the length of a block."""
    proxy = RedisProxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
