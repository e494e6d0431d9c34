"""What these tests run is the installed wheel, in every process, and the demo runs from it too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.installed import PACKAGES, installation
from tests.support.module_origins import folders_of_actors
from tests.support.patience import SERVICE_S
from tests.support.stack import COMPACTORS, Service

pytestmark = [pytest.mark.slow]

SEARCH = f"""
import importlib.util, json
print(json.dumps([importlib.util.find_spec(name).origin for name in {PACKAGES}]))
"""


def test_every_actor_has_loaded_the_wheel_alone(service: Service) -> None:
    found = folders_of_actors(service.stack.ray_address, service.stack.driver_environ())

    assert len(found) >= 2 + len(COMPACTORS), found
    assert {folder for folders in found.values() for folder in folders} == {
        str(installation().packages)
    }, found


def test_every_child_process_imports_from_the_wheel(service: Service) -> None:
    for name in COMPACTORS:
        service.wait(f"Spark tasks of {name}", service.tasks)
    children = [service.driver(name) for name in COMPACTORS] + service.tasks()
    children += [p for p in service.processes() if "neve.local.supervisor" in str(p.cmdline())]
    assert len(children) > 2 * len(COMPACTORS)

    for child in children:
        assert imported_by(child) == [
            str(installation().packages / name / "__init__.py") for name in PACKAGES
        ], child.cmdline()


def imported_by(process: psutil.Process) -> list[str]:
    """Return what a Python finds that runs like a process, in its folder."""
    asked = subprocess.run(
        [sys.executable, "-c", SEARCH],
        env=process.environ(),
        cwd=process.cwd(),
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=True,
    )
    found: list[str] = json.loads(asked.stdout)
    return found


def test_no_process_sees_the_home_of_the_user(service: Service) -> None:
    for process in service.processes():
        try:
            home = process.environ().get("HOME")
        except psutil.Error:
            continue
        assert home in {str(Path.home()), None}, process.cmdline()
