"""Open the Spark session of a driver process: on RayDP, or in the process itself."""

import os
import platform
import re
import secrets
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import ray
from pyspark.java_gateway import GatewayParameters, JavaGateway
from raydp.spark.ray_cluster import SparkCluster
from raydp.spark.ray_cluster_master import (
    RAY_LOG4J_CONFIG_FILE_NAME,
    RAYDP_APPMASTER_EXTRA_JAVA_OPTIONS,
    RAYDP_SPARK_MASTER_SUFFIX,
    SPARK_JAVAAGENT,
    SPARK_RAY_LOG4J_FACTORY_CLASS_KEY,
    RayDPSparkMaster,
)
from raydp.versions import RAY_LOG4J_CONFIG_FILE_NAME_KEY

import compactor
from common.compactor_needs import executor_memory_bytes
from common.errors import ConfigError
from common.log_files import TASK_LOGS_VARIABLE
from common.runtime import SystemClock
from common.units import parse_size_bytes
from common.wire import PIN_AMOUNT
from compactor.rewrite.kernel.concurrency import MERGE_CORES
from compactor.rewrite.memory import (
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
"""Arrow reads the JVM's buffers directly, which Java 17 must permit."""
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""A driver only hands out tasks. The JVM's optimising compiler would spend minutes on code that
runs once per job, on the cores that the tasks need: 150 of 300 ms of each small job. The two JVMs
of an app master only start executors; without it they start in half the processor time."""
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
    compiler = EXECUTOR_COMPILER if local else QUICK_COMPILER
    return {
        "spark.driver.memory": settings.driver_memory,
        DRIVER_OPTIONS: f"{java_options} {compiler}",
        EXECUTOR_OPTIONS: " ".join(
            [java_options, EXECUTOR_COMPILER, ARROW_OPENINGS, *_log_options(settings)]
        ),
        APP_MASTER_OPTIONS: " ".join([java_options, QUICK_COMPILER, *_log_options(settings)]),
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

    ray.init(
        address=settings.ray_address, namespace=namespace, log_to_driver=False, logging_level="WARN"
    )
    # The secret is a file of this node, so its parts are started here, whatever the settings say.
    here = settings.node_resource or f"node:{ray.util.get_node_ip_address()}"
    configs = spark_configs(replace(settings, node_resource=here))
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
    here = {"spark.authenticate": "true", "spark.driver.host": "127.0.0.1"}
    for name, value in {**spark_configs(settings), **here, **heap}.items():
        builder = builder.config(name, value)
    return EngineSession(builder.getOrCreate())


def _project_path() -> str:
    """Return a search path that contains this project, for Spark's Python workers."""
    root = str(Path(compactor.__path__[0]).parent)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(part for part in (root, *inherited) if part))


# ------------------------------------------------------------------------------------------ Cluster
# A Spark application on Ray that accepts connections only from its own parts.
#
# RayDP starts three JVMs in addition to the driver's: one that a Python actor controls over Py4J,
# the app master, and the executor. Without protection, any user of the machine may send orders to
# the first, which has no authentication, and to the other two over Spark's RPC. Here
#
# * Spark's own Python gateway starts the first one. It requires a token from each client, and
#   passes the token only to its parent, in a file;
# * all of them share a secret that is generated for each application. They read it from a
#   file of JVM options (`java @file`) in a private folder. So it is in no command line and no
#   environment, and Ray does not store it. App master and executor are therefore started on the
#   driver's node.


GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
GATEWAY_WAIT_MAX_S = 120.0
POLL_S = 0.05
SECRET_BYTES = 32
AUTHENTICATION = {
    "spark.authenticate": "true",
    # RayDP's driver and executors use different names for their application. Spark serves a block
    # only to a peer of the same name, unless it is streamed, as large ones are: so all are
    # streamed.
    "spark.network.maxRemoteBlockSizeFetchToMem": "0",
}
"""Every connection between driver, app master and executor starts with a proof of the secret.

The data is not encrypted: the parts are on one node, where only root could listen, and Spark's
encryption takes a quarter more of the JVMs' time for jobs that move 10 MB.
"""
ENCRYPTION = {"spark.network.crypto.enabled": "true"}
"""For parts on several nodes, where the network may be observed."""
SECRET_LINE = re.compile(r"-Dspark\.authenticate\.secret=[^\s\"']{32,}\s*")


