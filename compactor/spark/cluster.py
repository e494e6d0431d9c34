"""A Spark application on Ray that accepts connections only from its own parts.

RayDP starts three JVMs in addition to the driver's: one that a Python actor controls over Py4J,
the app master, and the executor. Here the driver's own JVM joins Ray and runs the app master, so
an application is two JVMs, and no Python actor. The app master's only work is to start
executors. Only RayDP's jars are used: its Python package loads Ray, Ray Data and pandas, and the
driver's Python process needs none of them.

The parts share a secret that is generated for each application. They read it from a file of JVM
options (`java @file`) in a private folder. So it is in no command line and no environment, and Ray
does not store it. Executors are therefore started on the driver's node.
"""

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from common.errors import ConfigError

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
LIBRARY = "core_worker_library_java"
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


class AppMaster:
    """RayDP's app master in the driver's JVM."""

    def __init__(
        self, jvm: Any, class_path: str, ray_options: Mapping[str, str], library_folder: str
    ) -> None:
        """Let the JVM join Ray, and start the app master in it.

        Args:
            jvm: Py4J's view of the driver's JVM.
            class_path: Class path of executors.
            ray_options: Settings of Ray's Java runtime.
            library_folder: Where the JVM finds Ray's native library (41 MB), or extracts it to.
        """
        # By default each driver extracts a copy to /tmp/ray, which stays there.
        jvm.io.ray.runtime.util.JniUtils.loadLibrary(library_folder, LIBRARY, True)
        master_class = jvm.org.apache.spark.deploy.raydp.RayAppMaster
        master_class.setProperties(json.dumps(dict(ray_options)))
        jvm.io.ray.api.Ray.init()
        # Ray's runtime has replaced Spark's log settings by its own, which log every step of Spark.
        warn = jvm.org.apache.logging.log4j.Level.WARN
        jvm.org.apache.logging.log4j.core.config.Configurator.setRootLevel(warn)
        self._master = master_class(class_path)
        self._end_ray = master_class.shutdownRay

    @property
    def url(self) -> str:
        """The address of the app master, for the session."""
        url: str = self._master.getMasterUrl()
        return url

    def stop(self) -> None:
        """End executors and app master, and leave Ray."""
        self._master.stop()
        self._end_ray()


def ray_options(address: str, node_ip: str, namespace: str) -> dict[str, str]:
    """Return the settings with which a JVM joins a cluster of Ray as a driver.

    Ray's runtime reads the sockets of the node and the folder of the session from the cluster.

    Args:
        address: Address of the cluster.
        node_ip: Address of this node, by which Ray knows it.
        namespace: The namespace of the actors that the JVM starts.
    """
    return {
        "ray.run-mode": "CLUSTER",
        "ray.address": address,
        "ray.node-ip": node_ip,
        "ray.job.namespace": namespace,
        "ray.raylet.config.num_workers_per_process_java": "1",
    }


def raydp_configs(agent: Path, node_ip: str) -> dict[str, str]:
    """Return the settings that RayDP's classes read.

    Args:
        agent: RayDP's Java agent, which it loads into each executor.
        node_ip: Address of this node, by which Ray knows it.
    """
    return {
        "spark.driver.host": node_ip,
        "spark.driver.bindAddress": node_ip,
        "spark.javaagent": str(agent),
        "spark.ray.log4j.factory.class": "log4j2",
        "spark.ray.log4j.config.file.name": "log4j2.xml",
    }
