"""The Ray head of a stack, with its own ports, folder, token and session."""

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import neve
from common.errors import ConfigError, error_line
from neve.local.machine import LOOPBACK, Java, free_ports
from neve.local.processes import (
    MARK_VARIABLE,
    ProcessRef,
    processes_of_stack,
)

# --------------------------------------------------------- Called by `ray start` in its own process


def disable_client_server(ray_params: Any, head: bool) -> None:
    """Disable the Ray client server.

    Args:
        ray_params: Ray's start parameters, changed in place.
        head: Whether this start is of a head.
    """
    if head:
        ray_params.ray_client_server_port = None


START_WAIT_MAX_S = 300.0
TOO_SLOW = re.compile(r"timed? ?out|deadline exceeded|overloaded", re.IGNORECASE)
"""Messages of `ray start` when one of its own fixed timeouts, mostly 30 s, has expired."""
NODE_RESOURCE = "neve_node_local"
"""Custom resource of the node; a compactor uses it to pin its executors to its node."""
NODE_RESOURCE_AMOUNT = 10_000
ROLES = ("gcs_server", "raylet")
TASK_EVENTS_MAX = 2000
"""Calls that Ray's GCS remembers; Ray's default is 100,000."""
NO_DASHBOARD_METRICS = {"DASHBOARD_METRIC_PORT": "65536"}
"""An invalid port: Ray logs that it cannot serve these metrics and continues. Ray has no option to
disable them.
"""


class SlowStartError(ConfigError):
    """Ray did not start in time. A retry may be faster, because its programs are then in memory."""


@dataclass(frozen=True, slots=True)
class RayHead:
    """Everything that is needed to start a head."""

    folder: Path
    log: Path
    port: int
    logical_cpus: int
    logical_bytes: int
    object_store_bytes: int
    log_bytes_max: int = 16 * 1024**2
    object_folder: Path | None = None
    dashboard_port: int | None = None

    @property
    def address(self) -> str:
        """The address at which drivers join."""
        return f"{LOOPBACK}:{self.port}"

    def start(self, environ: Mapping[str, str], mark: str) -> tuple[ProcessRef, ...]:
        """Start the head, wait until it is up, and return its main processes.

        Args:
            environ: The environment of all its processes, from `stack_environment`.
            mark: The stack's mark, to find the processes.

        Raises:
            SlowStartError: Ray did not start in time.
            ConfigError: The start failed for another reason.
        """
        earlier_bytes = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            try:
                code = subprocess.run(
                    self._command(free_ports(1)[0]),
                    env={**environ, **self._head_only(), **self._log_bounds()},
                    # Python looks for modules in its working directory.
                    cwd=self.log.parent,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    timeout=START_WAIT_MAX_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                raise SlowStartError(
                    f"Ray did not start within {START_WAIT_MAX_S:.0f} s: see {self.log}"
                ) from None
        if code != 0:
            cause = error_line(self.log.read_bytes()[earlier_bytes:].decode(errors="replace"))
            kind = SlowStartError if TOO_SLOW.search(cause) else ConfigError
            raise kind(f"Ray did not start: {cause} (see {self.log})")
        return _main_processes(mark)

    def _command(self, client_port: int) -> list[str]:
        """Return the command line; with port 0, Ray chooses a free port."""
        zero = ("node-manager", "object-manager", "metrics-export", "runtime-env-agent")
        ports = [f"--{name}-port=0" for name in zero]
        ports += ["--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0"]
        ports += ["--min-worker-port=0", "--max-worker-port=0"]
        dashboard = [f"--include-dashboard={str(self.dashboard_port is not None).lower()}"]
        if self.dashboard_port is not None:
            dashboard.append(f"--dashboard-port={self.dashboard_port}")
        plasma = [f"--plasma-directory={self.object_folder}"] if self.object_folder else []
        return [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head"),
            *(f"--node-ip-address={LOOPBACK}", f"--port={self.port}"),
            *(*ports, f"--ray-client-server-port={client_port}", *dashboard, *plasma),
            *(f"--num-cpus={self.logical_cpus}", f"--memory={self.logical_bytes}"),
            f"--temp-dir={self.folder}",
            f"--object-store-memory={self.object_store_bytes}",
            f"--resources={json.dumps({NODE_RESOURCE: NODE_RESOURCE_AMOUNT})}",
            *("--disable-usage-stats", "--include-log-monitor=false", "--no-monitor"),
            *("--log-style=record", "--log-color=false"),
        ]

    def _head_only(self) -> dict[str, str]:
        """Return environment variables for `ray start` only."""
        if self.dashboard_port is None:
            # Ray would serve its own metrics without authentication.
            metrics = {"RAY_enable_metrics_collection": "0", **NO_DASHBOARD_METRICS}
        else:
            # Two heads cannot share this port.
            metrics = {"DASHBOARD_METRIC_PORT": str(free_ports(1)[0])}
        return {**metrics, "RAY_START_HOOK": "neve.local.ray_head.disable_client_server"}

    def _log_bounds(self) -> dict[str, str]:
        """Return environment variables that limit log files and memory of Ray's processes."""
        return {
            # The GCS keeps half a KB per actor call for `ray list tasks`.
            "RAY_task_events_max_num_task_in_gcs": str(TASK_EVENTS_MAX),
            "RAY_ROTATION_MAX_BYTES": str(self.log_bytes_max),
            "RAY_ROTATION_BACKUP_COUNT": "1",
        }


def stack_environment(
    base: Mapping[str, str], *, mark: str, java: Java, token_file: Path, temporary: Path
) -> dict[str, str]:
    """Return the environment of all processes of a stack, including drivers.

    Args:
        base: The inherited environment; variables that point to another cluster are dropped.
        mark: The stack's mark.
        java: Put first in PATH, because Ray and RayDP start `java` from PATH.
        token_file: The token with which Ray's processes authenticate each other.
        temporary: Folder for temporary files, which is removed with the stack.
    """
    inherited = {k: v for k, v in base.items() if not k.startswith(("RAY_", "SPARK_"))}
    scripts = sysconfig.get_path("scripts")
    return inherited | {
        MARK_VARIABLE: mark,
        "JAVA_HOME": str(java.home),
        "PATH": f"{java.home / 'bin'}:{scripts}:{base.get('PATH', '')}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": _python_path(base.get("PYTHONPATH", "")),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": str(temporary),
    }


def _python_path(inherited: str) -> str:
    """Return a module search path with this project's root, so that workers find it."""
    root = str(Path(neve.__path__[0]).parent)
    return ":".join(dict.fromkeys(part for part in (root, *inherited.split(":")) if part))


def _main_processes(mark: str) -> tuple[ProcessRef, ...]:
    """Return the processes that the cluster cannot run without."""
    named = {p.name(): p for p in processes_of_stack(mark)}
    return tuple(ProcessRef.of(role, named[role]) for role in ROLES if role in named)
