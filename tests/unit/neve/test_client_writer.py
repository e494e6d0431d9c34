"""A writer gathers rows into batches, and each acknowledged row counts once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from neve.api import Buffered, FlushedRows
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NeveError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UnknownOutcomeError,
)
from neve.client.writer import BATCHES_MAX, AsyncRowWriter, RowWriter, WriterLimits
from tests.support.gateway import Gateway, serving
from tests.support.patience import PATIENCE_S

TYPES = {"id": "int64", "name": "string"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
        made.create_table("bag", str(tmp_path / "bag"), schema=schema)
        yield made
        made.drop("bag")


@dataclass
class Service:
    """A service that keeps what is sent, and fails as it is asked to."""

    failures: list[NeveError] = field(default_factory=list)
    before: Callable[[], None] = lambda: None
    taken: dict[str, pa.Table] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    flushes: int = 0

    def buffer_rows(self, table: str, rows: pa.Table, *, call: str | None = None) -> Buffered:
        assert call is not None
        self.before()
        self.calls.append(call)
        failure = self.failures.pop(0) if self.failures else None
        if not isinstance(failure, RefusedError):
            self.taken[call] = rows  # Only the answer is lost.
        if failure is not None:
            raise failure
        return Buffered(call=call, rows=rows.num_rows, size_bytes=rows.nbytes, durability="")

    def flush(self, table: str) -> FlushedRows:
        self.flushes += 1
        return FlushedRows(table=table, rows=self.rows, files=1, size_bytes=1)

    @property
    def rows(self) -> int:
        return sum(rows.num_rows for rows in self.taken.values())

    def writer(self, **limits: Any) -> RowWriter:
        return RowWriter(self, "bag", TYPES, limits_of(**limits))

    def async_writer(self, **limits: Any) -> AsyncRowWriter:
        return AsyncRowWriter(Tasks(self), "bag", limits_of(**limits))


def limits_of(**limits: Any) -> WriterLimits:
    return WriterLimits(**({"rows_max": 2, "bytes_max": 1 << 20, "wait_s": 3600.0} | limits))


@dataclass
class Tasks:
    """The same service, for tasks."""

    service: Service
    closed: int = 0

    async def types(self, table: str) -> dict[str, str]:
        return TYPES

    async def buffer_rows(self, table: str, rows: pa.Table, *, call: str | None = None) -> Buffered:
        await asyncio.sleep(0)
        return self.service.buffer_rows(table, rows, call=call)

    async def flush(self, table: str) -> FlushedRows:
        return self.service.flush(table)

    async def close(self) -> None:
        self.closed += 1


def until(is_so: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if is_so():
            return
        done.wait(0.01)
    raise AssertionError("it did not become so")


def test_all_rows_of_many_writers_are_read_at_once_and_flushed(client: Client) -> None:
    def write(number: int) -> None:
        with client.writer("bag", rows_max=7) as writer:
            for row in range(20):
                writer.write({"id": 100 * number + row, "name": "x"})
            assert writer.sync() == 20

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.count("bag") == 80
    assert client.files("bag") == []
    with client.writer("bag") as writer:
        writer.write({"id": 1})
        assert writer.flush().rows == 81
        assert len(client.files("bag")) == 1
    assert sorted(row["id"] for row in client.scan("bag").to_pylist())[:2] == [0, 1]


def test_a_batch_is_sent_when_it_has_enough_rows_or_bytes_or_has_waited() -> None:
    service = Service()
    with service.writer() as writer:
        writer.write({"id": 1})
        assert service.calls == []
        writer.write({"id": 2})
        until(lambda: writer.acknowledged == 2)
    with service.writer(rows_max=1000, bytes_max=1) as writer:
        writer.write({"id": 3})
        until(lambda: writer.acknowledged == 1)
    with service.writer(rows_max=1000, wait_s=0.01) as writer:
        writer.write({"id": 4})
        until(lambda: writer.acknowledged == 1)
    with service.writer(rows_max=1000) as writer:
        writer.write({"id": 5})
    assert writer.acknowledged == 1  # Closing sends the rest.
    assert service.rows == 5


def test_a_large_batch_is_cut() -> None:
    service = Service()
    with service.writer(rows_max=10_000, bytes_max=1000) as writer:
        writer.write(*({"id": number, "name": "x" * 100} for number in range(100)))
    assert writer.acknowledged == service.rows == 100
    assert max(rows.nbytes for rows in service.taken.values()) < 2000


@pytest.mark.parametrize("error", [UnknownOutcomeError("no answer"), UnavailableError("busy")])
def test_a_batch_is_sent_again_under_the_same_id(error: NeveError) -> None:
    service = Service(failures=[error])
    with service.writer() as writer:
        writer.write({"id": 1}, {"id": 2})
    assert len(service.calls) == 2
    assert len(set(service.calls)) == 1
    assert (writer.acknowledged, service.rows) == (2, 2)


def test_a_refused_batch_ends_the_writer() -> None:
    service = Service(failures=[RefusedError("late rows")])
    writer = service.writer()
    writer.write({"id": 1}, {"id": 2})
    until(lambda: writer._pending.failure is not None)
    for call in (lambda: writer.write({"id": 3}), writer.sync, writer.flush, writer.close):
        with pytest.raises(RefusedError, match="late rows"):
            call()
    assert (writer.acknowledged, service.rows, service.flushes) == (0, 0, 0)
    assert not writer._thread.is_alive()


def test_a_writer_waits_while_batches_are_full() -> None:
    go_on = threading.Event()
    service = Service(before=lambda: go_on.wait(PATIENCE_S) and None)
    writer = service.writer(rows_max=1)
    for number in range(BATCHES_MAX):
        writer.write({"id": number})
    wrote = threading.Event()

    def write() -> None:
        writer.write({"id": BATCHES_MAX})
        wrote.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not wrote.wait(0.2)
    go_on.set()
    thread.join(PATIENCE_S)
    assert wrote.is_set()
    writer.close()
    assert service.rows == BATCHES_MAX + 1


def test_a_value_that_does_not_fit_is_refused_and_spoils_no_other_row() -> None:
    service = Service()
    with service.writer() as writer:
        writer.write({"id": 1})
        with pytest.raises(CallerError, match="id"):
            writer.write({"id": "x"})
        writer.write({"id": 2})
    assert (writer.acknowledged, service.rows) == (2, 2)


def test_an_error_of_the_block_is_not_hidden_by_one_of_the_writer() -> None:
    service = Service(failures=[RefusedError("late rows")])
    writers: list[RowWriter] = []

    def block() -> None:
        with service.writer() as writer:
            writers.append(writer)
            writer.write({"id": 1}, {"id": 2})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert not writers[0]._thread.is_alive()


def test_a_closed_writer_takes_no_rows() -> None:
    writer = Service().writer()
    writer.close()
    writer.close()
    with pytest.raises(CallerError, match="closed"):
        writer.write({"id": 1})


@pytest.mark.parametrize("limits", [{"rows_max": 0}, {"bytes_max": 0}, {"bytes_max": 4 << 20}])
def test_limits_that_are_not_possible_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(CallerError, match="not possible"):
        Service().writer(**limits)


# -------------------------------------------------------------------------------------------- Tasks


def test_async_writers_share_a_loop_with_other_work(client: Client) -> None:
    async def write(number: int) -> int:
        async with client.async_writer("bag", rows_max=7) as writer:
            for row in range(20):
                await writer.write({"id": 100 * number + row, "name": "x"})
            acknowledged: int = await writer.sync()
            return acknowledged

    async def story() -> None:
        assert await asyncio.gather(*map(write, range(4))) == [20] * 4
        assert await asyncio.to_thread(client.count, "bag") == 80
        async with client.async_writer("bag") as writer:
            await writer.write({"id": 1})
            assert (await writer.flush()).rows == 81

    asyncio.run(story())
    assert client.files("bag")[0].rows == 81


def test_an_async_writer_of_a_missing_table_does_not_begin(client: Client) -> None:
    async def story() -> None:
        async with client.async_writer("none"):
            raise AssertionError

    with pytest.raises(NotFoundError):
        asyncio.run(story())


def test_an_async_batch_is_sent_when_it_is_full_or_has_waited() -> None:
    async def story() -> list[int]:
        service = Service()
        async with service.async_writer(wait_s=0.01) as writer:
            await writer.write({"id": 1})
            while not writer.acknowledged:
                await asyncio.sleep(0.001)
        async with service.async_writer() as writer:
            await writer.write({"id": 2}, {"id": 3}, {"id": 4})
            await writer.write({"id": 5})
        return [rows.num_rows for rows in service.taken.values()]

    assert asyncio.run(story()) == [1, 3, 1]


def test_an_async_batch_is_sent_again_under_the_same_id() -> None:
    service = Service(failures=[UnknownOutcomeError("no answer"), UnavailableError("busy")])

    async def story() -> int:
        async with service.async_writer() as writer:
            await writer.write({"id": 1}, {"id": 2})
        return writer.acknowledged

    assert asyncio.run(story()) == 2
    assert (len(service.calls), len(set(service.calls))) == (3, 1)


def test_a_refused_async_batch_ends_the_writer() -> None:
    service = Service(failures=[RefusedError("late rows")])

    async def story() -> None:
        writer = await service.async_writer().__aenter__()
        await writer.write({"id": 1}, {"id": 2})
        for call in (writer.sync, lambda: writer.write({"id": 3}), writer.flush, writer.close):
            with pytest.raises(RefusedError, match="late rows"):
                await call()
        assert (writer.acknowledged, service.flushes) == (0, 0)

    asyncio.run(story())


def test_an_async_writer_waits_while_batches_are_full() -> None:
    async def story() -> None:
        go_on = asyncio.Event()
        service = Service()

        class Slow(Tasks):
            async def buffer_rows(self, table: str, rows: pa.Table, **more: Any) -> Buffered:
                await go_on.wait()
                return await super().buffer_rows(table, rows, **more)

        writer = AsyncRowWriter(Slow(service), "bag", limits_of(rows_max=1))
        async with writer:
            for number in range(BATCHES_MAX):
                await writer.write({"id": number})
            last = asyncio.create_task(writer.write({"id": BATCHES_MAX}))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not last.done()
            go_on.set()
            await last
        assert writer.acknowledged == service.rows == BATCHES_MAX + 1

    asyncio.run(story())


def test_a_cancelled_block_does_not_wait_for_its_rows() -> None:
    async def story() -> None:
        class Silent(Tasks):
            async def buffer_rows(self, table: str, rows: pa.Table, **more: Any) -> Buffered:
                await asyncio.Event().wait()
                raise AssertionError

        tasks = Silent(Service())
        writer = AsyncRowWriter(tasks, "bag", limits_of(rows_max=1))
        written = asyncio.Event()

        async def block() -> None:
            async with writer:
                await writer.write({"id": 1})
                written.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await written.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (writer.acknowledged, tasks.closed) == (0, 1)

    asyncio.run(story())
