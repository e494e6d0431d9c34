"""A Spark application on Ray that accepts connections only from its own parts.

RayDP starts three JVMs in addition to the driver's: one that a Python actor controls over Py4J,
the app master, and the executor. Without protection, any user of the machine may send orders to
the first, which has no authentication, and to the other two over Spark's RPC. Here

* Spark's own Python gateway starts the first one. It requires a token from each client, and
  passes the token only to its parent, in a file;
* all of them share a secret that is generated for each application. They read it from a
  file of JVM options (`java @file`) in a private folder. So it is in no command line and no
  environment, and Ray does not store it. App master and executor are therefore started on the
  driver's node.
"""

import os
import re
import secrets
import shlex
import shutil
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
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

from common.errors import ConfigError
from common.runtime import SystemClock

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
