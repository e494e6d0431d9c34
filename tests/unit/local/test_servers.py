"""What Ray's head is started with."""

from __future__ import annotations

import subprocess
import sys

from neve.local.servers import RAY_COMMAND


def test_ray_starts_without_the_commands_that_load_most() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", RAY_COMMAND, "--help"], capture_output=True, text=True, check=True
    )
    commands = {line.split()[0] for line in answer.stdout.splitlines() if line.strip()}
    assert "start" in commands
    assert not {"serve", "job", "list"} & commands
