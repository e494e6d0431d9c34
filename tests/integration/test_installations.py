"""What users install runs: the wheel with what a resolver finds today, and with the pinned list.

Each is installed into a new environment outside the checkout, on each Python that is supported;
then a stack is started, a table is filled and compacted, and the stack is ended.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from tests.support.installed import ROOT, installation
from tests.support.patience import SERVICE_S

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]

INSTALL_MAX_S = 1800
PYTHONS = ("3.11", "3.12")
LOCK = ROOT / "requirements" / "lock.txt"
LITTLE = {
    "NEVE_GATEWAY_PORT": "0",
    "NEVE_COMPACTOR_EXECUTOR_MEMORY": "512m",
    "NEVE_COMPACTOR_DRIVER_MEMORY": "512m",
}
APPEND = """
import pyarrow as pa, neve
client = neve.connect()
schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
location = __import__("sys").argv[1]
client.create_table("visits", location, schema=schema, key=["id"], version_column="at")
for at in range(4):
    client.append("visits", pa.table([list(range(100)), [at] * 100], schema=schema))
client.compact("visits").wait()
rows = client.scan("visits")
assert rows.num_rows == 100, rows.num_rows
assert set(rows["at"].to_pylist()) == {3}
assert any(job.end == "committed" for job in client.history("visits"))
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with nothing of this one, and a folder for its stack."""

    folder: Path

    def run(self, program: str, *words: str, wait_max_s: float = 4 * SERVICE_S) -> str:
        """Run a program of the environment, and return what it prints."""
        hidden = ("PYTHON", "VIRTUAL_ENV", "NEVE_", "JAVA_HOME", "RAY_")
        clean = {name: each for name, each in os.environ.items() if not name.startswith(hidden)}
        programs = self.folder / "python" / "bin"
        own = {"PATH": f"{programs}:{clean['PATH']}", "NEVE_HOME": str(self.folder / "home")}
        ran = subprocess.run(
            [programs / program, *words],
            cwd=self.folder,
            env=clean | own | LITTLE,
            capture_output=True,
            text=True,
            timeout=wait_max_s,
            check=False,
        )
        assert ran.returncode == 0, f"{program} {words}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def install(self, *words: str) -> None:
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self.run("python", *pip, *words, wait_max_s=INSTALL_MAX_S)


def python_of(version: str) -> str:
    """Return a Python of a version: of PATH, or one of pyenv's that PATH does not name."""
    versions = Path(os.environ.get("PYENV_ROOT", "/nowhere")) / "versions"
    found = sorted(versions.glob(f"{version}.*/bin/python{version}"), reverse=True)
    for program in chain([f"python{version}"], map(str, found)):
        asked = subprocess.run(
            ["sh", "-c", '"$0" -c "import venv, ensurepip, sys; print(sys.executable)"', program],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0:
            return asked.stdout.strip()
    pytest.fail(f"no python{version} with its venv module: install one, or name it in PATH")


@pytest.fixture(params=PYTHONS)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    """A new environment; it takes gigabytes and goes with the test."""
    python = python_of(request.param)
    subprocess.run([python, "-m", "venv", tmp_path / "python"], check=True, cwd=tmp_path)
    yield Environment(tmp_path)
    shutil.rmtree(tmp_path / "python")


def test_what_a_resolver_finds_today_runs(environment: Environment) -> None:
    environment.install(f"{installation().wheel}[server,embedded]")

    check_a_table_is_compacted(environment)


def test_the_pinned_list_runs(environment: Environment) -> None:
    environment.install("--require-hashes", "--no-deps", "--requirement", str(LOCK))
    environment.install("--no-deps", str(installation().wheel))

    check_a_table_is_compacted(environment)


def check_a_table_is_compacted(environment: Environment) -> None:
    where = environment.run("python", "-c", "import neve; print(neve.__file__)")
    assert Path(where.strip()).is_relative_to(environment.folder)
    show_versions(environment, ("python", "-m", "pip", "list", "--format", "json"))
    environment.run("neve", "up")
    try:
        (environment.folder / "visits").mkdir()
        environment.run("python", "-c", APPEND, str(environment.folder / "visits"))
    finally:
        environment.run("neve", "down")


def show_versions(environment: Environment, words: Sequence[str]) -> None:
    """Print what was installed: another day's resolver may find something else."""
    program, *more = words
    listed = json.loads(environment.run(program, *more))
    print(" ".join(f"{each['name']}=={each['version']}" for each in listed))
