"""Where is the service? Given, in the environment, or the stack of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from neve.client.connect import connect, find_target
from neve.client.errors import CallerError, UnavailableError
from tests.support.patience import PATIENCE_S


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "default"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"gateway_url": "http://127.0.0.1:9"}))
    (folder / "token").write_text("of-the-stack\n")
    return tmp_path


def test_arguments_win_over_the_environment() -> None:
    target = find_target("http://a", "t", {"NEVE_URL": "http://b", "NEVE_TOKEN": "u"})

    assert (target.url, target.token) == ("http://a", "t")


def test_the_environment_wins_over_the_local_stack(home: Path) -> None:
    environ = {"NEVE_URL": "http://b", "NEVE_TOKEN": "u", "NEVE_HOME": str(home)}

    assert find_target(environ=environ).url == "http://b"
    assert find_target(environ=environ).token == "u"


def test_a_stack_of_this_machine_is_found(home: Path) -> None:
    target = find_target(environ={"NEVE_HOME": str(home)})

    assert (target.url, target.token) == ("http://127.0.0.1:9", "of-the-stack")


def test_a_stack_has_its_token_shown_to_nobody_else(home: Path) -> None:
    environ = {"NEVE_HOME": str(home)}

    assert find_target("http://elsewhere:9", environ=environ).token is None
    assert find_target("http://127.0.0.1:9/", environ=environ).token == "of-the-stack"


def write_stack(home: Path, name: str, port: int, pid: int | None = None) -> None:
    (home / name).mkdir()
    state = {"gateway_url": f"http://127.0.0.1:{port}"}
    processes = [] if pid is None else [{"role": "raylet", "pid": pid, "started_s": 0.0}]
    (home / name / "state.json").write_text(json.dumps({**state, "processes": processes}))
    (home / name / "token").write_text(f"of-{name}")


def test_the_only_stack_that_runs_is_meant_whatever_its_name(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    write_stack(tmp_path, "user", 7, os.getpid())
    write_stack(tmp_path, "default", 8, ended.pid)
    target = find_target(environ={"NEVE_HOME": str(tmp_path)})
    assert (target.url, target.token) == ("http://127.0.0.1:7", "of-user")
    assert target.source == "stack 'user'"


def test_of_several_stacks_one_must_be_named(tmp_path: Path) -> None:
    write_stack(tmp_path, "a", 7)
    write_stack(tmp_path, "b", 8)
    environ = {"NEVE_HOME": str(tmp_path)}
    with pytest.raises(
        CallerError, match=r"2 stacks run on this machine: a, b; say which .*--stac"
    ):
        find_target(environ=environ)
    assert find_target(environ=environ, stack="b").token == "of-b"
    assert find_target(environ={**environ, "NEVE_STACK": "a"}).token == "of-a"
    assert find_target("http://127.0.0.1:8", environ=environ).token == "of-b"
    with pytest.raises(UnavailableError, match=r"no stack 'c' runs .*; running: a, b: .*--stack c"):
        find_target(environ=environ, stack="c")


def test_a_named_stack_wins_over_the_environment(tmp_path: Path) -> None:
    write_stack(tmp_path, "a", 7)
    environ = {"NEVE_HOME": str(tmp_path), "NEVE_URL": "http://elsewhere:9"}
    assert find_target(environ=environ).url == "http://elsewhere:9"
    assert find_target(environ=environ, stack="a").url == "http://127.0.0.1:7"
    assert find_target("http://b:1", environ=environ, stack="a").url == "http://b:1"


@pytest.mark.parametrize("state", ["", "[]", "{", '{"gateway_url": ""}', '{"gateway_url": 3}'])
def test_a_stack_without_a_gateway_is_none(home: Path, state: str) -> None:
    (home / "default" / "state.json").write_text(state)

    with pytest.raises(UnavailableError, match=r"no service is known: .*`neve up`"):
        find_target(environ={"NEVE_HOME": str(home)})


def test_a_notebook_with_a_folder_named_common_can_use_the_client(tmp_path: Path) -> None:
    """The client imports nothing else of the project, and none of the heavy parts."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("raise ImportError('a folder of my own')")
    program = (
        "import sys, neve; neve.Client; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & "
        "{'common', 'coordinator', 'compactor', 'ray', 'pyspark', 'redis', 'fastapi', 'polars'}))"
    )
    root = Path(__file__).parents[3]
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]; "
    said = subprocess.run(
        [sys.executable, "-c", path + program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
    )

    assert said.stdout.strip() == "[]"


def test_how_long_calls_are_repeated_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVE_RETRY_S", "0")
    with pytest.raises(UnavailableError, match="no service answers"):
        connect("http://127.0.0.1:1", "t").tables()
    for wrong in ("soon", "-1", "1e9"):
        monkeypatch.setenv("NEVE_RETRY_S", wrong)
        with pytest.raises(CallerError, match=f"NEVE_RETRY_S is '{wrong}', expected seconds"):
            connect("http://127.0.0.1:1", "t")


def test_a_restore_that_reaches_no_service_closes_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEVE_RETRY_S", "0")
    archive = tmp_path / "all.backup"
    archive.write_bytes(b"an archive")
    with pytest.raises(UnavailableError) as caught:
        connect("http://127.0.0.1:1", "t").restore(archive)
    assert str(archive) not in open_files(), caught


def open_files() -> set[str]:
    held = set()
    for entry in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            held.add(str(entry.readlink()))
    return held
