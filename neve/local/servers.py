"""The Ray head and the Redis server of a stack, with their own ports, folders and passwords."""

import hashlib
import json
import re
import shlex
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

import neve
from common.errors import ConfigError, error_line
from common.runtime import Clock
from neve.local.machine import LOOPBACK, Java, free_ports
from neve.local.processes import (
    MARK_VARIABLE,
    ProcessRef,
    processes_of_stack,
    spawn,
)
from neve.local.stack_folder import write_secret

# --------------------------------------------------------- Called by `ray start` in its own process


RAY_COMMAND = """
import sys
unused = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")
sys.modules.update(dict.fromkeys(unused))
from ray.scripts.scripts import main
main()
"""
"""The program `ray` without the commands of Ray Serve, jobs and states. Ray leaves out those whose
modules cannot be imported; they load pandas, aiohttp and FastAPI, three times what `ray` itself
loads."""


NODE_AGENT = """
import os, sys
folder, node, parent = *sys.argv[1:3], os.getppid()
for name in sys.argv[3:]:
    path = os.path.join(folder, f'{name}_{node}')
    with open(path + '.new', 'w') as file:
        file.write('-1')
    os.rename(path + '.new', path)
while os.getppid() == parent and os.read(0, 4096):
    pass
"""
"""The program in place of Ray's agent of a node without a dashboard. Ray ends a node whose agent
ends, and waits for its ports: -1 means that it serves nothing, as Ray's own agent does without the
dashboard's libraries. It ends with its input, which is a pipe from Ray."""
NODE_AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")

ENVIRONMENT_AGENT = """
import os, select, socket, sys
address, folder, node = sys.argv[1:4]
listener = socket.create_server((address, 0))
port = listener.getsockname()[1]
path = os.path.join(folder, f'runtime_env_agent_port_{node}')
with open(path + '.new', 'w') as file:
    file.write(str(port))
os.rename(path + '.new', path)
while listener not in (ready := select.select([listener, 0], [], [])[0]):
    if not os.read(0, 4096):
        sys.exit()
bind = socket.socket.bind
def take(own, where):
    if where[1] == port:
        os.dup2(listener.fileno(), own.fileno())
    else:
        bind(own, where)
socket.socket.bind = take
sys.argv = [*sys.argv[4:], f'--runtime-env-agent-port={port}']
import runpy, site
site.main()
runpy.run_path(sys.argv[0], run_name='__main__')
"""
"""The program that stands in for Ray's agent of runtime environments until one is asked for, which
Névé never does: it listens at the agent's port, and becomes the agent when Ray connects."""


JAVA_WORKER = """
import json, os, sys
jars, path = sys.argv[1:3]
words = sys.argv[2:]
contexts = [word.partition('=')[2] for word in words if word.startswith('--serialized-')]
asked = {name for text in contexts for name, value in json.loads(text).items() if value}
if asked <= {'py_executable'}:
    own = [word for word in words[1:] if not word.startswith(('--serialized-', '--language='))]
    own = [word for word in own if not ('raydp-agent' in word and word.startswith('-javaagent:'))]
    for word in own:
        if word.startswith('-Dray.logging.dir='):
            os.makedirs(word.partition('=')[2], 0o700, exist_ok=True)
    os.execvp('java', ['java', '-cp', jars, *own])
sys.argv = words
import runpy, site
site.main()
runpy.run_path(path, run_name='__main__')
"""
"""The program in place of Ray's for Java workers, which imports Ray only to start `java`. Ray's
program still runs if a worker asks for an environment. RayDP's agent is left out: it only makes the
folder of a log and sends first messages there, and a JVM with an agent reads each class from its
jar."""


def with_small_programs(command: list[str]) -> list[str]:
    """Return a raylet's command with small programs in place of some of Ray's.

    Args:
        command: The command line of the raylet, with the command lines of what it starts.
    """
    return [_small_program(argument) for argument in command]


def _small_program(argument: str) -> str:
    flag, _, replaced = argument.partition("=")
    words = shlex.split(replaced) if flag in SMALL_PROGRAMS else []
    paths = [number for number, word in enumerate(words) if word.endswith(".py")]
    if not paths:
        return argument
    # Without the packages of Python, which take three times the time.
    program = [sys.executable, "-S", "-c", *SMALL_PROGRAMS[flag](words[paths[0] :])]
    return f"{flag}={subprocess.list2cmdline(program)}"


