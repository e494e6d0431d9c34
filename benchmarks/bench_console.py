"""The console of a gateway over a real Redis: first paint of each view, and the cost of viewers.

    python -m benchmarks.bench_console
    python -m benchmarks.bench_console --visits 1 --views /console /console/queues --seconds 5

    viewers   processor time of the gateway while 1 and 50 streams are open, spread over overview,
              a table and the queues
    paint     each view in a new profile of a running Chromium, without anything cached: the time
              from the navigation to the first contentful paint, and the bytes transferred

Redis and the gateway are processes of their own; the coordinator is a stand-in within the gateway,
so the gateway does a little more than in a service. First paint is wall time: on a machine with
other work it says what that machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
from playwright.sync_api import Browser

from neve.client import Client
from neve.local.processes import exit_on_sigterm
from tests.support.chromium import chromium
from tests.support.gateway import TOKEN
from tests.support.redis_server import RedisServer, free_port

TABLE = "busy"
SCHEMA = pa.schema([("x", pa.int64()), ("v", pa.int64()), ("text", pa.string())])
ROWS, TABLETS, FILES = 2_000, 20, 3
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
    """Start Redis and a gateway with a table; stop them when the block ends."""
    with ExitStack() as ended:
        redis = RedisServer(folder)
        redis.start()
        ended.callback(redis.stop)
        command = [sys.executable, "-m", "tests.support.gateway_process", redis.url]
        command.append(str(free_port()))
        gateway = ended.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        ended.callback(gateway.kill)
        assert gateway.stdout is not None
        running = Service(gateway.stdout.readline().strip(), TOKEN, psutil.Process(gateway.pid))
        with running.client() as client:
            (folder / TABLE).mkdir()
            client.create_table(
                TABLE,
                str(folder / TABLE),
                schema=SCHEMA,
                key=["x"],
                version_column="v",
                splits=[str(number) for number in range(ROWS, TABLETS * ROWS, ROWS)],
            )
            for version in range(FILES):
                count = TABLETS * ROWS
                columns = {"x": list(range(count)), "v": [version] * count, "text": ["x"] * count}
                client.append(TABLE, pa.table(columns, schema=SCHEMA))
        yield running


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
            while not page.evaluate(f"{FIRST_PAINT}.length"):
                page.wait_for_timeout(10)
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
    parser.add_argument("--viewers", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a measurement")
    options = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as running:
        for viewers in options.viewers:
            used, seen = asyncio.run(watch(running, viewers, options.seconds))
            print(f"{viewers:3} viewers: gateway {used:6.2%} of a core, {seen} samples", flush=True)
        with chromium() as browser:
            paints(browser, running, options.views, options.visits)


if __name__ == "__main__":
    main()
