"""Tests have a home of their own: what is in the user's cannot change how they end."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

REAL_HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)
ASK = "import pathlib; print(pathlib.Path.home(), pathlib.Path('~/.ray').expanduser())"


def test_no_test_sees_the_home_of_the_user() -> None:
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)

    for folder in (Path.home(), *map(Path, asked.stdout.split())):
        assert not folder.is_relative_to(REAL_HOME)
    assert not [name for name in os.environ if name.startswith("XDG_")]


@pytest.mark.parametrize("name", [".ray/auth_token", ".neve", ".aws/credentials"])
def test_the_home_of_tests_is_empty(name: str) -> None:
    assert not (Path.home() / name).exists()
