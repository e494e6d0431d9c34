"""A port of the cluster's network on this side of it, as `kubectl port-forward` gives one.

    with forwarded(cluster, "http://10.244.0.3:8642") as url:
        Client(url, token=TOKEN).status()

A socket stays in the network in which it was made. The test makes the listening one and hands
it to a program inside, `python -m tests.support.kubernetes.port_forward`, which takes its
connections and connects each to the target there.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.kubernetes.cluster import KubeRayCluster

CHUNK_BYTES = 65_536


@contextmanager
def forwarded(cluster: KubeRayCluster, url: str) -> Iterator[str]:
    """Yield a URL of this side that leads to one of the cluster, for the length of a block."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        descriptor = str(listening.fileno())
        port: int = listening.getsockname()[1]
        program = [sys.executable, "-m", "tests.support.kubernetes.port_forward"]
        with cluster.popen(
            [*program, descriptor, urlsplit(url).netloc],
            in_head=False,
            stdin=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
        ) as forwarder:
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                forwarder.kill()


async def _serve(listening: socket.socket, target: str) -> None:
    host, _, port = target.rpartition(":")

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(host, int(port))
        except OSError:
            # Who asks sees a connection that is closed at once, as with a pod that is gone.
            writer.close()
            return
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

    server = await asyncio.start_server(lead, sock=listening)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


def main() -> None:
    """Forward until killed; arguments: a listening socket's descriptor, and `host:port`."""
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))


if __name__ == "__main__":
    main()
