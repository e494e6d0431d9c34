"""A door of TLS before a real server that speaks none. What comes to it is real."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.patience import PATIENCE_S


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await source.read(65536):
            target.write(part)
            await target.drain()
    target.close()


@contextmanager
def tls_door(port: int, certificate: Path, *, clients: Path | None = None) -> Iterator[int]:
    """Open a door for the length of a block; yield its port.

    Args:
        port: Of the server behind it, on this machine.
        certificate: File of certificate and key.
        clients: Authority of whom it lets in; None: it asks nobody for a certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_REQUIRED if clients else ssl.CERT_NONE
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_carry(reader, server_writer), _carry(server_reader, writer))

    async def opened() -> asyncio.Server:
        return await asyncio.start_server(enter, "127.0.0.1", 0, ssl=context)

    async def closed() -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(opened(), loop).result(PATIENCE_S)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(closed(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
