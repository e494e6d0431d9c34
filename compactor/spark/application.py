"""Open the Spark session of a driver process: on RayDP, or in the process itself."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import compactor
from common.compactor_needs import executor_memory_bytes
from common.errors import ConfigError
from common.log_files import TASK_LOGS_VARIABLE
from common.units import parse_size_bytes
from common.wire import PIN_AMOUNT
from compactor.rewrite.kernel.concurrency import MERGE_CORES
from compactor.rewrite.plan.memory_budget import (
    LIMIT_SETTING,
    PAGE_CACHE_SETTING,
    SCRATCH_SETTING,
    TASK_ENVIRON,
    TASK_SETTING,
)
from compactor.spark.driver_protocol import DriverSettings, EngineKind
from compactor.spark.startup import warm_up

EXECUTOR_RESOURCE = "spark.ray.raydp_spark_executor.actor.resource."
MASTER_RESOURCE = "spark.ray.raydp_spark_master.actor.resource."
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
APP_MASTER_OPTIONS = "spark.ray.raydp_app_master.extraJavaOptions"
ARROW_OPENINGS = " ".join(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch")
)
"""Arrow reads the JVM's buffers directly; Java 17 wants to be asked."""
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""A driver only hands out tasks. The JVM's optimising compiler would work for minutes on what
runs once per job, on the cores that the tasks want: 150 ms of each small job's 300. The two JVMs
of an app master only start executors, and need half the processor time for their own start."""
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
JVM_CLOSE_WAIT_MAX_S = 10.0
CRASH_REPORT = "hs_err_pid"
"""How the file's name begins; `common.log_files` keeps the newest."""


@dataclass(frozen=True, slots=True)
class EngineSession:
    """An open Spark session; on Ray, its application and what that one's parts know."""

    spark: Any
    application: Any = None
    secret: Any = None

    @property
    def jvm(self) -> "subprocess.Popen[bytes]":
        """The process of the session's JVM: a child of this one."""
        jvm: subprocess.Popen[bytes] = self.spark.sparkContext._gateway.proc  # noqa: SLF001 - PySpark does not tell
        return jvm

    def close(self) -> None:
        """End it in order: Ray's side is told at once, the JVM is gone on return."""
        jvm = self.jvm
        if self.application is None:
            self.spark.stop()
        else:
            import ray

            self.application.stop(cleanup_data=True)
            self.secret.forget()
            ray.shutdown()
        assert jvm.stdin is not None, "Spark's JVM ends with its standard input"
        jvm.stdin.close()
        try:
            jvm.wait(JVM_CLOSE_WAIT_MAX_S)
        except subprocess.TimeoutExpired:
            jvm.kill()


