"""A Spark application on Ray that accepts connections only from its own parts.

RayDP starts three JVMs in addition to the driver's: one that a Python actor controls over Py4J,
the app master, and the executor. Here the driver's own JVM joins Ray and runs the app master, so
an application is two JVMs, and no Python actor. The app master's only work is to start
executors. The parts share a secret that is generated for each application. They read it from a
file of JVM options (`java @file`) in a private folder. So it is in no command line and no
environment, and Ray does not store it. Executors are therefore started on the driver's node.
"""

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from raydp.spark.ray_cluster import SparkCluster
from raydp.spark.ray_cluster_master import RayDPSparkMaster

from common.errors import ConfigError

StartJvm = Callable[[Mapping[str, str]], Any]
"""Starts a JVM with an application's settings and returns Py4J's view of it."""

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
LAUNCHER_SETTINGS = ("spark.driver.extraClassPath", "spark.driver.extraJavaOptions")
"""Settings of RayDP for the program `spark-submit`, which is not used."""
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
    """RayDP's cluster with its app master in the driver's JVM."""

    def __init__(
        self, start_jvm: StartJvm, class_path: str, ray_options: Mapping[str, str], **cluster: Any
    ) -> None:
        """Start the driver's JVM and the app master in it.

        Args:
            start_jvm: Starts the JVM from the application's settings.
            class_path: Class path of executors.
            ray_options: Settings of Ray's Java runtime, in addition to RayDP's.
            cluster: Arguments of RayDP's cluster.
        """
        self._start_jvm = start_jvm
        self._class_path = class_path
        self._ray_options = ray_options
        super().__init__(**cluster)

    def _set_up_master(self, resources: dict[str, float], kwargs: dict[str, Any] | None) -> None:
        """Start the app master; called by the constructor, with the settings complete."""
        for name in LAUNCHER_SETTINGS:
            self._configs.pop(name, None)
        jvm = self._start_jvm(self._configs)
        raydp = RayDPSparkMaster.__ray_metadata__.modified_class(self._configs)
        options = json.loads(raydp._generate_ray_configs())  # noqa: SLF001 - RayDP has no public API
        master_class = jvm.org.apache.spark.deploy.raydp.RayAppMaster
        master_class.setProperties(json.dumps({**options, **self._ray_options}))
        jvm.io.ray.api.Ray.init()
        # Ray's runtime has replaced Spark's log settings by its own, which log every step of Spark.
        warn = jvm.org.apache.logging.log4j.Level.WARN
        jvm.org.apache.logging.log4j.core.config.Configurator.setRootLevel(warn)
        self._master = master_class(self._class_path)
        self._end_ray = master_class.shutdownRay

    def get_cluster_url(self) -> str:
        """Return the address of the app master."""
        url: str = self._master.getMasterUrl()
        return url

    def stop(self, cleanup_data: bool = True) -> None:
        """End executors, session and app master, and leave Ray."""
        if self._spark_session is not None:
            self._spark_session.stop()
        self._master.stop()
        self._end_ray()
