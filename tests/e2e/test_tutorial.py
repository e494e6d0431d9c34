"""The tutorial is true: its commands, in order on one real stack, print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.installed import installation
from tests.support.patience import SERVICE_S
from tests.support.s3_server import VARIABLES, s3_server

pytestmark = [pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
LITTLE = {
    "NEVE_GATEWAY_PORT": "0",
    "NEVE_COMPACTOR_ENGINE": "local",
    "NEVE_COMPACTOR_DRIVER_MEMORY": "512m",
}
"""The tests' stack takes less than a reader's, and a port that is free: its Spark has no executors.

Those of `test_settings_file.py` and of `service` have.
"""
PLACEHOLDERS = ("https://minio.example:9000", "YOUR-KEY-ID", "YOUR-SECRET-KEY")


@dataclass(frozen=True, slots=True)
class Step:
    """A block that is run, and the block that shows what it prints."""

    language: str
    code: str
    shown: str | None


def steps() -> list[Step]:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    assert {language for language, _ in blocks} == {"bash", "python", "text"}
    after = [*blocks[1:], ("", "")]
    return [
        Step(language, code, shown if following == "text" else None)
        for (language, code), (following, shown) in zip(blocks, after, strict=True)
        if language != "text"
    ]


def agrees(shown: str, printed: str) -> bool:
    """Return whether a text is printed as shown; `…` stands for any text."""
    pattern = ".*?".join(map(re.escape, shown.rstrip().split("…")))
    return re.fullmatch(pattern, printed.rstrip(), re.S) is not None


class Reader:
    """Somebody who types what the page says; variables that are set stay set."""

    def __init__(self, folder: Path, environ: Mapping[str, str], values: Mapping[str, str]) -> None:
        self.folder = folder
        self.environ = dict(environ)
        self.values = values

    def run(self, step: Step) -> str:
        code = step.code
        for placeholder, value in self.values.items():
            code = code.replace(placeholder, value)
        kept = self.folder / "environment"
        command = [sys.executable, "-c", code]
        if step.language == "bash":
            command = ["bash", "-euo", "pipefail", "-c", f"{code}\nenv -0 > {kept}"]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=4 * SERVICE_S,
            check=False,
        )
        assert done.returncode == 0, f"{step.code}\n{done.stdout}\n{done.stderr}"
        if step.language == "bash":
            pairs = kept.read_text("utf-8").rstrip("\0").split("\0")
            self.environ = dict(pair.split("=", 1) for pair in pairs)
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader in an empty folder, with a bucket in a real S3 server."""
    hidden = {*VARIABLES, "NEVE_URL", "NEVE_STACK", "NEVE_TOKEN", "NEVE_CONFIG"}
    environ = {name: value for name, value in os.environ.items() if name not in hidden} | LITTLE
    environ["NEVE_HOME"] = str(tmp_path / "home")
    environ = installation().environ(environ)
    environ["AWS_EC2_METADATA_DISABLED"] = "true"
    with s3_server() as server:
        server.create_bucket("lake")
        values = dict(zip(PLACEHOLDERS, (server.endpoint, "test", "test"), strict=True))
        person = Reader(tmp_path, environ, values)
        try:
            yield person
        finally:
            subprocess.run(["neve", "down"], env=person.environ, check=False, timeout=SERVICE_S)


@pytest.mark.parametrize("stacks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_page_is_true(reader: Reader, stacks: int) -> None:
    """Its last part needs another stack, for an Iceberg table as `service` has them."""
    shown_steps, started = 0, 0
    for step in steps():
        started += "neve up" in step.code
        if started > stacks:
            break
        printed = reader.run(step)
        if step.shown is not None:
            shown_steps += 1
            assert agrees(step.shown, printed), f"{step.code}\nshown:\n{step.shown}\n{printed}"
    assert started >= stacks
    assert shown_steps >= 8
