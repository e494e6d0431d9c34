"""The demo runs from the installed wheel, and its proof holds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.installed import installation
from tests.support.patience import SERVICE_S

pytestmark = [pytest.mark.slow]


def test_the_demo_proves_itself(tmp_path: Path) -> None:
    own = {"NEVE_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    ran = subprocess.run(
        [installation().neve, "demo", "--compactors", "1"],
        cwd=tmp_path,
        env=installation().environ(os.environ) | own,
        capture_output=True,
        text=True,
        timeout=4 * SERVICE_S,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "proven" in ran.stdout
    assert "NOT proven" not in ran.stdout
