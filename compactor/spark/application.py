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
from compactor.rewrite.memory_budget import (
    LIMIT_SETTING,
    MERGE_CORES,
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
"""Arrow reads the JVM's buffers directly, which Java 17 must permit."""
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""A driver only hands out tasks. The JVM's optimising compiler would spend minutes on code that
runs once per job, on the cores that the tasks need: 150 of 300 ms of each small job. The two JVMs
of an app master only start executors; without it they start in half the processor time."""
QUICK_JVM = f"{QUICK_COMPILER} -XX:+UseSerialGC -Xms32m"
"""For the same JVMs: their heaps stay small. A collector without threads of its own and a small
first heap take 50 MB less each, in the same processor time."""
EXECUTOR_COMPILER = " ".join(
    f"-XX:Tier4{name}Threshold={count}"
    for name, count in (
        ("Invocation", 50_000),
        ("MinInvocation", 6_000),
        ("Compile", 150_000),
        ("BackEdge", 400_000),
    )
)
"""Ten times the default: loops over rows are still optimised, the start of tasks is not."""
JVM_CLOSE_WAIT_MAX_S = 10.0
CRASH_REPORT = "hs_err_pid"
"""Prefix of the file's name; `common.log_files` keeps the newest ones."""


@dataclass(frozen=True, slots=True)
class EngineSession:
    """An open Spark session; on Ray, with its application and the secret of its parts."""

    spark: Any
    application: Any = None
    secret: Any = None

    @property
    def jvm(self) -> "subprocess.Popen[bytes]":
        """The process of the session's JVM: a child of this one."""
        jvm: subprocess.Popen[bytes] = self.spark.sparkContext._gateway.proc  # noqa: SLF001 - PySpark has no public API
        return jvm

    def close(self) -> None:
        """End it in order: Ray's side is notified at once, the JVM has ended on return."""
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
        namespace: A new Ray namespace for this driver.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local = settings.engine is EngineKind.LOCAL
    session = _open_local(settings) if local else _open_on_raydp(settings, namespace)
    # RayDP returns before an executor is up. A job waits for one, so that a missing executor fails
    # the start instead of the first attempt. The job also loads libraries.
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
    # A killed JVM leaves files, so it uses the compactor's temporary folder. For a crash a report
    # is enough; a memory dump would fill the disk.
    crashes = f"-XX:ErrorFile={crash_folder(settings)}/{CRASH_REPORT}%p.log"
    java_options = f"-Djava.io.tmpdir={tempfile.gettempdir()} {crashes} -XX:-CreateCoredumpOnCrash"
    local = settings.engine is EngineKind.LOCAL
    compiler = EXECUTOR_COMPILER if local else QUICK_JVM
    return {
        "spark.driver.memory": settings.driver_memory,
        DRIVER_OPTIONS: f"{java_options} {compiler}",
        EXECUTOR_OPTIONS: " ".join(
            [java_options, EXECUTOR_COMPILER, ARROW_OPENINGS, *_log_options(settings)]
        ),
        APP_MASTER_OPTIONS: " ".join([java_options, QUICK_JVM, *_log_options(settings)]),
        # Executors import the task code of this project.
        "spark.executorEnv.PYTHONPATH": _project_path(),
        # As many threads as a merge keeps busy; more would compete with other tasks.
        "spark.executorEnv.POLARS_MAX_THREADS": str(min(settings.executor_cores, MERGE_CORES)),
        **{f"spark.executorEnv.{name}": value for name, value in TASK_ENVIRON.items()},
        "spark.python.daemon.module": "compactor.spark.task_daemon",
        **_task_logs(settings),
        TASK_SETTING: str(settings.task_bytes),
        LIMIT_SETTING: str(settings.task_limit_bytes),
        SCRATCH_SETTING: settings.scratch,
        PAGE_CACHE_SETTING: settings.page_cache,
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
        # Jobs share the executor; otherwise a small one waits for all tasks of a large one.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # It would change the environment, and Spark starts a daemon for each environment: a cold
        # one for every job that uses Spark SQL.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        "spark.sql.shuffle.partitions": str(2 * settings.executors * settings.executor_cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(pins if settings.node_resource else {}),
        **settings.configs,
    }


def crash_folder(settings: DriverSettings) -> Path:
    """Return the folder for crash reports of an application's JVMs: that of its log."""
    logged = settings.log_file != os.devnull
    return Path(settings.log_file).parent if logged else Path(tempfile.gettempdir())


def _log_options(settings: DriverSettings) -> list[str]:
    """Return options for JVMs that Ray starts, so that their log files are in the right folder.

    Ray's Java runtime reads them.
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
    """Return the memory of an executor with all its tasks: heap, JVM overhead and Python."""
    heap = parse_size_bytes(settings.executor_memory, "compactor.executor_memory")
    return executor_memory_bytes(heap, settings.executor_cores, settings.task_bytes)


def require_java(environ: Mapping[str, str]) -> None:
    """Refuse a machine without Java for Spark and Ray; PySpark's own message has no remedy.

    Raises:
        ConfigError: There is no Java.
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
    import ray  # loaded only by a driver on Ray

    require_java(os.environ)
    from compactor.spark.cluster import AUTHENTICATION, ENCRYPTION, Application, Secret

    ray.init(
        address=settings.ray_address, namespace=namespace, log_to_driver=False, logging_level="WARN"
    )
    # The secret is a file of this node, so its parts are started here, whatever the settings say.
    node_resource = settings.node_resource or f"node:{ray.util.get_node_ip_address()}"
    configs = spark_configs(replace(settings, node_resource=node_resource))
    # The app master only waits, so it gets no logical CPU.
    configs.setdefault(f"{MASTER_RESOURCE}CPU", "0")
    # RayDP requests memory only for the heap; Python tasks need at least as much in addition.
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
    """Open a session with tasks in the driver's JVM, which generates its own secret."""
    from pyspark.sql import SparkSession

    # There is no executor, so the driver gets its heap.
    heap = {"spark.driver.memory": settings.executor_memory, **settings.configs}
    cores = settings.executors * settings.executor_cores
    builder = SparkSession.builder.master(f"local[{cores}]")
    builder = builder.appName(settings.name)
    local_only = {"spark.authenticate": "true", "spark.driver.host": "127.0.0.1"}
    for name, value in {**spark_configs(settings), **local_only, **heap}.items():
        builder = builder.config(name, value)
    return EngineSession(builder.getOrCreate())


def _project_path() -> str:
    """Return a search path that contains this project, for Spark's Python workers."""
    root = str(Path(compactor.__path__[0]).parent)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(part for part in (root, *inherited) if part))
