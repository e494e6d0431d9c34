"""Open the Spark session of a driver process: on RayDP, or in the process itself."""

import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import compactor
from common.compactor_needs import executor_memory_bytes
from common.errors import ConfigError
from common.log_files import TASK_LOGS_VARIABLE
from common.runtime import SystemClock
from common.units import parse_size_bytes
from common.wire import PIN_AMOUNT
from compactor.rewrite.memory_budget import (
    LAKE_ACCESS_SETTING,
    LIMIT_SETTING,
    MERGE_CORES,
    PAGE_CACHE_SETTING,
    REMOTE_SETTING,
    SCRATCH_SETTING,
    TASK_SETTING,
    task_environ,
)
from compactor.rewrite.spark_tasks import warm_up
from compactor.spark.class_archive import archive_options, class_path, package_folder
from compactor.spark.cluster import (
    AUTHENTICATION,
    ENCRYPTION,
    AppMaster,
    Secret,
    ray_options,
    raydp_configs,
)
from compactor.spark.driver_protocol import LIGHT_DISTUTILS, DriverSettings, EngineKind

EXECUTOR_RESOURCE = "spark.ray.raydp_spark_executor.actor.resource."
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
ARROW_OPENINGS = " ".join(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch")
)
"""Arrow reads the JVM's buffers directly, which Java 17 must permit."""
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""A driver only hands out tasks. The JVM's optimising compiler would spend minutes on code that
runs once per job, on the cores that the tasks need: 150 of 300 ms of each small job."""
QUICK_JVM = f"{QUICK_COMPILER} -XX:+UseSerialGC -Xms32m"
"""For the same JVM: its heap stays small. A collector without threads of its own and a small first
heap take 50 MB less, in the same processor time."""
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
QUIET_JVM = "-XX:-UsePerfData"
"""Without counters for `jps` and `jstat`, which a thread samples 20 times per second."""
QUIET_LOG = "-Dlog4j2.asyncLoggerConfigWaitStrategy=Block"
"""The thread that writes Ray's log waits for an entry. By default it wakes up 100 times per second,
and takes 0.5 % of a core."""
JVM_CLOSE_WAIT_MAX_S = 10.0
CRASH_REPORT = "hs_err_pid"
"""Prefix of the file's name; `common.log_files` keeps the newest ones."""


@dataclass(frozen=True, slots=True)
class EngineSession:
    """An open Spark session; on Ray, with its app master and the secret of its parts."""

    spark: Any
    master: Any = None
    secret: Any = None

    @property
    def jvm(self) -> "subprocess.Popen[bytes]":
        """The process of the session's JVM: a child of this one."""
        jvm: subprocess.Popen[bytes] = self.spark.sparkContext._gateway.proc  # noqa: SLF001 - PySpark has no public API
        return jvm

    def close(self) -> None:
        """End it in order: Ray's side is notified at once, the JVM has ended on return."""
        jvm = self.jvm
        self.spark.stop()
        if self.master is not None:
            self.master.stop()
            self.secret.forget()
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
    pins = {f"{EXECUTOR_RESOURCE}{settings.node_resource}": str(PIN_AMOUNT)}
    if settings.executor_resource:
        pins = {f"{EXECUTOR_RESOURCE}{settings.executor_resource}": "1"}
    # A killed JVM leaves files, so it uses the compactor's temporary folder. For a crash a report
    # is enough; a memory dump would fill the disk.
    crashes = f"-XX:ErrorFile={crash_folder(settings)}/{CRASH_REPORT}%p.log"
    java_options = (
        f"-Djava.io.tmpdir={tempfile.gettempdir()} {crashes} -XX:-CreateCoredumpOnCrash {QUIET_JVM}"
        f" {shlex.join(archive_options())}"
    )
    local = settings.engine is EngineKind.LOCAL
    environ = {**task_environ(settings.task_bytes), **LIGHT_DISTUTILS}
    compiler = EXECUTOR_COMPILER if local else QUICK_JVM
    return {
        "spark.driver.memory": settings.driver_memory,
        DRIVER_OPTIONS: f"{java_options} {compiler}",
        EXECUTOR_OPTIONS: " ".join(
            [java_options, EXECUTOR_COMPILER, QUIET_LOG, ARROW_OPENINGS, *_log_options(settings)]
        ),
        # Executors import the task code of this project.
        "spark.executorEnv.PYTHONPATH": _project_path(),
        # As many threads as a merge keeps busy; more would compete with other tasks.
        "spark.executorEnv.POLARS_MAX_THREADS": str(min(settings.executor_cores, MERGE_CORES)),
        **{f"spark.executorEnv.{name}": value for name, value in environ.items()},
        "spark.python.daemon.module": "compactor.spark.task_daemon",
        **_task_logs(settings),
        TASK_SETTING: str(settings.task_bytes),
        LIMIT_SETTING: str(settings.task_limit_bytes),
        SCRATCH_SETTING: settings.scratch,
        PAGE_CACHE_SETTING: settings.page_cache,
        LAKE_ACCESS_SETTING: settings.lake_access,
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
        **({REMOTE_SETTING: "true"} if settings.executor_resource else {}),
        **settings.configs,
    }


def crash_folder(settings: DriverSettings) -> Path:
    """Return the folder for crash reports of an application's JVMs: that of its log."""
    logged = settings.log_file != os.devnull
    return Path(settings.log_file).parent if logged else Path(tempfile.gettempdir())


def _log_options(settings: DriverSettings) -> list[str]:
    """Return options for JVMs that Ray starts, so that their log files are in the right folder."""
    if not settings.executor_logs:
        return []
    properties = {"ray.logging.dir": settings.executor_logs, **_log_properties(settings)}
    return [f"-D{name}={value}" for name, value in properties.items()]


