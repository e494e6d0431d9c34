"""The embedded stack on a real Redis and a real Ray; ends nobody but its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from common.config import load_settings
from common.errors import ConfigError, RefusedError
from common.runtime import SystemClock
from neve.local import LocalStack, StackOptions
from neve.local.logs import StackLogs
from neve.local.machine import find_java, find_redis_server
from neve.local.processes import ProcessRef, processes_of_stack
from neve.local.servers import OUTPUT_LIMIT, RedisServer
from neve.local.stack import stop_stack
from neve.local.stack_folder import StackFolder
from tests.support import redis_server
from tests.support.kubernetes.certificates import create_certificates
from tests.support.neighbour import kind_that_refuses, listeners, reachable
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.slow]

BARE = StackOptions(actors=False)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for folder in tmp_path.iterdir():
        stop_stack(StackFolder(folder))


def begin(home: Path, name: str = "one", options: StackOptions = BARE, **more: Any) -> LocalStack:
    return LocalStack.start(home=home, name=name, options=options, **more)


def alive(stack: LocalStack) -> list[psutil.Process]:
    return processes_of_stack(stack.state.mark, stack.state.processes)


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A folder that every user of the machine may enter, as a home in /srv is."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)
        yield home
        stop_stack(StackFolder(home / "one"))


def test_nobody_else_reaches_a_stack_and_it_leaves_its_tables_and_logs(open_home: Path) -> None:
    before, umask = children(), os.umask(0)
    try:
        check_a_first_stack(open_home)
    finally:
        os.umask(umask)
    assert children() <= before
    with begin(open_home) as stack, redis.Redis.from_url(stack.redis_url) as link:
        assert link.get("neve:kept") == b"yes"
        check_environment(stack)
    logs = StackLogs(open_home / "one" / "logs")
    assert logs.parts() == ["supervisor", "redis", "ray"]
    assert logs.path("redis").read_text().count("Ready to accept connections") == 2
    assert {path.name for path in logs.files("ray")} >= {"ray.log", "raylet.out", "gcs_server.out"}
    stop_stack(stack.folder, delete_data=True)
    assert not stack.folder.path.exists()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def check_a_first_stack(home: Path) -> None:
    """Start a stack and end it; it has written one value into its Redis."""
    steps: list[str] = []
    with begin(home, on_progress=steps.append) as stack:
        assert steps == ["starting Redis", "starting Ray"]
        with redis.Redis.from_url(stack.redis_url) as link:
            link.set("neve:kept", "yes")
        roles = {process.role for process in stack.state.processes}
        assert roles == {"redis", "gcs_server", "raylet", "supervisor"}
        assert not [p for p in alive(stack) if "dashboard.py" in " ".join(_line(p))]
        assert {listener.host for listener in listeners(alive(stack))} == {"127.0.0.1"}
        assert LocalStack.attach(home=home, name="one") is not None
        with pytest.raises(RefusedError, match="already running"):
            begin(home)
        assert reachable([Path(stack.state.private_folder), stack.folder.path]) == []
        kinds = {kind_that_refuses(listener.port) for listener in listeners(alive(stack))}
        assert kinds == {"HTTP", "Ray"}  # Redis has no port
        check_secrets(stack)
    assert alive(stack) == []
    assert not Path(stack.state.private_folder).exists()
    assert LocalStack.attach(home=home, name="one") is None


def check_environment(stack: LocalStack) -> None:
    """A program of the user may ask Ray for an environment."""
    answer = said_by_driver(
        stack,
        "work = ray.remote(lambda: os.environ['ASKED_FOR']);"
        "own = work.options(runtime_env={'env_vars': {'ASKED_FOR': 'an environment'}});"
        "print(ray.get(own.remote()))",
    )
    assert answer.strip() == "an environment"


def check_secrets(stack: LocalStack) -> None:
    """Files with secrets are their owner's, Redis wants its password, no command line shows it."""
    folder = stack.folder
    files = (folder.state_file, folder.ray_token_file, folder.redis / "redis.conf")
    assert [file.stat().st_mode & 0o077 for file in files] == [0, 0, 0]
    link = redis.Redis(unix_socket_path=str(stack.state.redis_socket))
    with pytest.raises(redis.AuthenticationError), link:
        link.ping()
    password = stack.redis_url.split(":")[2].split("@")[0]
    assert not [process for process in alive(stack) if password in " ".join(_line(process))]


@pytest.fixture
def redis_alone(tmp_path: Path) -> Iterator[RedisServer]:
    """What starts the Redis of a stack."""
    with tempfile.TemporaryDirectory() as short:
        yield RedisServer(
            program=find_redis_server(os.environ).program,
            folder=tmp_path,
            socket=Path(short) / "redis.sock",
            log=tmp_path / "redis.log",
            password="secret",
        )


@contextmanager
def started(server: RedisServer) -> Iterator[redis.Redis]:
    process = server.start(os.environ, SystemClock()).process()
    assert process is not None
    try:
        with redis.Redis.from_url(server.url) as link:
            yield link
    finally:
        process.kill()
        process.wait(PATIENCE_S)


