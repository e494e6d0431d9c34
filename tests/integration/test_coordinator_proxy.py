"""The proxy of the coordinator on real Ray: one proxy goes through refusals, a freeze, a death."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neve.local import LocalStack, StackOptions

pytestmark = pytest.mark.slow


def test_a_proxy_says_what_is_wrong_and_finds_the_coordinator_again(tmp_path: Path) -> None:
    with LocalStack.start(home=tmp_path, options=StackOptions(compactors=0)) as stack:
        calls = subprocess.run(
            [sys.executable, "-m", "tests.support.coordinator_caller", str(tmp_path)],
            env=stack.driver_environ(),
            capture_output=True,
            text=True,
            timeout=380,
            check=False,
        )
    assert calls.returncode == 0, calls.stderr