def open_session(settings: DriverSettings, namespace: str) -> EngineSession:
    """Return a Spark session.

    Args:
        settings: The application.
        namespace: Ray namespace of this very driver, used by nobody before.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local = settings.engine is EngineKind.LOCAL
    session = _open_local(settings) if local else _open_on_raydp(settings, namespace)
    # RayDP returns before an executor is there. A job waits for it, so that one that finds no
    # place fails the start and not the first attempt, which also need not load libraries.
    cores = settings.executors * settings.executor_cores
    session.spark.sparkContext.parallelize(range(cores), cores).foreach(warm_up)
    return session


def spark_configs(settings: DriverSettings) -> dict[str, str]:
    """Return the settings of the application, for either engine."""
    pins = {f"{MASTER_RESOURCE}{settings.node_resource}": str(PIN_AMOUNT)}
    if settings.executor_resource:
        pins[f"{EXECUTOR_RESOURCE}{settings.executor_resource}"] = "1"
    else:
        pins[f"{EXECUTOR_RESOURCE}{settings.node_resource}"] = str(PIN_AMOUNT)
    # A JVM that is killed leaves files: let it be where the compactor's own go. Of one that
    # crashes a report is enough; its memory would fill the disk.
    crashes = f"-XX:ErrorFile={crash_folder(settings)}/{CRASH_REPORT}%p.log"
    java_options = f"-Djava.io.tmpdir={tempfile.gettempdir()} {crashes} -XX:-CreateCoredumpOnCrash"
    local = settings.engine is EngineKind.LOCAL
    compiler = EXECUTOR_COMPILER if local else QUICK_COMPILER
    return {
        "spark.driver.memory": settings.driver_memory,
        DRIVER_OPTIONS: f"{java_options} {compiler}",
        EXECUTOR_OPTIONS: " ".join(
            [java_options, EXECUTOR_COMPILER, ARROW_OPENINGS, *_log_options(settings)]
        ),
        APP_MASTER_OPTIONS: " ".join([java_options, QUICK_COMPILER, *_log_options(settings)]),
        # Executors import the task code of this very project.
        "spark.executorEnv.PYTHONPATH": _project_path(),
        # As many as a merge keeps busy; more would only get in the way of other tasks.
        "spark.executorEnv.POLARS_MAX_THREADS": str(min(settings.executor_cores, MERGE_CORES)),
        **{f"spark.executorEnv.{name}": value for name, value in TASK_ENVIRON.items()},
        "spark.python.daemon.module": "compactor.spark.task_daemon",
        **_task_logs(settings),
        TASK_SETTING: str(settings.task_bytes),
        LIMIT_SETTING: str(settings.task_limit_bytes),
        SCRATCH_SETTING: settings.scratch,
        PAGE_CACHE_SETTING: settings.page_cache,
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
        # Jobs share the executor; without this, a small one waits for all tasks of a large one.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # It would be another environment, and Spark starts a daemon for each: one that nobody
        # has warmed up, for every job in the ways of Spark SQL.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        "spark.sql.shuffle.partitions": str(2 * settings.executors * settings.executor_cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(pins if settings.node_resource else {}),
        **settings.configs,
    }


def crash_folder(settings: DriverSettings) -> Path:
    """Return where the JVMs of an application report that they crash: beside its log."""
    logged = settings.log_file != os.devnull
    return Path(settings.log_file).parent if logged else Path(tempfile.gettempdir())


def _log_options(settings: DriverSettings) -> list[str]:
    """Return options of a JVM that Ray starts, so that its log files lie where they are found.

    Ray's runtime for Java reads them.
    """
    if not settings.executor_logs:
        return []
    return [
        f"-Dray.logging.dir={settings.executor_logs}",
        "-Dray.logging.level=WARN",
        f"-Dray.logging.rotation.max-file-size={settings.executor_log_bytes_max}B",
        "-Dray.logging.rotation.max-backup-files=1",
    ]


def _task_logs(settings: DriverSettings) -> dict[str, str]:
    if not settings.executor_logs:
        return {}
    return {f"spark.executorEnv.{TASK_LOGS_VARIABLE}": settings.executor_logs}


def executor_bytes(settings: DriverSettings) -> int:
    """Return what an executor takes with all its tasks: heap, what a JVM has besides, Python."""
    heap = parse_size_bytes(settings.executor_memory, "compactor.executor_memory")
    return executor_memory_bytes(heap, settings.executor_cores, settings.task_bytes)


def require_java(environ: Mapping[str, str]) -> None:
    """Refuse a machine where Spark and Ray find no Java; PySpark's own words name no cure.

    Raises:
        ConfigError: There is none.
    """
    home = environ.get("JAVA_HOME", "")
    if home and not os.access(Path(home) / "bin" / "java", os.X_OK):
        raise ConfigError(
            f"no Java on node {platform.node()}: JAVA_HOME is {home!r}, which has no bin/java; set"
            " it to a Java 17, as the image of k8s/image does"
        )
    if not shutil.which("java", path=environ.get("PATH", "")):
        raise ConfigError(
            f"no Java on node {platform.node()}: no `java` in PATH; install a Java 17 there, as the"
            " image of k8s/image does"
        )


def _open_on_raydp(settings: DriverSettings, namespace: str) -> EngineSession:
    """Join the Ray cluster and open a session with executors in it."""
    import ray  # only a driver on Ray may load it

    require_java(os.environ)
    from compactor.spark.cluster import AUTHENTICATION, ENCRYPTION, Application, Secret

    ray.init(
        address=settings.ray_address, namespace=namespace, log_to_driver=False, logging_level="WARN"
    )
    # The parts' secret is a file of this node: they are started here, whatever was asked for.
    here = settings.node_resource or f"node:{ray.util.get_node_ip_address()}"
    configs = spark_configs(replace(settings, node_resource=here))
    # The app master only waits; a logical CPU would be wasted on it.
    configs.setdefault(f"{MASTER_RESOURCE}CPU", "0")
    # RayDP asks for the heap alone; Python tasks need as much again and more.
    configs.setdefault(f"{EXECUTOR_RESOURCE}memory", str(executor_bytes(settings)))
    secret = Secret.of(settings.secret_file) if settings.secret_file else Secret.drawn()
    for options in (DRIVER_OPTIONS, EXECUTOR_OPTIONS, APP_MASTER_OPTIONS):
        configs[options] = f"{secret.option} {configs[options]}"
    application = Application(
        settings.name,
        num_executors=settings.executors,
        executor_cores=settings.executor_cores,
        executor_memory=settings.executor_memory,
        enable_hive=False,
        configs={**AUTHENTICATION, **(ENCRYPTION if settings.executor_resource else {}), **configs},
    )
    return EngineSession(application.get_spark_session(), application, secret)


def _open_local(settings: DriverSettings) -> EngineSession:
    """Open a session whose tasks run in the driver's JVM, which draws a secret of its own."""
    from pyspark.sql import SparkSession

    # There is no executor: its heap is the driver's.
    heap = {"spark.driver.memory": settings.executor_memory, **settings.configs}
    cores = settings.executors * settings.executor_cores
    builder = SparkSession.builder.master(f"local[{cores}]")
    builder = builder.appName(settings.name)
    here = {"spark.authenticate": "true", "spark.driver.host": "127.0.0.1"}
    for name, value in {**spark_configs(settings), **here, **heap}.items():
        builder = builder.config(name, value)
    return EngineSession(builder.getOrCreate())


def _project_path() -> str:
    """Return a search path on which Spark's Python workers find this project."""
    root = str(Path(compactor.__path__[0]).parent)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(part for part in (root, *inherited) if part))
