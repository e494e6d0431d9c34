"""What Ray's head is started with."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from neve.local.servers import (
    NODE_AGENT_PORTS,
    RAY_COMMAND,
    STARTER,
    WORKERS,
    ask_for_fork,
    with_small_programs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_ray_starts_without_the_commands_that_load_most() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", RAY_COMMAND, "--help"], capture_output=True, text=True, check=True
    )
    commands = {line.split()[0] for line in answer.stdout.splitlines() if line.strip()}
    assert "start" in commands
    assert not {"serve", "job", "list"} & commands


RAY_WITH_FORKS = RAY_COMMAND.partition("unused")[0]
"""The program until Ray would be started."""
SHOWN = """
import os, sys
words = *sys.argv[1:], os.environ["GIVEN"], *sorted({"ray", "redis"} & sys.modules.keys())
print(*words, os.getpgrp() == os.getpid(), flush=True)
if sys.argv[1] == "waits":
    sys.stdin.read()
"""


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Return the folder of a Ray whose start has left its forks."""
    with tempfile.TemporaryDirectory() as folder:
        ray = Path(folder, "ray")
        start = [sys.executable, "-c", RAY_WITH_FORKS, "start", f"--temp-dir={ray}"]
        subprocess.run(start, check=True, start_new_session=True)
        yield ray
        for process in psutil.process_iter():
            if f"--temp-dir={ray}" in cmdline(process):
                process.kill()


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def asker(kind: str, ray_folder: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", *ask_for_fork(kind, ray_folder, SHOWN, *words)],
        env={**os.environ, "GIVEN": "given", **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_workers_begin_with_what_is_loaded_for_all(ray_folder: Path) -> None:
    for word in ("one", "two"):
        answer, _ = asker(WORKERS, ray_folder, word, RAY_JOB_ID="1").communicate()
        assert answer == f"{word} given ray redis True\n"


def test_a_worker_of_another_job_begins_alone(ray_folder: Path) -> None:
    """Ray reads the job's id from the environment when it is loaded."""
    asker(WORKERS, ray_folder, "one", RAY_JOB_ID="1").communicate()
    answer, _ = asker(WORKERS, ray_folder, "two", RAY_JOB_ID="2").communicate()
    assert answer == "two given False\n"


def test_a_program_without_forks_begins_alone(tmp_path: Path) -> None:
    answer, _ = asker(STARTER, tmp_path / "ray", "alone").communicate()
    assert answer == "alone given False\n"


def test_the_start_of_actors_is_a_fork_that_ends_with_its_asker(ray_folder: Path) -> None:
    with asker(STARTER, ray_folder, "waits") as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits given ray False\n"
        assert waiting.poll() is None
        waiting.kill()
        # The fork has the other end of this pipe, and reads from one that is still open.
        assert waiting.stdout.read() == ""


RAYLET = [
    "raylet",
    "--node_id=ab",
    "--dashboard_agent_command=python -u agent.py --node-id=ab --session-dir={folder} --minimal",
    "--runtime_env_agent_command=python -u {folder}/main.py --node-id=ab"
    " --node-ip-address=127.0.0.1 --runtime-env-agent-port=0 --session-dir={folder}",
]
AGENT = """
import socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[-1].rpartition("=")[2])))
server.listen()
link, _ = server.accept()
link.sendall(b"agent " + link.recv(100))
"""
"""Serves as Ray's agent does: it makes a socket and binds it to its port."""


def agents(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    for argument in with_small_programs([word.format(folder=folder) for word in RAYLET])[2:]:
        command = shlex.split(argument.partition("=")[2])
        yield subprocess.Popen(command, stdin=subprocess.PIPE)


def port_of(folder: Path, name: str) -> int:
    file = folder / f"{name}_ab"
    while not file.exists():
        time.sleep(0.01)
    return int(file.read_text())


def test_small_agents_name_their_ports_and_end_with_ray(tmp_path: Path) -> None:
    node, environment = agents(tmp_path)
    with node, environment:
        assert [port_of(tmp_path, name) for name in NODE_AGENT_PORTS] == [-1, -1, -1]
        assert port_of(tmp_path, "runtime_env_agent_port") > 0
        for agent in (node, environment):
            assert agent.poll() is None
            agent.communicate()
            assert agent.returncode == 0


def test_the_agent_of_environments_answers_the_connection_that_starts_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(AGENT)
    node, environment = agents(tmp_path)
    with node, environment:
        port = port_of(tmp_path, "runtime_env_agent_port")
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.sendall(b"asked")
            assert link.recv(100) == b"agent asked"
        node.communicate()
        environment.communicate()


SETUP = "import sys; print('ray', *sys.argv[1:])"
"""Shows that it runs, as Ray's program for Java workers, and its arguments."""
JAVA = """#!/bin/sh
printf '%s\n' java "$@"
"""
ENVIRONMENT = '--serialized-runtime-env-context={"py_executable": "python", "env_vars": %s}'


def java_worker(folder: Path, *added: str) -> list[str]:
    """Return the words that are printed by what Ray starts for a worker in Java."""
    setup = folder / "ray" / "_private" / "workers" / "setup_worker.py"
    setup.parent.mkdir(parents=True)
    setup.write_text(SETUP)
    java = folder / "java"
    java.write_text(JAVA)
    java.chmod(0o700)
    option = f"--java_worker_command=python {setup} -Dray.address=a:1 OPTIONS Worker"
    words = shlex.split(with_small_programs([option])[0].partition("=")[2])
    at = words.index("OPTIONS")
    done = subprocess.run(
        [*words[:at], *added, *words[at + 1 :], "--language=JAVA"],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_a_java_worker_is_started_without_a_program_that_imports_ray(tmp_path: Path) -> None:
    logs = f"-Dray.logging.dir={tmp_path}/logs/executor-c1"
    added = [
        "-Xmx1g",
        logs,
        "-javaagent:/raydp-agent-1.jar",
        "-javaagent:/own.jar",
        ENVIRONMENT % "{}",
    ]
    jars = str(tmp_path / "ray" / "jars" / "*")
    options = ["-Dray.address=a:1", "-Xmx1g", logs, "-javaagent:/own.jar"]
    assert java_worker(tmp_path, *added) == ["java", "-cp", jars, *options, "Worker"]
    assert (tmp_path / "logs" / "executor-c1").is_dir()


def test_ray_prepares_a_java_worker_that_asks_for_an_environment(tmp_path: Path) -> None:
    words = java_worker(tmp_path, ENVIRONMENT % '{"A":"1"}')
    assert words[:2] == ["ray", "-Dray.address=a:1"]
    assert words[-1] == "--language=JAVA"


def python_worker(folder: Path, *added: str) -> list[str]:
    """Return what is printed by what Ray starts for a worker in Python."""
    for name in ("setup", "default"):
        program = f"import sys; print({name!r}, *sys.argv[1:])"
        (folder / f"{name}_worker.py").write_text(program)
    words = f"{folder}/setup_worker.py {folder}/default_worker.py --temp-dir={folder}/ray"
    option = f"--python_worker_command=python {words} --worker-id=1"
    command = shlex.split(with_small_programs([option])[0].partition("=")[2])
    done = subprocess.run([*command, *added], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_worker_in_python_is_prepared_only_if_it_asks_for_an_environment(tmp_path: Path) -> None:
    own = [f"--temp-dir={tmp_path}/ray", "--worker-id=1"]
    added = ["--language=PYTHON", ENVIRONMENT % "{}"]
    assert python_worker(tmp_path, "--language=PYTHON") == ["default", *own]
    assert python_worker(tmp_path, *added) == ["default", *own]
    asks = ENVIRONMENT % '{"A":"1"}'
    words = python_worker(tmp_path, "--language=PYTHON", asks)
    assert words[:2] == ["setup", f"{tmp_path}/default_worker.py"]
    assert words[4] == "--language=PYTHON"


def test_other_processes_of_ray_keep_their_command() -> None:
    assert with_small_programs(["gcs_server", "--gcs_server_port=1"]) == [
        "gcs_server",
        "--gcs_server_port=1",
    ]
