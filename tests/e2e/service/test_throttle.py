"""Limits on bytes per second, in a whole service: two compactors keep to one together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import log
from threading import Event

import pytest

from neve.api import Job
from neve.client import Client
from tests.support.ledger import LedgerTable, bag_rows, keyed_rows
from tests.support.stack import COMPACTORS, FOREGROUND, Service

pytestmark = [pytest.mark.slow]

VOLUME, SHARED, RATE = "narrow", "shared", 1024 * 1024
ROWS = 20_000


@pytest.fixture(autouse=True)
def without_limits_afterwards(service: Service) -> Iterator[None]:
    yield
    service.client.limit_volume(VOLUME, None)
    service.client.limit_volume(SHARED, None)
    service.client.limit_group("default", None)


def table_of(service: Service, seed: int, volume: str = VOLUME) -> LedgerTable:
    """Return a paused table on the volume, with files for one job of some seconds."""
    table = LedgerTable(
        service.client,
        service.folder,
        keyed=False,
        stem=f"throttled-{seed}",
        paused=True,
        settings={"volume": volume},
    )
    table.add(*(bag_rows(ROWS, seed=10 * seed + number) for number in range(4)))
    return table


def throttled(service: Service) -> list[Job]:
    return [job for job in service.client.jobs() if job.throttled]


def test_jobs_of_two_compactors_keep_to_the_limit_of_their_volume(service: Service) -> None:
    client = service.client
    tables = [table_of(service, seed) for seed in range(2)]
    client.limit_volume(VOLUME, RATE)
    for table in tables:
        client.resume(table.name)
    service.wait("throttled jobs of both", lambda: len(throttled(service)) == 2)
    told = client.explain(throttled(service)[0].table)[0].sentences
    assert any(f"volume {VOLUME} may move 1.0 MiB/s" in each for each in told), told
    for table in tables:
        service.wait_until_at_rest(table)

    done = [each for table in tables for each in client.history(table.name)]
    assert {each.end for each in done} == {"committed"}
    assert {each.compactor for each in done} == set(COMPACTORS)
    moved = sum(each.bytes_in + each.bytes_out for each in done)
    took_s = max(each.ended_s for each in done) - min(each.started_s for each in done)
    # Files have footers, too, which do not count.
    assert moved <= 1.02 * RATE * took_s
    (volume,) = [limit for limit in client.limits() if limit.name == VOLUME]
    assert 0.9 * moved <= volume.moved_bytes <= moved
    assert volume.waited_s > 0
    client.limit_volume(VOLUME, 0)
    for table in tables:
        table.check_rows()


def test_a_throttled_job_can_be_cancelled_and_a_limit_outlives_the_coordinator(
    service: Service,
) -> None:
    client = service.client
    table = table_of(service, 5)
    client.limit_volume(VOLUME, "64KB")
    client.resume(table.name)
    (job,) = service.wait("throttled job", lambda: throttled(service), table=table)
    before = client.status().coordinator
    service.kill(service.actor("CoordinatorActor"))
    service.wait("new coordinator", lambda: client.status().coordinator != before)
    (volume,) = service.wait(
        "limit", lambda: [limit for limit in client.limits() if limit.name == VOLUME]
    )
    assert (volume.limit_bytes_s, volume.is_default) == (64 * 1024, False)
    service.wait("adopted job", lambda: [each for each in client.jobs() if each.state])

    client.limit_volume(VOLUME, RATE)
    service.wait("output", lambda: table.is_being_written(job.attempt), poll_max_s=0.1)
    client.limit_volume(VOLUME, "64KB")
    with closing(client.scan(table.name, batches=True)):  # Its pin keeps the collector away.
        client.cancel_job(job.attempt)
        service.wait(
            "end", lambda: "cancelled" in [entry.end for entry in client.history(table.name)]
        )
        service.wait(
            "deletion by the compactor",
            lambda: not [path for path in table.stored() if job.attempt in path],
        )
    client.limit_volume(VOLUME, 0)
    service.wait_until_at_rest(table)
    table.check_rows()


class Readers:
    """Two callers that scan a table again and again."""

    def __init__(self, service: Service, table: str) -> None:
        self._service, self._table, self._over = service, table, Event()
        self._pool = ThreadPoolExecutor(2)
        self._work = [self._pool.submit(self._read) for _ in range(2)]
        self.shares: list[float] = []

    def _read(self) -> None:
        stack = self._service.stack
        with Client(stack.gateway_url, token=stack.token) as client:
            while not self._over.is_set():
                client.scan(self._table)

    def moved(self, least_bytes: int) -> tuple[int, int] | None:
        """Return the bytes of readers and of compactions, once readers have moved so many.

        Readers have no limit until the gateway has heard of it: until then nothing counts.
        """
        client, name = self._service.client, "system"
        self.shares += [share.shares for share in client.control().classes if share.name == name]
        (volume,) = [limit for limit in client.limits() if limit.name == SHARED]
        foreground = volume.foreground_bytes
        if foreground < least_bytes or volume.granted_bytes_s is None:
            return None
        return foreground, volume.moved_bytes - foreground

    def end(self) -> None:
        self._over.set()
        self._service.client.limit_volume(SHARED, 0)
        self._pool.shutdown()
        for reading in self._work:
            reading.result()


def test_reads_and_compactions_of_a_volume_get_bytes_by_their_shares(service: Service) -> None:
    tables = [table_of(service, 20 + seed, SHARED) for seed in range(2)]
    quiet = table_of(service, 29, SHARED)
    service.client.limit_volume(SHARED, RATE // 16)  # The first job must not end before the second.
    for table in tables:
        service.client.resume(table.name)
    service.wait("throttled jobs of both", lambda: len(throttled(service)) == 2)
    service.client.limit_volume(SHARED, RATE)
    readers = Readers(service, quiet.name)
    try:
        limited = service.wait("a limit of readers", lambda: readers.moved(1))
        begun = service.wait("readers at their rate", lambda: readers.moved(limited[0] + 2 * RATE))
        readers.shares.clear()
        ended = service.wait("bytes", lambda: readers.moved(begun[0] + 10 * RATE))
        running = {job.table for job in service.client.jobs()}
        assert running >= {table.name for table in tables}, "both wanted bytes until the end"
    finally:
        readers.end()
    foreground, compaction = (after - before for after, before in zip(ended, begun, strict=True))
    part = foreground / (foreground + compaction)
    shares = max(readers.shares), min(readers.shares)  # The controller may raise them.
    least, most = (FOREGROUND / (FOREGROUND + wanted) for wanted in shares)
    assert 0.95 * least <= part <= 1.05 * most, (part, least, most)
    for table in tables:
        service.wait_until_at_rest(table)
        table.check_rows()


def test_the_backlog_follows_the_formula_and_the_bytes_that_a_job_has_read(
    service: Service,
) -> None:
    client = service.client
    table = LedgerTable(
        client,
        service.folder,
        keyed=True,
        stem="owing",
        paused=True,
        settings={"volume": VOLUME, "backlog_mode": "seed"},
    )
    table.add(*(keyed_rows(range(5_000), version) for version in range(4)))
    client.limit_volume(VOLUME, "128KB")
    sizes = [file.size_bytes for file in client.files(table.name)]
    client.resume(table.name)
    owed = service.wait("backlog", lambda: client.backlog(table.name), table=table)
    formula = sum(size * log(sum(sizes) / size, 4) for size in sizes)
    assert owed[0].size_bytes == pytest.approx(formula, rel=0.1)

    seen = dict.fromkeys([owed[0].size_bytes])

    def at_rest() -> bool:
        lines = client.backlog(table.name)
        seen.update(dict.fromkeys(line.size_bytes for line in lines))
        return not lines

    service.wait("rest", at_rest, table=table)
    assert len(seen) >= 4, f"the job's heartbeats show few steps: {list(seen)}"
    client.limit_volume(VOLUME, 0)
    table.check_rows()