@dataclass(frozen=True, slots=True)
class Secret:
    """The shared secret of an application's parts, in a file of JVM options."""

    file: Path
    is_own: bool = True
    """Whether it was generated for this application."""

    @classmethod
    def of(cls, path: str) -> Self:
        """Return a secret that the operator has put on every node.

        Raises:
            ConfigError: The file cannot be read, or has other contents.
        """
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"setting compactor.spark_secret_file: {path} cannot be read: {error}"
            ) from error
        if SECRET_LINE.fullmatch(text) is None:
            raise ConfigError(
                f"setting compactor.spark_secret_file: {path} is not one line"
                " `-Dspark.authenticate.secret=…` with 32 characters or more"
            )
        return cls(Path(path), is_own=False)

    @classmethod
    def drawn(cls) -> Self:
        """Return a new secret."""
        file = Path(tempfile.mkdtemp(prefix="neve-spark-")) / "jvm.options"
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as output:
            output.write(f"-Dspark.authenticate.secret={secrets.token_hex(SECRET_BYTES)}\n")
        return cls(file)

    @property
    def option(self) -> str:
        """The JVM option that passes it."""
        return f"@{self.file}"

    def forget(self) -> None:
        """Delete the file; no further part can be started with it."""
        if self.is_own:
            shutil.rmtree(self.file.parent, ignore_errors=True)


class Application(SparkCluster):  # type: ignore[misc]  # RayDP has no types
    """RayDP's cluster with a master whose gateway requires a token."""

    def _set_up_master(self, resources: dict[str, float], kwargs: dict[str, Any] | None) -> None:
        """Start the actor that starts the app master; called by the constructor."""
        cpus, memory = resources.pop("CPU", 1), resources.pop("memory", None)
        actor = ray.remote(SparkMaster).options(
            name=f"{self._app_name}{RAYDP_SPARK_MASTER_SUFFIX}",
            num_cpus=cpus,
            memory=memory,
            resources=resources,
        )
        self._spark_master_handle = actor.remote(self._configs)
        ray.get(self._spark_master_handle.start_up.remote())


class SparkMaster(RayDPSparkMaster.__ray_metadata__.modified_class):  # type: ignore[misc]  # RayDP has no types
    """RayDP's Python actor that controls the app master."""

    def _launch_gateway(
        self, class_path: str, popen_kwargs: dict[str, Any] | None = None
    ) -> JavaGateway:
        """Start a JVM with Spark's gateway, and give it RayDP's entry point."""
        folder = Path(tempfile.mkdtemp(prefix="neve-gateway-"))
        try:
            answer = folder / "connection"
            process = subprocess.Popen(
                self._command(class_path),
                # The JVM ends when this pipe closes, and so with this process.
                stdin=subprocess.PIPE,
                env={
                    **os.environ,
                    "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
                    "PYSPARK_PIN_THREAD": "false",
                },
                **(popen_kwargs or {}),
            )
            port, token = _connection(process, answer)
        finally:
            shutil.rmtree(folder)
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        gateway = JavaGateway(gateway_parameters=parameters)
        gateway.proc = process
        gateway.entry_point = gateway.jvm.org.apache.spark.deploy.raydp.AppMasterEntryPoint()
        return gateway

    def _command(self, class_path: str) -> list[str]:
        """Return the command line of the JVM."""
        configs = self._configs
        logs = ray._private.worker._global_node.get_logs_dir_path()  # noqa: SLF001 - as RayDP does
        return [
            "java",
            *shlex.split(configs.get(RAYDP_APPMASTER_EXTRA_JAVA_OPTIONS, "")),
            f"-javaagent:{configs[SPARK_JAVAAGENT]}",
            f"-Dray.logging.dir={logs}",
            f"-D{SPARK_RAY_LOG4J_FACTORY_CLASS_KEY}={configs[SPARK_RAY_LOG4J_FACTORY_CLASS_KEY]}",
            f"-D{RAY_LOG4J_CONFIG_FILE_NAME_KEY}={configs[RAY_LOG4J_CONFIG_FILE_NAME]}",
            *("-cp", class_path, GATEWAY),
        ]


def _connection(process: "subprocess.Popen[bytes]", answer: Path) -> tuple[int, str]:
    """Return port and token, which the JVM writes to a file when it listens."""
    clock = SystemClock()
    until_s = clock.now_s() + GATEWAY_WAIT_MAX_S
    while not answer.exists():
        if process.poll() is not None:
            raise RuntimeError(
                f"the JVM of the app master's controller ended with code {process.returncode}"
            )
        if clock.now_s() > until_s:
            process.kill()
            raise RuntimeError(
                f"the JVM of the app master's controller sent nothing in {GATEWAY_WAIT_MAX_S:.0f} s"
            )
        time.sleep(POLL_S)
    # The file is written elsewhere and moved here, so it is complete.
    content = answer.read_bytes()
    port, length = struct.unpack_from("!ii", content)
    return port, content[8 : 8 + length].decode()
