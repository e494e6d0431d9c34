"""Small works for the Spark engine, named to it by module and function."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from common.errors import InputError
from compactor.core.result import RewriteProgress


def work(
    spark: Any,
    payload: dict[str, Any],
    progress: Callable[[RewriteProgress], None],
    cancelled: Callable[[], bool],
    attach: Callable[[Any], None],
) -> dict[str, Any]:
    """Do what the payload says: add, wait in a Spark task, fail, or die."""
    match payload["do"]:
        case "add":
            frame = spark.range(payload["count"], numPartitions=2)
            rows = frame.mapInArrow(add_one, "id long").toPandas()["id"]
            progress(RewriteProgress(fraction=1.0, rows_done=len(rows)))
            pool = spark.sparkContext.getLocalProperty("spark.scheduler.pool")
            return {"sum": int(rows.sum()), "pool": pool}
        case "sleep":
            progress(RewriteProgress(fraction=0.1))
            count = spark.sparkContext.parallelize([payload["for_s"]], 1).map(sleep).count()
            return {"count": count, "cancelled": cancelled()}
        case "valve":
            valve = Recorder()
            attach(valve)
            progress(RewriteProgress(fraction=0.1))
            valve.enough.wait()
            return {"granted": valve.granted}
        case "memory":
            import ray

            total, free = ray.cluster_resources(), ray.available_resources()
            return {"taken_bytes": total["memory"] - free.get("memory", 0.0)}
        case "refuse":
            raise InputError("file a.parquet is gone")
        case "break":
            raise KeyError("no such thing")
        case "lose":
            spark.sparkContext._jsc.sc().stop()
            return {"count": spark.sparkContext.parallelize([1]).count()}
        case other:
            raise AssertionError(other)


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


def sleep(for_s: float) -> float:
    """Wait; runs in an executor's Python."""
    time.sleep(for_s)
    return for_s
