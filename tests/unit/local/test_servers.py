"""What Ray's head is started with."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from neve.local.servers import NO_AGENT, RAY_COMMAND
from tests.support.patience import SERVICE_S

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")


def test_ray_starts_without_the_commands_that_load_most() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", RAY_COMMAND, "--help"], capture_output=True, text=True, check=True
    )
    commands = {line.split()[0] for line in answer.stdout.splitlines() if line.strip()}
    assert "start" in commands
    assert not {"serve", "job", "list"} & commands


def test_an_agent_that_serves_nothing_says_so_and_stays(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", NO_AGENT, str(tmp_path), "agent.py", "--node-id=n1", "--head"]
    with subprocess.Popen(command) as agent:
        try:
            until_s = time.monotonic() + SERVICE_S
            wanted = {f"{port}_n1": "-1" for port in PORTS}
            while {file.name: file.read_text() for file in tmp_path.glob("[!.]*")} != wanted:
                assert time.monotonic() < until_s
                assert agent.poll() is None
            assert agent.poll() is None
        finally:
            agent.kill()