def _node_agent(words: list[str]) -> list[str]:
    given = _options(words)
    return [NODE_AGENT, given["session-dir"], given["node-id"], *NODE_AGENT_PORTS]


def _environment_agent(words: list[str]) -> list[str]:
    given = _options(words)
    others = [word for word in words if "-agent-port=" not in word]
    where = given["node-ip-address"], given["session-dir"], given["node-id"]
    return [ENVIRONMENT_AGENT, *where, *others]


def _java_worker(words: list[str]) -> list[str]:
    jars = Path(words[0]).parents[2] / "jars" / "*"
    return [JAVA_WORKER, str(jars), *words]


def _options(words: list[str]) -> dict[str, str]:
    options = [word for word in words if word.startswith("--") and "=" in word]
    return dict(word.removeprefix("--").split("=", 1) for word in options)


SMALL_PROGRAMS: dict[str, Callable[[list[str]], list[str]]] = {
    "--dashboard_agent_command": _node_agent,
    "--runtime_env_agent_command": _environment_agent,
    "--java_worker_command": _java_worker,
}
"""Option of the raylet → small program and its arguments, from those of Ray's program."""


def leave_out_servers(ray_params: Any, head: bool) -> None:
    """Leave out the Ray client server, and without a dashboard its process and Ray's agents.

    Ray would start a dashboard process without pages, an agent on the node that collects metrics
    for it, and an agent that makes environments for tasks.

    Args:
        ray_params: Ray's start parameters, changed in place.
        head: Whether this start is of a head.
    """
    if not head:
        return
    ray_params.ray_client_server_port = None
    if not ray_params.include_dashboard:
        from ray._private import node, services

        def start_api_server(_node: Any, **_options: Any) -> None:
            """Start nothing."""

        start_process = services.start_ray_process

        def start_small(command: list[str], *others: Any, **options: Any) -> Any:
            """Start a process of Ray, a raylet with small programs."""
            return start_process(with_small_programs(command), *others, **options)

        node.Node.start_api_server = start_api_server
        services.start_ray_process = start_small


RAY_WAIT_MAX_S = 300.0
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


