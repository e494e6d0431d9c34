"""The full scan in real Ray tasks over a real Redis, on a cluster of nothing but its head."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neve.local import LocalStack, StackOptions
from tests.support.patience import SERVICE_S
from tests.support.redis_server import running

pytestmark = [pytest.mark.slow]


def test_work_is_found_in_tasks_whatever_becomes_of_them(tmp_path: Path) -> None:
    # Making many tablets at once takes a script, which the stack's own Redis would refuse.
    with (
        running() as server,
        LocalStack.start(home=tmp_path, options=StackOptions(actors=False)) as stack,
    ):
        environ = stack.driver_environ()
        environ |= {"SCAN_REDIS": server.url, "SCAN_RAY": stack.ray_address}
        environ["SCAN_MARK"] = stack.state.mark
        life = subprocess.run(
            [sys.executable, "-m", "tests.support.scan_life"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=SERVICE_S,
            check=False,
        )
    assert life.returncode == 0, life.stderr[-4000:]
    told = json.loads(life.stdout.splitlines()[-1])
    assert told["first"] == told["second"] == told["third"] == told["busy"]
    assert told["stable"] == told["tablets"] - len(told["busy"])
    assert told["planned again"] == len(told["busy"])
    assert told["killed"] >= 1
    pieces = 5
    assert told["nowhere failed"] == 3 * pieces
    assert told["nowhere found"] == []
    assert any("task failed" in line for line in told["logged"]), told["logged"]
