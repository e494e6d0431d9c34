"""The console of a real service: first paint of each view, and the cost of many viewers.

    python -m benchmarks.bench_console
    python -m benchmarks.bench_console --visits 3 --views /console /console/queues --seconds 10

It starts a service with one compactor, keeps that compactor busy with a table that gets files all
the time, and measures

    paint     each view in a new profile of a running Chromium, without anything cached: the time
              from the navigation to the first contentful paint, and the bytes transferred
    viewers   processor time of the gateway while 1 and 50 streams are open, spread over overview,
              a table and the queues

Everything shares this machine. First paint is wall time: on a machine with other work it says what
that machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pyarrow as pa
from playwright.sync_api import Browser

from neve.client import Client
from neve.client.errors import NeveError
from neve.local import LocalStack, StackOptions
from neve.local.processes import exit_on_sigterm
from tests.support.chromium import chromium

TABLE = "busy"
SCHEMA = pa.schema([("x", pa.int64()), ("v", pa.int64()), ("text", pa.string())])
ROWS = 2_000
VIEWS = (
    "/console",
    "/console/tables",
    f"/console/tables/{TABLE}",
    f"/console/tables/{TABLE}/settings",
    f"/console/tables/{TABLE}/tablets/last",
    "/console/queues",
    "/console/running",
    "/console/requests",
    "/console/compactors",
    "/console/control",
    "/console/what-if",
    "/console/history",
    "/console/audit",
)
WATCHED = ("/console", f"/console/tables/{TABLE}", "/console/queues")
STREAMS_OF_SESSION = 10
SETTLE_S = 5.0
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')"
TRANSFERRED = """performance.getEntriesByType('resource')
    .concat(performance.getEntriesByType('navigation'))
    .filter(entry => !entry.name.includes('/console/events'))
    .reduce((sum, entry) => sum + entry.transferSize, 0)"""


@dataclass(frozen=True)
class Service:
    """A running service, and the process of its gateway."""

    url: str
    token: str
    gateway: psutil.Process

    def client(self) -> Client:
        return Client(self.url, token=self.token)

    def gateway_cpu_s(self) -> float:
        times = self.gateway.cpu_times()
        return float(times.user + times.system)


@contextmanager
def service(folder: Path) -> Iterator[Service]:
    """Start a service with one compactor and a table; stop it when the block ends."""
    with LocalStack.start(home=folder, options=StackOptions(compactors=1)) as stack:
        running = Service(stack.gateway_url, stack.token, listener(stack.gateway_url))
        with running.client() as client:
            (folder / TABLE).mkdir()
            client.create_table(
                TABLE,
                str(folder / TABLE),
                schema=SCHEMA,
                key=["x"],
                version_column="v",
                splits=[str(number) for number in range(ROWS, 20 * ROWS, ROWS)],
            )
        yield running


def listener(url: str) -> psutil.Process:
    """Return the process that listens at an address of this machine."""
    port = urlsplit(url).port
    for connection in psutil.net_connections("tcp"):
        is_open = connection.status == psutil.CONN_LISTEN and connection.pid is not None
        if is_open and connection.laddr.port == port:
            return psutil.Process(connection.pid)
    raise SystemExit(f"no process listens at {url}")


@contextmanager
def busy(running: Service) -> Iterator[None]:
    """Append rows all the time until the block ends, so that there is always a job."""
    over = threading.Event()

    def write() -> None:
        version = 0
        with running.client() as client:
            while not over.wait(0.2):
                version += 1
                start = version % 20 * ROWS
                rows = {
                    "x": list(range(start, start + ROWS)),
                    "v": [version] * ROWS,
                    "text": ["x" * 100] * ROWS,
                }
                try:
                    client.append(TABLE, pa.table(rows, schema=SCHEMA))
                except NeveError as error:
                    print(f"append: {error}", flush=True)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ----------------------------------------------------------------------------------------- Painting


def paints(browser: Browser, running: Service, views: Sequence[str], visits: int) -> None:
    """Print the first paint and the transferred bytes of each view."""
    context = browser.new_context()
    page = context.new_page()
    with running.client() as client:
        page.goto(client.console_link().link)
    page.wait_for_url(f"{running.url}/console")
    cookies = context.storage_state()
    context.close()
    print(f"{'view':44} {'median':>8} {'slowest':>8} {'bytes':>9}")
    for view in views:
        times_ms, sizes = [], []
        for _ in range(visits):
            context = browser.new_context(storage_state=cookies)
            page = context.new_page()
            page.goto(running.url + view, wait_until="load")
            page.wait_for_function(f"{FIRST_PAINT}.length > 0")
            times_ms.append(float(page.evaluate(f"{FIRST_PAINT}[0].startTime")))
            sizes.append(int(page.evaluate(TRANSFERRED)))
            context.close()
        median, slowest = statistics.median(times_ms), max(times_ms)
        print(f"{view:44} {median:5.0f} ms {slowest:5.0f} ms {max(sizes):9,}", flush=True)


# ------------------------------------------------------------------------------------------ Viewers


async def watch(running: Service, viewers: int, seconds: float) -> tuple[float, int]:
    """Return the gateway's processor time per second with so many viewers, and their events."""
    sessions = [
        httpx.AsyncClient(base_url=running.url, timeout=60.0)
        for _ in range(-(-viewers // STREAMS_OF_SESSION))
    ]
    events = 0

    async def view(number: int) -> None:
        nonlocal events
        session = sessions[number // STREAMS_OF_SESSION]
        address = {"of": WATCHED[number % len(WATCHED)]}
        async with session.stream("GET", "/console/events", params=address) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                events += line.startswith("event: beat")

    for session in sessions:
        signed_in = await session.post("/console/sign-in", data={"secret": running.token})
        assert signed_in.status_code == 303, signed_in.text
    tasks = [asyncio.create_task(view(number)) for number in range(viewers)]
    await asyncio.sleep(SETTLE_S)
    before_s, begun_s, before = running.gateway_cpu_s(), asyncio.get_running_loop().time(), events
    await asyncio.sleep(seconds)
    took_s = asyncio.get_running_loop().time() - begun_s
    used, seen = (running.gateway_cpu_s() - before_s) / took_s, events - before
    failed = [task.exception() for task in tasks if task.done()]
    assert not failed, failed[0]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for session in sessions:
        await session.aclose()
    return used, seen


def main() -> None:
    """Start a service, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--visits", type=int, default=10, help="visits of each view")
    parser.add_argument("--views", nargs="+", default=VIEWS, help="addresses of views")
    parser.add_argument("--viewers", type=int, nargs="+", default=[0, 1, 50])
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a measurement")
    options = parser.parse_args()
    exit_on_sigterm()
    with (
        tempfile.TemporaryDirectory() as folder,
        service(Path(folder)) as running,
        busy(running),
    ):
        with chromium() as browser:
            paints(browser, running, options.views, options.visits)
        for viewers in options.viewers:
            used, seen = asyncio.run(watch(running, viewers, options.seconds))
            print(f"{viewers:3} viewers: gateway {used:6.2%} of a core, {seen} samples", flush=True)


if __name__ == "__main__":
    main()