AT_REST = {
    # Events of tasks, for the dashboard and `ray list`, which have no server here.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_timeline": "0",
    "RAY_event_stats": "0",
    # Timers that Ray runs ten times per second, or four times (free memory).
    "RAY_raylet_check_gc_period_milliseconds": "1000",
    "RAY_local_fs_monitor_interval_ms": "1000",
    "RAY_object_manager_timer_freq_ms": "1000",
    "RAY_kill_idle_workers_interval_ms": "1000",
    "RAY_memory_monitor_refresh_ms": "1000",
    "RAY_io_context_monitor_probe_interval_ms": "10000",
    # Ray would start a Python worker per CPU before it knows of any actor.
    "RAY_prestart_worker_first_driver": "0",
    # The small agents end with their input.
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
}
"""Settings of Ray without a dashboard: less work at rest."""


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
                    timeout=RAY_WAIT_MAX_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                raise SlowStartError(
                    f"Ray did not start within {RAY_WAIT_MAX_S:.0f} s: see {self.log}"
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
            *(sys.executable, "-c", RAY_COMMAND, "start", "--head"),
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
            metrics = {"RAY_enable_metrics_collection": "0", **NO_DASHBOARD_METRICS, **AT_REST}
        else:
            # Two heads cannot share this port.
            metrics = {"DASHBOARD_METRIC_PORT": str(free_ports(1)[0])}
        return {**metrics, "RAY_START_HOOK": "neve.local.servers.leave_out_servers"}

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


# ------------------------------------------------------------------------------------- Redis server
# The Redis server of a stack: a private socket, a password, an append-only file.
#
# The server has no port, so other users of the machine cannot connect.


REDIS_WAIT_MAX_S = 60.0
"""A large append-only file takes long to load."""
POLL_S = 0.05
OUTPUT_LIMIT = "client-output-buffer-limit normal 1gb 512mb 60"
"""A client that does not read its answers is disconnected before they fill the memory."""


class AppendSync(StrEnum):
    """When Redis flushes its append-only file to disk."""

    ALWAYS = "always"
    EVERYSEC = "everysec"


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Everything that is needed to start a server and to connect to it."""

    program: Path
    folder: Path
    socket: Path
    """The socket it listens on, in a private folder; the server has no port."""
    log: Path
    password: str
    append_sync: AppendSync = AppendSync.EVERYSEC

    @property
    def url(self) -> str:
        """The address, including the password."""
        return f"unix://:{self.password}@{self.socket}?db=0"

    def start(self, environ: Mapping[str, str], clock: Clock) -> ProcessRef:
        """Start the server on the data in its folder and wait until it answers.

        Args:
            environ: The environment of the process, with the mark.
            clock: Bounds the wait.
        """
        settings = self.folder / "redis.conf"
        write_secret(settings, self._settings())
        earlier_bytes = self.log.stat().st_size if self.log.exists() else 0
        process = spawn([str(self.program), str(settings)], environ, self.log)
        reference = ProcessRef.of("redis", psutil.Process(process.pid))
        try:
            self._wait(process, clock, earlier_bytes)
        finally:
            # The server outlives this process. A return code avoids Python's warning about that.
            process.returncode = 0
        return reference

    def answers(self) -> bool:
        """Return whether the server accepts commands; it does not while it loads its data."""
        return self._answer().endswith(b"+PONG\r\n")

    def heard(self) -> bool:
        """Return whether the server answers at all, even if it is still loading its data."""
        return bool(self._answer())

    def _answer(self) -> bytes:
        """Return the server's answer to AUTH and PING; empty if there is none."""
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(2.0)
                link.connect(str(self.socket))
                link.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\n") < 2 and (part := link.recv(4096)):
                    answer += part
        except OSError:
            return b""
        return answer

    def _settings(self) -> str:
        """Return the content of the settings file."""
        # Imported here, because the supervisor seldom starts a server.
        from common.metadata.keyspace import RedisUser, acl_rules

        digest = hashlib.sha256(self.password.encode()).hexdigest()
        return "\n".join(
            (
                "port 0",
                f'unixsocket "{self.socket}"',
                "unixsocketperm 700",
                # The only user. Commands are not renamed: the append-only file must stay readable.
                f"user default on #{digest} {acl_rules(RedisUser.STORE)}",
                OUTPUT_LIMIT,
                f'dir "{self.folder}"',
                "daemonize no",
                # A process title would overwrite the environment and the mark in it.
                "set-proc-title no",
                "appendonly yes",
                f"appendfsync {self.append_sync}",
                # Commands only: any later Redis or Valkey server can read them.
                "aof-use-rdb-preamble no",
                'save ""',
                "maxmemory-policy noeviction",
                "",
            )
        )

    def _wait(self, process: subprocess.Popen[bytes], clock: Clock, earlier_bytes: int) -> None:
        """Wait until the server answers; raise if it exits or takes too long."""
        until_s = clock.now_s() + REDIS_WAIT_MAX_S
        while not self.answers():
            try:
                code = process.wait(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                if clock.now_s() < until_s:
                    continue
                raise ConfigError(
                    f"Redis did not answer within {REDIS_WAIT_MAX_S:.0f} s: see {self.log}"
                ) from None
            raise ConfigError(
                f"Redis exited at once (code {code}): {self._complaint(earlier_bytes)}"
            )

    def _complaint(self, earlier_bytes: int) -> str:
        """Return the server's error; log output before `earlier_bytes` is of an earlier run."""
        output = self.log.read_bytes()[earlier_bytes:].decode(errors="replace")
        if "handle RDB format version" in output:
            return (
                f"{self.program} cannot read the data in {self.folder}: another server wrote"
                " it; put that server first in PATH"
            )
        return f"{error_line(output)} (see {self.log})"


def is_redis(process: psutil.Process) -> bool:
    """Return whether a process of a stack is its Redis."""
    try:
        return any(word.endswith("/redis.conf") for word in process.cmdline())
    except psutil.Error:
        return False
