"""The life of a compactor's actor, as a driver of a real Ray cluster sees it.

A process of its own (`python -m tests.support.compactor_life …`): Ray reads the
environment of its cluster when it is imported.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import ray

from common.coordinator_proxy import start_compactor
from common.metadata.changes import (
    AddFiles,
    Applied,
    Change,
    CreateTable,
    ReserveFiles,
)
from common.metadata.redis import connect
from common.model.job import Kind
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.location import open_location
from common.parquet.service_files import LocationOwner, write_owner
from common.runtime import RandomIds, call_id
from common.settings import CompactorSettings, Settings, StoreSettings
from common.wire import (
    NAMESPACE,
    Assignment,
    AttemptReport,
    Heartbeat,
)
from tests.support.assignments import an_assignment
from tests.support.living_folder import stored_below
from tests.support.patience import SERVICE_S
from tests.support.stub_coordinator import start_stub
from tests.support.tables_on_disk import KEYED, inspected, keyed_table, write_file

NOW_S = 1_000_000.0
NODE_GOES_S = 60.0


def reserved(redis_url: str, folder: Path, attempt: str) -> tuple[Table, Assignment]:
    """Return a table of two files in the store, and a reserved job over both."""
    rows = [{"k": k, "name": "a", "v": k % 2} for k in range(50)]
    table = replace(keyed_table(folder), id=RandomIds().next("table"), name=attempt)
    for path, version in (("a.parquet", 0), ("b.parquet", 1)):
        newer = [{**row, "v": version} for row in rows]
        write_file(folder, path, pa.Table.from_pylist(newer, KEYED))
    files = inspected(table, ["a.parquet", "b.parquet"])
    job = an_assignment(files, attempt=attempt, table=table, now_s=NOW_S)
    tablet = TabletId(table.id, PLUS_INFINITY)

    async def store() -> Assignment:
        store = connect(StoreSettings(url=redis_url))

        async def applied(change: Change) -> Applied:
            outcome = await store.apply(change)
            assert isinstance(outcome, Applied), outcome
            return outcome

        write_owner(open_location(table.location), LocationOwner(await store.store_id()))
        await applied(CreateTable(table=table))
        await applied(AddFiles(table=table.id, call=call_id(), files={PLUS_INFINITY: files}))
        done = await applied(
            ReserveFiles(
                tablet=tablet,
                attempt=attempt,
                job=job.job.id,
                kind=Kind.SYSTEM,
                inputs=job.job.inputs,
                output_prefix=job.reservation.output_prefix,
                outputs_max=1,
                group="default",
                compactor="c-1",
            )
        )
        await store.close()
        assert done.reservation is not None
        return replace(job, reservation=done.reservation)

    return table, asyncio.run(store())


def files_of(redis_url: str, table: Table) -> list[str]:
    async def read() -> list[str]:
        store = connect(StoreSettings(url=redis_url))
        tablet = await store.tablet(TabletId(table.id, PLUS_INFINITY))
        await store.close()
        assert tablet is not None
        assert not tablet.running
        return sorted(tablet.files)

    return asyncio.run(read())


class Heard:
    """What the stub has heard, asked again until something is true of it."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.beats: dict[str, Heartbeat] = {}
        self.reports: list[AttemptReport] = []
        self.left: list[str] = []

    def until(self, true: Callable[[Heard], object]) -> None:
        limit_s = time.monotonic() + SERVICE_S
        while time.monotonic() < limit_s:
            self.beats, self.reports, self.left = ray.get(self._stub.heard.remote())
            if true(self):
                return
            time.sleep(0.2)
        raise AssertionError((self.beats, self.reports, self.left))


