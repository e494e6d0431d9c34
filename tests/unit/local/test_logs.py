"""The log files of a stack are found, shown, followed, and outlive what Ray removes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from common.errors import ConfigError
from neve.local.logs import KEPT_BYTES, StackLogs
from tests.support.shell import Shell

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logs = tmp_path / "home" / "user" / "logs"
    executor = logs / "executor-small-1"
    executor.mkdir(parents=True)
    written = {
        "start": "",
        "redis": "ready\n",
        "gateway": "one\ntwo\nthree\n",
        "compactor-small-1": "ready\n",
        "hs_err_pid7": "a crash\n",
        "executor-small-1/raydp-java-worker-1": "WARN slow\n",
        "executor-small-1/java-core-worker-1": "Ray's own\n",
        "executor-small-1/tasks": "Traceback\n",
    }
    for number, (name, text) in enumerate(written.items()):
        path = logs / f"{name}.log"
        path.write_text(text)
        os.utime(path, (number, number))
    return logs


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """Return a folder as Ray's sessions are."""
    logs = tmp_path / "ray" / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("begins\n" + "x" * KEPT_BYTES + "\nends\n")
    (logs / "worker-1.err").write_text("")
    (logs / "worker-2.err").write_text("Traceback\n")
    (logs / "debug_state.txt").write_text("of no interest\n")
    return tmp_path / "ray"


def test_parts_come_in_the_order_of_their_start(folder: Path) -> None:
    assert StackLogs(folder).parts() == [
        "start",
        "redis",
        "gateway",
        "compactor-small-1",
        "executor-small-1",
    ]


def test_the_last_lines_of_a_part(folder: Path) -> None:
    logs = StackLogs(folder)
    assert logs.tail("gateway", 2) == ["two", "three"]
    assert logs.tail("executor-small-1", 9) == ["WARN slow", "Traceback"]
    assert logs.last_words("gateway") == "three"
    assert logs.last_words("gateway", since_bytes=14) == "it printed nothing"
    events = ['{"event": "begins"}', '{"event": "coordinator fails", "cause": "no disk"}']
    for event, words in zip(events, ("begins", "no disk"), strict=True):
        logs.path("coordinator").write_text(f"{event}\n")
        assert logs.last_words("coordinator") == words


def test_a_part_that_is_not_there_is_named_with_those_that_are(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"process 'gateways' has no log.*start, redis, gateway"):
        StackLogs(folder).tail("gateways", 1)


def test_a_part_is_followed_also_when_its_file_was_emptied(folder: Path) -> None:
    path = folder / "gateway.log"

    def says() -> Iterator[None]:
        for text in ("four\nfi", "ve\n"):
            with path.open("a") as file:
                file.write(text)
            yield
        os.truncate(path, 0)
        yield
        with path.open("a") as file:
            file.write("six\n")
        yield

    story = says()
    followed = StackLogs(folder).follow("gateway", lambda _: next(story))
    assert list(islice(followed, 3)) == ["four", "five", "six"]


def test_logs_of_ray_are_read_in_place_and_kept_after_its_end(folder: Path, session: Path) -> None:
    logs = StackLogs(folder, session)
    assert {"Traceback", "ends"} <= set(logs.tail("ray", 100))
    logs.keep_ray()
    ended = StackLogs(folder)
    assert "ray" in ended.parts()
    kept = {path.name: path.read_text() for path in (folder / "ray").iterdir()}
    assert kept.keys() == {"raylet.out", "worker-2.err"}
    assert len(kept["raylet.out"]) == KEPT_BYTES
    assert kept["raylet.out"].endswith("ends\n")
    StackLogs(folder, session / "gone").keep_ray()
    assert "ray" in ended.parts()


def test_logs_are_shown_after_the_stack_has_ended(folder: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    shell.run("logs", says=f"gateway {folder / 'gateway.log'}")
    shell.run("logs", "gateway", "--lines", "1", says="three")
    assert shell.json("logs", "gateway", "-n", "2")["lines"] == ["two", "three"]
    shell.run("logs", "nonsense", code=1, says="process 'nonsense' has no log")
    shell.run("logs", "--follow", code=2, says="--follow needs the name of a process")
    (tmp_path / "home" / "other" / "logs").mkdir(parents=True)
    shell.run("logs", code=2, says="2 stacks have logs on this machine: other, user; choose one")
    shell.run("logs", "gateway", "--stack", "user", says="one two three")
