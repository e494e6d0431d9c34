"""Small works for the Spark engine, named to it by module and function."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from common.errors import InputError
from compactor.core import RewriteProgress


@dataclass(frozen=True)
class Asked:
    """What a work is given."""

    spark: Any
    payload: dict[str, Any]
    progress: Callable[[RewriteProgress], None]
    cancelled: Callable[[], bool]
    attach: Callable[[Any], None]


def work(
    spark: Any,
    payload: dict[str, Any],
    progress: Callable[[RewriteProgress], None],
    cancelled: Callable[[], bool],
    attach: Callable[[Any], None],
) -> dict[str, Any]:
    """Do what the payload says: add, wait in a Spark task, fail, or die."""
    return WORKS[payload["do"]](Asked(spark, payload, progress, cancelled, attach))


def _add(asked: Asked) -> dict[str, Any]:
    frame = asked.spark.range(asked.payload["count"], numPartitions=2)
    rows = frame.mapInArrow(add_one, "id long").toPandas()["id"]
    asked.progress(RewriteProgress(fraction=1.0, rows_done=len(rows)))
    pool = asked.spark.sparkContext.getLocalProperty("spark.scheduler.pool")
    return {"sum": int(rows.sum()), "pool": pool}


def _sleep(asked: Asked) -> dict[str, Any]:
    asked.progress(RewriteProgress(fraction=0.1))
    numbers = asked.spark.sparkContext.parallelize([asked.payload["for_s"]], 1)
    return {"count": numbers.map(sleep).count(), "cancelled": asked.cancelled()}


def _valve(asked: Asked) -> dict[str, Any]:
    valve = Recorder()
    asked.attach(valve)
    asked.progress(RewriteProgress(fraction=0.1))
    valve.enough.wait()
    return {"granted": valve.granted}


def _archives(asked: Asked) -> dict[str, Any]:
    numbers = asked.spark.sparkContext.parallelize([0], 1)
    return {"seen": [numbers.map(archives_read).collect()[0] for _ in range(6)]}


def _daemons(asked: Asked) -> dict[str, Any]:
    """Return which processes have forked the workers of plain tasks and of Spark SQL's."""
    plain = asked.spark.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect()
    frame = asked.spark.range(0, 1, 1, numPartitions=1)
    in_sql = frame.mapInArrow(parent_pid, "id long").toPandas()["id"]
    return {"plain": plain, "in_sql": [int(pid) for pid in in_sql]}


def _own_jobs(asked: Asked) -> dict[str, Any]:
    """Return how many jobs of Spark the driver has begun by itself, for no attempt."""
    return {"count": len(asked.spark.sparkContext.statusTracker().getJobIdsForGroup(None))}


def _memory(asked: Asked) -> dict[str, Any]:
    import ray

    # Of a driver only the JVM is a member of Ray.
    ray.init(address=asked.payload["address"], log_to_driver=False, logging_level="ERROR")
    try:
        total, free = ray.cluster_resources(), ray.available_resources()
    finally:
        ray.shutdown()
    return {"taken_bytes": total["memory"] - free.get("memory", 0.0)}


def _refuse(_: Asked) -> dict[str, Any]:
    raise InputError("file a.parquet is gone")


def _break(_: Asked) -> dict[str, Any]:
    raise KeyError("no such thing")


def _lose(asked: Asked) -> dict[str, Any]:
    asked.spark.sparkContext._jsc.sc().stop()
    return {"count": asked.spark.sparkContext.parallelize([1]).count()}


WORKS: dict[str, Callable[[Asked], dict[str, Any]]] = {
    "add": _add,
    "sleep": _sleep,
    "valve": _valve,
    "archives": _archives,
    "daemons": _daemons,
    "own-jobs": _own_jobs,
    "memory": _memory,
    "refuse": _refuse,
    "break": _break,
    "lose": _lose,
}


class Recorder:
    """A valve that notes what it is told; at the third word it has heard enough."""

    def __init__(self) -> None:
        self.granted: list[float | None] = []
        self.stopped = False
        self.enough = threading.Event()

    def grant(self, bytes_s: float | None) -> None:
        self.granted.append(bytes_s)
        if len(self.granted) == 3:
            self.enough.set()

    def stop(self) -> None:
        self.stopped = True
        self.enough.set()


def add_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add one to each id; runs in an executor's Python."""
    import pyarrow.compute as pc

    for batch in batches:
        yield pa.record_batch([pc.add(batch.column(0), 1)], names=["id"])


def parent_pid(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the pid of this process's parent for each batch; runs in an executor's Python."""
    for _ in batches:
        yield pa.record_batch([pa.array([os.getppid()], pa.int64())], names=["id"])


def archives_read(_: int) -> tuple[int, int]:
    """Count from now on how often this process reads an archive's directory; return so far."""
    import zipimport

    seen: list[str] = zipimport.__dict__.setdefault("_seen", [])
    if not hasattr(zipimport, "_real"):
        zipimport._real = zipimport._read_directory

        def counted(archive: str) -> Any:
            seen.append(archive)
            return zipimport._real(archive)

        zipimport._read_directory = counted
    return os.getpid(), len(seen)


def sleep(for_s: float) -> float:
    """Wait; runs in an executor's Python."""
    time.sleep(for_s)
    return for_s