class Life:
    """One compactor with a stub for a coordinator."""

    def __init__(self, redis_url: str, folder: Path, node_resource: str, engine: str) -> None:
        self._redis_url = redis_url
        self._folder = folder
        self._stub = start_stub()
        self._heard = Heard(self._stub)
        self._name = f"c-{len(node_resource)}"
        settings = Settings(
            store=StoreSettings(url=redis_url),
            compactor=CompactorSettings(
                slots=2,
                beat_interval_s=0.2,
                take_wait_max_s=2.0,
                drain_timeout_s=0.5,
                engine=engine,
            ),
        )
        logs = str(folder / "logs")
        self._actor = start_compactor(
            settings, name=self._name, node_resource=node_resource, log_folder=logs
        )

    def run(self, ending: str) -> None:
        """Let it work, die, come back and work, until it is asked to drain or loses its node."""
        first = ray.get(self._actor.ping.remote(), timeout=SERVICE_S)
        self._commits_a_job("one", 1)
        self._is_measured()
        second = self._dies(first)
        self._commits_a_job("two", 2)
        {"asked": self._drains, "node": self._loses_its_node}[ending](second)

    def _loses_its_node(self, incarnation: str) -> None:
        """Have Ray drain the node, as it does when the node's process gets SIGTERM."""
        attempt = f"slow-{self._name}"
        table, job = reserved(self._redis_url, self._folder / "slow", attempt)
        ray.get(self._stub.put.remote(replace(job, grant_bytes_s=1.0)))
        self._heard.until(lambda heard: heard.beats[incarnation].attempts)
        drain_node(ray.get(self._actor.status.remote()).node)
        self._heard.until(lambda heard: heard.left == [incarnation])
        report = self._heard.reports[-1]
        assert (report.attempt, report.end, report.outputs) == (attempt, AttemptEnd.DRAINED, ())
        assert stored_below(self._folder / "slow") == {"a.parquet", "b.parquet"}, table

    def _commits_a_job(self, label: str, count: int) -> None:
        attempt = f"{label}-{self._name}"
        table, job = reserved(self._redis_url, self._folder / label, attempt)
        ray.get(self._stub.put.remote(job))
        self._heard.until(lambda heard: len(heard.reports) == count)
        report = self._heard.reports[-1]
        assert (report.attempt, report.end, report.cause) == (attempt, AttemptEnd.COMMITTED, "")
        assert files_of(self._redis_url, table) == list(report.outputs)
        assert (report.counts.rows_in, report.counts.rows_out) == (100, 50)

    def _is_measured(self) -> None:
        """Read the figures of the first job, and of a Spark driver that died, as Prometheus."""
        (report,) = self._heard.reports
        (output,) = report.outputs
        inputs = [self._folder / "one" / name for name in ("a.parquet", "b.parquet")]
        self._exports("attempts_total", 1, "committed")
        self._exports("read_bytes_total", sum(path.stat().st_size for path in inputs))
        self._exports("written_bytes_total", (self._folder / "one" / output).stat().st_size)
        self._exports("rewrite_seconds", 1, "+Inf")
        self._exports("rows_dropped_total", 50, "superseded")
        self._exports("slots", 2)
        (beat,) = self._heard.beats.values()
        psutil.Process(beat.engine_pid).kill()
        self._exports("spark_restarts_total", 1)
        gone = beat.engine_pid
        self._heard.until(
            lambda heard: heard.beats[beat.incarnation].engine_pid not in (gone, None)
        )
        self._heard.until(
            lambda heard: exported(heard.beats[beat.incarnation], "memory_bytes")[0] > 0
        )

    def _exports(self, name: str, value: float, *labels: str) -> None:
        """Wait until a heartbeat has a value."""
        (incarnation,) = self._heard.beats
        self._heard.until(
            lambda heard: exported(heard.beats[incarnation], name, *labels) == [value]
        )

    def _dies(self, first: str) -> str:
        """Kill the process; return the incarnation that Ray starts instead."""
        gone = self._actor.stay.remote(first)
        beat = self._heard.beats[first]
        assert (beat.compactor, beat.slots, beat.draining) == (self._name, 2, False)
        driver = psutil.Process(beat.engine_pid)
        assert "compactor.spark.child" in driver.cmdline()
        driver.parent().kill()
        try:
            raise AssertionError(ray.get(gone, timeout=SERVICE_S))
        except ray.exceptions.RayActorError:
            self._heard.until(lambda heard: len(heard.beats) == 2)
        second: str = ray.get(self._actor.ping.remote(), timeout=SERVICE_S)
        assert second != first
        assert "restarted as" in ray.get(self._actor.stay.remote(first))
        return second

    def _drains(self, incarnation: str) -> None:
        ray.get(self._stub.ask_drain.remote())
        self._heard.until(lambda heard: heard.left == [incarnation])
        said = ray.get(self._actor.stay.remote(incarnation), timeout=SERVICE_S)
        assert said == "it has left"
        ray.kill(self._actor, no_restart=True)


def exported(beat: Heartbeat, name: str, *labels: str) -> list[float]:
    """Return the values of a metric with these labels in a heartbeat."""
    wanted = (f"neve_compactor_{name}", labels)
    return [each.value for each in beat.metrics if (each.metric, each.labels) == wanted]


def drain_node(node: str) -> None:
    """Have Ray take a node away in a minute."""
    from ray._private.worker import global_worker
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    deadline_ms = int(1000 * (time.time() + NODE_GOES_S))
    accepted, _ = global_worker.gcs_client.drain_node(node, reason, "test", deadline_ms)
    assert accepted


def main(
    redis_url: str, ray_address: str, folder: str, node_resource: str, ending: str, engine: str
) -> None:
    ray.init(address=ray_address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    try:
        Life(redis_url, Path(folder), node_resource, engine).run(ending)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