FORBIDDEN = (
    *("FLUSHALL", "KEYS *", "CONFIG GET dir", "EVAL 1 0", "MODULE LIST", "CLIENT LIST"),
    *("REPLICAOF 127.0.0.1 1", "SHUTDOWN", "ACL LIST", "SAVE", "SET other yes", "PUBLISH a b"),
)


def test_redis_does_nothing_that_a_stack_has_no_use_for(redis_alone: RedisServer) -> None:
    with started(redis_alone) as link:
        assert link.info("memory")["maxmemory_policy"] == "noeviction"
        assert OUTPUT_LIMIT in (redis_alone.folder / "redis.conf").read_text().splitlines()
        for order in FORBIDDEN:
            with pytest.raises(redis.exceptions.NoPermissionError):
                link.execute_command(*order.split())


def test_data_of_an_earlier_server_is_taken_over(redis_alone: RedisServer) -> None:
    # As Redis 6.2 left it: one file, of commands.
    words = ("SET", "neve:kept", "yes")
    text = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    (redis_alone.folder / "appendonly.aof").write_text(text)
    with started(redis_alone) as link:
        assert link.get("neve:kept") == b"yes"


def test_redis_writes_what_any_later_server_reads(redis_alone: RedisServer) -> None:
    with started(redis_alone) as link:
        link.set("neve:kept", "yes")
    # Neither Redis nor Valkey reads the snapshots of the other's later releases.
    assert [file.suffix for file in redis_alone.folder.glob("appendonlydir/*.1.*")] == [".aof"] * 2


def test_data_that_the_server_cannot_read_is_named(redis_alone: RedisServer) -> None:
    (redis_alone.folder / "appendonly.aof").write_bytes(b"REDIS0999" + bytes(100))
    with pytest.raises(ConfigError, match=r"cannot read .*put that server first in PATH"):
        redis_alone.start(os.environ, SystemClock())


@pytest.mark.long
def test_two_stacks_do_not_disturb_each_other(home: Path) -> None:
    with begin(home, "one") as one:
        with begin(home, "two") as two:
            assert one.redis_url != two.redis_url
            assert one.ray_address != two.ray_address
            assert not {p.pid for p in alive(one)} & {p.pid for p in alive(two)}
        assert alive(two) == []
        assert one.state.running()
        assert cluster_resources(one)["neve_node_local"] > 0


def cluster_resources(stack: LocalStack) -> dict[str, float]:
    answer = said_by_driver(stack, "print(json.dumps(ray.cluster_resources()))")
    resources: dict[str, float] = json.loads(answer.splitlines()[-1])
    return resources


