"""How a start is followed: steps, what fails, and a part that ends meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neve.local.actors import PartError, _follow, reached_at
from neve.local.logs import StackLogs

pytestmark = pytest.mark.unit


def follow(
    tmp_path: Path,
    *said: object,
    died: tuple[str, str] | None = None,
    steps: list[str] | None = None,
) -> str:
    """Follow a process that says some lines and then, if a part has died, waits for ever."""
    lines = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in said)
    code = "import sys; print(sys.argv[1], flush=True); sys.argv[2] and input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, lines, "wait" if died else ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        try:
            heard = [] if steps is None else steps
            return _follow(driver, StackLogs(tmp_path), heard.append, lambda: died)
        finally:
            driver.kill()


def test_steps_are_passed_on_until_the_address_is_known(tmp_path: Path) -> None:
    steps: list[str] = []
    said = ({"step": "one"}, "a library's own line", {"step": "two"}, {"gateway_url": "http://x"})
    assert follow(tmp_path, *said, steps=steps) == "http://x"
    assert steps == ["one", "two"]


def test_the_part_that_does_not_come_up_is_named(tmp_path: Path) -> None:
    with pytest.raises(PartError, match="no room") as failed:
        follow(tmp_path, {"step": "one"}, {"error": "no room", "part": "compactor-a-1"})
    assert failed.value.part == "compactor-a-1"


def test_a_start_that_says_nothing_is_told_by_its_log(tmp_path: Path) -> None:
    (tmp_path / "start.log").write_text("ImportError: no ray\n")
    with pytest.raises(PartError, match="the start ended: ImportError: no ray") as failed:
        follow(tmp_path, {"step": "one"})
    assert failed.value.part == "start"


def test_a_process_that_ends_during_the_start_ends_it(tmp_path: Path) -> None:
    with pytest.raises(PartError, match="process raylet ended during the start") as failed:
        follow(tmp_path, {"step": "one"}, died=("ray", "raylet"))
    assert failed.value.part == "ray"


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("fd00::1", "[fd00::1]"),
    ],
)
def test_a_service_is_reached_where_it_listens(host: str, reached: str) -> None:
    assert reached_at(host) == reached