def _log_properties(settings: DriverSettings) -> dict[str, str]:
    """Return properties that limit the log files of Ray's Java runtime."""
    return {
        "ray.logging.level": "WARN",
        "ray.logging.rotation.max-file-size": f"{settings.executor_log_bytes_max}B",
        "ray.logging.rotation.max-backup-files": "1",
    }


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
    """Let the driver's JVM join the Ray cluster, and open a session with executors in it."""
    require_java(os.environ)
    # The secret is a file of this node, so its parts are started here, whatever the settings say.
    node_resource = settings.node_resource or f"node:{settings.node_ip}"
    configs = {
        **AUTHENTICATION,
        **(ENCRYPTION if settings.executor_resource else {}),
        **raydp_configs(raydp_agent(), settings.node_ip),
        # RayDP requests memory only for the heap; Python tasks need at least as much in addition.
        f"{EXECUTOR_RESOURCE}memory": str(executor_bytes(settings)),
        **spark_configs(replace(settings, node_resource=node_resource)),
        "spark.executor.instances": str(settings.executors),
        "spark.executor.cores": str(settings.executor_cores),
        "spark.executor.memory": settings.executor_memory,
    }
    secret = Secret.of(settings.secret_file) if settings.secret_file else Secret.drawn()
    configs[EXECUTOR_OPTIONS] = f"{secret.option} {configs[EXECUTOR_OPTIONS]}"
    options = [secret.option, *shlex.split(configs.pop(DRIVER_OPTIONS))]
    jvm = start_gateway(configs, options, settings.driver_memory).jvm
    ray = ray_options(settings.ray_address, settings.node_ip, namespace)
    library_folder = settings.session_folder or tempfile.gettempdir()
    master = AppMaster(jvm, class_path(), {**ray, **_log_properties(settings)}, library_folder)
    return EngineSession(_session(settings, master.url, configs), master, secret)


def _session(settings: DriverSettings, master: str, configs: Mapping[str, str]) -> Any:
    """Return a session of the JVM that is connected."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(master)
        .appName(settings.name)
        .config(map=dict(configs))
        .getOrCreate()
    )


def _open_local(settings: DriverSettings) -> EngineSession:
    """Open a session with tasks in the driver's JVM, which generates its own secret."""
    # There is no executor, so the driver gets its heap.
    heap = {"spark.driver.memory": settings.executor_memory, **settings.configs}
    cores = settings.executors * settings.executor_cores
    local_only = {"spark.authenticate": "true", "spark.driver.host": "127.0.0.1"}
    configs = {**spark_configs(settings), **local_only, **heap}
    start_gateway(configs, shlex.split(configs[DRIVER_OPTIONS]), configs["spark.driver.memory"])
    return EngineSession(_session(settings, f"local[{cores}]", configs))


def _project_path() -> str:
    """Return a search path that contains this project, for Spark's Python workers."""
    root = str(Path(compactor.__path__[0]).parent)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(part for part in (root, *inherited) if part))


# ---------------------------------------------------------------------------------- JVM of a driver
# Spark's script `spark-submit` starts a JVM only to work out the command line of the next one. Here
# the driver's JVM is started at once, with Spark's own Python gateway. The gateway requires a token
# from each client, and passes the token only to its parent, in a file.


GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
GATEWAY_WAIT_MAX_S = 120.0
POLL_S = 0.02
OPENED_PACKAGES = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)
"""Packages of the JDK that Spark's launcher opens to Spark."""


def raydp_agent() -> Path:
    """Return RayDP's Java agent, which sends the first messages of an executor's log to a file."""
    return next(package_folder("raydp").glob("jars/raydp-agent-*.jar"))


def start_gateway(configs: Mapping[str, str], options: Sequence[str], heap: str) -> Any:
    """Start the driver's JVM and return Py4J's gateway to it, as PySpark expects it.

    Args:
        configs: The application's settings, which the JVM gets as properties.
        options: Further options of the JVM.
        heap: Largest heap.
    """
    folder = Path(tempfile.mkdtemp(prefix="neve-gateway-"))
    properties = [f"-D{name}={value}" for name, value in configs.items()]
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        answer = folder / "connection"
        process = subprocess.Popen(
            [java, *options, *opened, f"-Xmx{heap}", *properties, "-cp", class_path(), GATEWAY],
            # The JVM ends when this pipe closes, and so with this process.
            stdin=subprocess.PIPE,
            env={**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)},
        )
        try:
            port, token = _connection(process, answer)
        except BaseException:
            process.kill()
            process.communicate()
            raise
    finally:
        shutil.rmtree(folder)
    return _connect(process, port, token)


def _connect(process: "subprocess.Popen[bytes]", port: int, token: str) -> Any:
    """Connect PySpark to the gateway; it reads the address of a running one from variables."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    address = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": token}
    os.environ.update(address)
    try:
        gateway = launch_gateway()
    finally:
        for name in address:
            del os.environ[name]
    gateway.proc = process
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - PySpark has no public API
    return gateway


def _connection(process: "subprocess.Popen[bytes]", answer: Path) -> tuple[int, str]:
    """Return port and token, which the JVM writes to a file when it listens."""
    clock = SystemClock()
    until_s = clock.now_s() + GATEWAY_WAIT_MAX_S
    while not answer.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the JVM of the driver ended with code {process.returncode}")
        if clock.now_s() > until_s:
            raise RuntimeError(f"the JVM of the driver sent nothing in {GATEWAY_WAIT_MAX_S:.0f} s")
        time.sleep(POLL_S)
    # The file is written elsewhere and moved here, so it is complete.
    content = answer.read_bytes()
    port, length = struct.unpack_from("!ii", content)
    return port, content[8 : 8 + length].decode()
