"""What Ray's head is started with."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from neve.local.servers import NODE_AGENT_PORTS, RAY_COMMAND, with_small_programs

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_ray_starts_without_the_commands_that_load_most() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", RAY_COMMAND, "--help"], capture_output=True, text=True, check=True
    )
    commands = {line.split()[0] for line in answer.stdout.splitlines() if line.strip()}
    assert "start" in commands
    assert not {"serve", "job", "list"} & commands


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


def test_other_processes_of_ray_keep_their_command() -> None:
    assert with_small_programs(["gcs_server", "--gcs_server_port=1"]) == [
        "gcs_server",
        "--gcs_server_port=1",
    ]