def said_by_driver(stack: LocalStack, code: str) -> str:
    """Return what a program prints that is connected to a stack's Ray."""
    begun = f"ray.init(address={stack.ray_address!r}, logging_level='ERROR', log_to_driver=False)"
    return subprocess.run(
        [sys.executable, "-c", f"import json, os, ray; {begun}; {code}"],
        env=stack.driver_environ(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_port_in_use_is_named_and_nothing_is_left(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RefusedError, match=f"port {port} for Ray is in use"):
            begin(home, options=StackOptions(actors=False, ray_port=port))
    folder = StackFolder(home / "one")
    assert folder.load() is None
    assert not [p for p in psutil.process_iter() if str(folder.path) in " ".join(_line(p))]


def test_a_redis_that_is_given_is_used_and_left_alone(home: Path) -> None:
    with redis_server.running(append_only=False) as server:
        settings = load_settings(environ={}, flags=[f"store.url={server.url}"])
        options = StackOptions(actors=False, settings=settings)
        with begin(home, options=options) as stack:
            assert stack.redis_url == server.url
            assert {p.role for p in stack.state.processes} == {"gcs_server", "raylet", "supervisor"}
            assert stack.state.running()
        with redis.Redis.from_url(server.url) as link:
            assert link.ping()
            link.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigError, match="allkeys-lru and would evict files"):
            begin(home, options=options)
    with pytest.raises(ConfigError, match=r"setting store.url: .*does not answer"):
        begin(home, options=options)


def java_that_starts_nothing(folder: Path) -> Path:
    """Return a home of Java whose launcher prints its version, and starts nothing else."""
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    usual = find_java(os.environ).program
    version = f'[ "$1" = -version ] && exec {usual} -version'
    launcher.write_text(f"#!/bin/sh\n{version}\necho no such option >&2\nexit 1\n")
    launcher.chmod(0o700)
    return folder


def test_a_part_that_cannot_come_up_is_named_with_its_log(home: Path) -> None:
    settings = load_settings(environ={}, flags=["compactor.engine=local"])
    environ = {**os.environ, "JAVA_HOME": str(java_that_starts_nothing(home / "java"))}
    with pytest.raises(ConfigError) as refused:
        begin(home, options=StackOptions(compactors=1, settings=settings), environ=environ)
    said, logs = str(refused.value), StackLogs(home / "one" / "logs")
    assert said.startswith("compactor-default-1 did not start: "), said
    assert str(logs.path("driver-default-1")) in said
    assert f"(see {logs.path('compactor-default-1')})" in said
    assert "no such option" in logs.path("driver-default-1").read_text()
    assert StackFolder(home / "one").load() is None
    assert "coordinator leads" in logs.path("coordinator").read_text()


@pytest.mark.long
def test_a_gateway_that_dies_at_its_start_says_why(home: Path) -> None:
    """Its constructor refuses a key of another certificate; settings alone do not show that."""
    own, other = home / "own", home / "other"
    for folder in (own, other):
        folder.mkdir()
    tls = {
        "NEVE_GATEWAY_TLS_CERTIFICATE": str(create_certificates(own, ["127.0.0.1"]).server),
        "NEVE_GATEWAY_TLS_KEY": str(create_certificates(other, ["127.0.0.1"]).server),
        "NEVE_HOME": str(home),
    }
    neve = [str(Path(sys.executable).with_name("neve"))]
    words: dict[str, Any] = {"env": {**os.environ, **tls}, "capture_output": True, "text": True}
    assert subprocess.run([*neve, "config", "check"], **words).returncode == 0

    up = subprocess.run([*neve, "up", "--stack", "one", "--compactors", "0"], **words)

    assert up.returncode == 1
    (said,) = [line for line in up.stderr.splitlines() if line.startswith("neve: ")]
    assert said.startswith("neve: gateway did not start: "), said
    assert f"{tls['NEVE_GATEWAY_TLS_KEY']} cannot be used together" in said
    assert said.endswith(f"(see {StackLogs(home / 'one' / 'logs').path('gateway')})")
    assert "port free" not in up.stderr
    assert StackFolder(home / "one").load() is None


def _line(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_a_start_that_was_killed_is_cleaned_up(home: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from neve.local import LocalStack, StackOptions\n"
        "LocalStack.start(home=Path(sys.argv[1]), name='one',"
        " options=StackOptions(actors=False), on_progress=lambda s: print(s, flush=True))"
    )
    command = [sys.executable, "-c", code, str(home)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    ) as starter:
        assert starter.stdout is not None
        while starter.stdout.readline().strip() != "starting Ray":
            assert starter.poll() is None
        time.sleep(1.0)
        starter.send_signal(signal.SIGKILL)
    folder = StackFolder(home / "one")
    state = folder.load()
    assert state is not None
    assert not state.ready
    assert stop_stack(folder)
    assert processes_of_stack(state.mark, state.processes) == []
    assert not Path(state.private_folder).exists()


def test_a_number_that_was_handed_out_again_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        process = psutil.Process(bystander.pid)
        older = ProcessRef("raylet", bystander.pid, process.create_time() - 100)
        assert processes_of_stack("no such mark", [older]) == []
        bystander.kill()


SLOW_RAY = """
import os, pathlib, sys
tries = pathlib.Path(os.environ["SLOW_RAY_TRIES"])
if sys.orig_argv[3:5] == ["start", "--head"] and len(tries.read_text()) < int(tries.suffix[1:]):
    tries.write_text(tries.read_text() + ".")
    print("Traceback (most recent call last):")
    print("Exception: The current node timed out during startup. This could happen because")
    print("  the GCS has become overloaded.", flush=True)
    os._exit(1)
"""
"""What `ray start` does on a machine that is too busy for its fixed waits."""


def slow_ray(folder: Path, tries: int) -> dict[str, str]:
    """Return an environment in which `ray start` comes too late a few times."""
    (folder / "sitecustomize.py").write_text(SLOW_RAY)
    count = folder / f"tries.{tries}"
    count.write_text("")
    return {**os.environ, "PYTHONPATH": str(folder), "SLOW_RAY_TRIES": str(count)}


def test_a_ray_that_comes_up_too_late_is_started_again(
    home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    steps: list[str] = []
    environ = slow_ray(tmp_path_factory.mktemp("slow"), tries=2)
    with begin(home, environ=environ, on_progress=steps.append) as stack:
        assert stack.state.running()
    late = [step for step in steps if step.startswith("Ray did not start in time, the machine's")]
    assert len(late) == 2
    assert "load average is" in late[0]


def test_a_ray_that_always_comes_up_too_late_is_given_up(
    home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    environ = slow_ray(tmp_path_factory.mktemp("slow"), tries=100)
    with pytest.raises(ConfigError, match=r"timed out during startup.*; tried 5 times, the mach"):
        begin(home, environ=environ)


PROGRAM = """
import sys, threading
from pathlib import Path
from neve.local import LocalStack, StackOptions
from neve.local.processes import exit_on_sigterm
exit_on_sigterm()
options = StackOptions(actors=False)
with LocalStack.start(home=Path(sys.argv[1]), name="one", options=options) as stack:
    print(stack.state.mark, flush=True)
    threading.Event().wait()
"""


def test_a_program_that_gets_sigterm_ends_its_stack(home: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        mark = program.stdout.readline().strip()
        assert processes_of_stack(mark)
        program.terminate()
        assert program.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert processes_of_stack(mark) == []
    assert StackFolder(home / "one").load() is None
