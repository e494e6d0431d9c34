"""Open the Spark session of a driver process: on RayDP, or in the process itself."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import compactor
from common.units import parse_size_bytes
from compactor.rewrite.kernel.lanes import LANE_CORES
from compactor.rewrite.memory import LIMIT_SETTING, TASK_ENVIRON, TASK_SETTING
from compactor.spark.settings import DriverSettings, Engines
from compactor.spark.warming import warm

EXECUTOR_RESOURCE = "spark.ray.raydp_spark_executor.actor.resource."
MASTER_RESOURCE = "spark.ray.raydp_spark_master.actor.resource."
PIN_AMOUNT = "0.001"
"""Enough to be placed on the node that has the resource, whatever its amount."""
APP_MASTER_OPTIONS = "spark.ray.raydp_app_master.extraJavaOptions"
ARROW_OPENINGS = " ".join(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch")
)
"""Arrow reads the JVM's buffers directly; Java 17 wants to be asked."""
DRIVER_COMPILER = "-XX:TieredStopAtLevel=1"
"""A driver only hands out tasks. The JVM's optimising compiler would work for minutes on what
runs once per job, on the cores that the tasks want: 150 ms of each small job's 300."""
EXECUTOR_COMPILER = " ".join(
    f"-XX:Tier4{name}Threshold={count}"
    for name, count in (
        ("Invocation", 50_000),
        ("MinInvocation", 6_000),
        ("Compile", 150_000),
        ("BackEdge", 400_000),
    )
)
"""Ten times the usual: loops over rows are optimised all the same, what begins tasks is not."""
JVM_END_WAIT_MAX_S = 10.0
OVERHEAD_BYTES_MIN, OVERHEAD_SHARE = 256 * 1024**2, 0.1
"""Of an executor's JVM beside its heap: code, stacks, buffers."""


def open_session(settings: DriverSettings, namespace: str) -> Any:
    """Return a Spark session.

    Args:
        settings: The application.
        namespace: Ray namespace of this very driver, used by nobody before.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    configs = spark_configs(settings)
    local = settings.engine is Engines.LOCAL
    spark = _local(settings, configs) if local else _raydp(settings, configs, namespace)
    # RayDP returns before an executor is there. A job waits for it, so that one that finds no
    # place fails the start and not the first attempt, which also need not load libraries.
    cores = settings.executor_cores
    spark.sparkContext.parallelize(range(cores), cores).foreach(warm)
    return spark


def close_session(spark: Any) -> None:
    """End a session in order: Ray's side is told at once, the JVM is gone on return."""
    jvm = spark.sparkContext._gateway.proc  # noqa: SLF001 - PySpark does not say when it is gone
    if "raydp" in sys.modules:
        import ray
        import raydp

        raydp.stop_spark()
        ray.shutdown()
    else:
        spark.stop()
    jvm.stdin.close()
    try:
        jvm.wait(JVM_END_WAIT_MAX_S)
    except subprocess.TimeoutExpired:
        jvm.kill()


def spark_configs(settings: DriverSettings) -> dict[str, str]:
    """Return the settings of the application, for either engine."""
    pins = {
        f"{EXECUTOR_RESOURCE}{settings.node_resource}": PIN_AMOUNT,
        f"{MASTER_RESOURCE}{settings.node_resource}": PIN_AMOUNT,
    }
    # A JVM that is killed leaves files: let it be where the compactor's own go.
    java_options = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
    local = settings.engine is Engines.LOCAL
    compiler = EXECUTOR_COMPILER if local else DRIVER_COMPILER
    return {
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"{java_options} {compiler}",
        "spark.executor.extraJavaOptions": f"{java_options} {EXECUTOR_COMPILER} {ARROW_OPENINGS}",
        APP_MASTER_OPTIONS: java_options,
        # Executors import the task code of this very project.
        "spark.executorEnv.PYTHONPATH": _project_path(),
        # As many as a merge keeps busy; more would only get in the way of other tasks.
        "spark.executorEnv.POLARS_MAX_THREADS": str(min(settings.executor_cores, LANE_CORES)),
        **{f"spark.executorEnv.{name}": value for name, value in TASK_ENVIRON.items()},
        "spark.python.daemon.module": "compactor.spark.task_daemon",
        TASK_SETTING: str(settings.task_bytes),
        LIMIT_SETTING: str(settings.task_limit_bytes),
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
        # Jobs share the executor; without this, a small one waits for all tasks of a large one.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(2 * settings.executor_cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(pins if settings.node_resource else {}),
        **settings.configs,
    }


def executor_bytes(settings: DriverSettings) -> int:
    """Return what an executor takes with all its tasks: heap, what a JVM has besides, Python."""
    heap = parse_size_bytes(settings.executor_memory, "compactor.executor_memory")
    beside = max(OVERHEAD_BYTES_MIN, int(heap * OVERHEAD_SHARE))
    return heap + beside + settings.executor_cores * settings.task_bytes


def _raydp(settings: DriverSettings, configs: dict[str, str], namespace: str) -> Any:
    """Join the Ray cluster and open a session with one executor in it."""
    import ray  # only a driver on Ray may load it
    import raydp

    ray.init(
        address=settings.ray_address, namespace=namespace, log_to_driver=False, logging_level="WARN"
    )
    # The app master only waits; a logical CPU would be wasted on it.
    configs.setdefault(f"{MASTER_RESOURCE}CPU", "0")
    # RayDP asks for the heap alone; Python tasks need as much again and more.
    configs.setdefault(f"{EXECUTOR_RESOURCE}memory", str(executor_bytes(settings)))
    return raydp.init_spark(
        app_name=settings.name,
        num_executors=1,
        executor_cores=settings.executor_cores,
        executor_memory=settings.executor_memory,
        configs=configs,
        fault_tolerant_mode=False,
    )


def _local(settings: DriverSettings, configs: dict[str, str]) -> Any:
    """Open a session whose tasks run in the driver's JVM."""
    from pyspark.sql import SparkSession

    # There is no executor: its heap is the driver's.
    heap = {"spark.driver.memory": settings.executor_memory, **settings.configs}
    builder = SparkSession.builder.master(f"local[{settings.executor_cores}]")
    builder = builder.appName(settings.name)
    for name, value in {**configs, "spark.driver.host": "127.0.0.1", **heap}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _project_path() -> str:
    """Return a search path on which Spark's Python workers find this project."""
    root = str(Path(compactor.__path__[0]).parent)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(part for part in (root, *inherited) if part))
