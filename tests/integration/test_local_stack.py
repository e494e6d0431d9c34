"""The embedded stack on a real Redis and a real Ray; ends nobody but its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from common.errors import ConfigError
from neve.local import LocalStack, StackOptions
from neve.local.processes import ProcessRef, members
from neve.local.stack import stop
from neve.local.state import StackFolder

pytestmark = [pytest.mark.slow]

BARE = StackOptions(actors=False)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for folder in tmp_path.iterdir():
        stop(StackFolder(folder))


def begin(home: Path, name: str = "one", options: StackOptions = BARE) -> LocalStack:
    return LocalStack.start(home=home, name=name, options=options)


def alive(stack: LocalStack) -> list[psutil.Process]:
    return members(stack.state.mark, stack.state.processes)


def listeners(stack: LocalStack) -> list[str]:
    links = [link for p in alive(stack) for link in p.net_connections(kind="inet")]
    return [link.laddr.ip for link in links if link.status == psutil.CONN_LISTEN]


def test_a_stack_starts_answers_and_leaves_nothing(home: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    steps: list[str] = []
    with LocalStack.start(home=home, name="one", options=BARE, on_progress=steps.append) as stack:
        assert steps == ["starting Redis", "starting Ray"]
        assert redis.Redis.from_url(stack.redis_url).ping()
        roles = {p.role for p in stack.state.processes}
        assert roles == {"redis", "gcs_server", "raylet"}
        assert set(listeners(stack)) <= {"127.0.0.1", "::ffff:127.0.0.1"}
        assert LocalStack.attach(home=home, name="one") is not None
        with pytest.raises(ConfigError, match="running already"):
            begin(home)
    assert alive(stack) == []
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert not Path(stack.state.ray_folder).exists()
    assert LocalStack.attach(home=home, name="one") is None


def test_secrets_are_for_their_owner_only(home: Path) -> None:
    with begin(home) as stack:
        folder = stack.folder
        files = (folder.state_file, folder.ray_token_file, folder.redis / "redis.conf")
        assert [file.stat().st_mode & 0o077 for file in files] == [0, 0, 0]
        link = redis.Redis(
            port=redis.Redis.from_url(stack.redis_url).get_connection_kwargs()["port"]
        )
        with pytest.raises(redis.AuthenticationError), link:
            link.ping()
        passwords = {stack.redis_url.split(":")[2].split("@")[0]}
        shown = [" ".join(_line(p)) for p in alive(stack)]
        assert not [line for line in shown if any(word in line for word in passwords)]


def test_tables_outlive_the_stack_unless_deleted(home: Path) -> None:
    with begin(home) as stack, redis.Redis.from_url(stack.redis_url) as link:
        link.set("kept", "yes")
    with begin(home) as stack, redis.Redis.from_url(stack.redis_url) as link:
        assert link.get("kept") == b"yes"
    stop(stack.folder, delete_data=True)
    assert not stack.folder.path.exists()


def test_two_stacks_do_not_disturb_each_other(home: Path) -> None:
    with begin(home, "one") as one:
        with begin(home, "two") as two:
            assert one.redis_url != two.redis_url
            assert one.ray_address != two.ray_address
            assert not {p.pid for p in alive(one)} & {p.pid for p in alive(two)}
        assert alive(two) == []
        assert one.state.running()
        assert cluster_resources(one)["neve_node_local"] > 0


def cluster_resources(stack: LocalStack) -> dict[str, float]:
    code = (
        "import json, ray; ray.init(address={!r}, logging_level='ERROR', log_to_driver=False);"
        "print(json.dumps(ray.cluster_resources()))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code.format(stack.ray_address)],
        env=stack.driver_environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    resources: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return resources


def test_a_port_in_use_is_named_and_nothing_is_left(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} for Ray is in use"):
            begin(home, options=StackOptions(actors=False, ray_port=port))
    folder = StackFolder(home / "one")
    assert folder.load() is None
    assert not [p for p in psutil.process_iter() if str(folder.path) in " ".join(_line(p))]


def _line(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_a_start_that_was_killed_is_cleaned_up(home: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from neve.local import LocalStack, StackOptions\n"
        "LocalStack.start(home=Path(sys.argv[1]), name='one',"
        " options=StackOptions(actors=False), on_progress=lambda s: print(s, flush=True))"
    )
    command = [sys.executable, "-c", code, str(home)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    ) as starter:
        assert starter.stdout is not None
        while starter.stdout.readline().strip() != "starting Ray":
            assert starter.poll() is None
        time.sleep(1.0)
        starter.send_signal(signal.SIGKILL)
    folder = StackFolder(home / "one")
    state = folder.load()
    assert state is not None
    assert not state.ready
    assert stop(folder)
    assert members(state.mark, state.processes) == []
    assert not Path(state.ray_folder).exists()


def test_a_number_that_was_handed_out_again_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        process = psutil.Process(bystander.pid)
        older = ProcessRef("raylet", bystander.pid, process.create_time() - 100)
        assert members("no such mark", [older]) == []
        bystander.kill()
