"""What the benchmark asks of a Spark driver: the same merge in Spark SQL, or Névé's rewrite.

Both run in the very process that a compactor uses: RayDP, one executor, two cores.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.rewrite.datasets import TOMBSTONE, VERSION
from benchmarks.rewrite.wanted import THREADS, Wanted
from common.wire import Assignment
from compactor.core import RewriteProgress
from compactor.rewrite.attempt import rewrite


@dataclass(frozen=True, slots=True)
class Ask:
    """One run: of a form of Spark's, or of Névé over an assignment."""

    form: str
    wanted: Wanted
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How long it took, and by which kernel."""

    seconds: float
    kernel: str = ""
    timings_s: Mapping[str, float] | None = None


def work(
    spark: Any,
    ask: Ask,
    progress: Callable[[RewriteProgress], None],
    cancelled: Callable[[], bool],
    attach: Callable[[Any], None],
) -> Answer:
    """Do one run."""
    begun_s = time.perf_counter()
    if ask.assignment is not None:
        done = rewrite(spark, ask.assignment, progress, cancelled, attach)
        return Answer(time.perf_counter() - begun_s, done.kernel, done.timings_s)
    frame = FORMS[ask.form](spark, ask.wanted)
    wanted = ask.wanted
    context = spark.sparkContext
    context._jsc.hadoopConfiguration().set(  # noqa: SLF001 - PySpark has no other door to it
        "parquet.compression.codec.zstd.level", str(wanted.level)
    )
    writer = frame.write.mode("overwrite").option("compression", "zstd")
    writer.option("parquet.block.row.count.limit", str(wanted.group_rows)).parquet(wanted.out)
    return Answer(time.perf_counter() - begun_s)


def _read(spark: Any, wanted: Wanted) -> Any:
    return spark.read.parquet(*wanted.data.paths)


def _window(spark: Any, wanted: Wanted) -> Any:
    """Range-partition once; Spark's window and the order of the output both use it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    key = list(wanted.data.key)
    best_first = Window.partitionBy(*key).orderBy(f.desc(VERSION), f.desc(TOMBSTONE))
    ranged = _read(spark, wanted).repartitionByRange(THREADS, *key)
    ranked = ranged.withColumn("place", f.row_number().over(best_first))
    best = ranked.where(f"place = 1 AND NOT {TOMBSTONE}").drop("place")
    return best.sortWithinPartitions(*key)


def _max_by(spark: Any, wanted: Wanted) -> Any:
    from pyspark.sql import functions as f

    key = list(wanted.data.key)
    rows = _read(spark, wanted)
    row = f.struct(*(name for name in rows.columns if name not in key))
    best = rows.groupBy(*key).agg(f.max_by(row, f.struct(VERSION, TOMBSTONE)).alias("best"))
    kept = best.select(*key, "best.*").where(f"NOT {TOMBSTONE}").select(*rows.columns)
    return kept.repartitionByRange(THREADS, *key).sortWithinPartitions(*key)


def _coalesce(spark: Any, wanted: Wanted) -> Any:
    """Bin-pack one group of files into one, as Iceberg's rewrite does it with Spark."""
    return _read(spark, wanted).coalesce(1)


FORMS: Mapping[str, Callable[[Any, Wanted], Any]] = {
    "window": _window,
    "max-by": _max_by,
    "coalesce": _coalesce,
}


def forms_for(key: tuple[str, ...]) -> list[str]:
    """Return the forms that make sense for a table."""
    return ["window", "max-by"] if key else ["coalesce"]
