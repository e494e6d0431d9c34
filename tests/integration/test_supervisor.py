"""A stack's supervisor on a real Redis: it starts what has died, and nothing that was ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import redis

from common.runtime import SystemClock
from neve.local.options import StackOptions
from neve.local.processes import (
    ProcessRef,
    end_processes,
    processes_of_stack,
)
from neve.local.servers import AppendSync
from neve.local.stack_folder import (
    StackFolder,
    StackState,
    base_folder,
    new_folder,
    remove_folder,
)
from neve.local.starter import Starter, inspect_machine
from neve.local.supervisor import StackOverError, Supervisor, SupervisorOrders

OPTIONS = StackOptions(actors=False, redis_appendfsync=AppendSync.ALWAYS)


class Stack:
    """A stack that has a Redis and no Ray, and its supervisor in this process."""

    def __init__(self, home: Path) -> None:
        self.folder = StackFolder.of(home, "one", {})
        self.folder.make()
        self.told: list[tuple[str, dict[str, Any]]] = []
        mark = secrets.token_hex(8)
        machine = inspect_machine(OPTIONS, os.environ, home)
        self.private_folder = new_folder(base_folder())
        state = StackState(
            name="one",
            mark=mark,
            started_s=0.0,
            private_folder=str(self.private_folder),
            java_home=str(machine.java.home),
        )
        self.private_folder.mkdir(mode=0o700)
        state.temporary.mkdir()
        self.orders = SupervisorOrders(
            mark=mark,
            folder=self.folder,
            options=OPTIONS,
            machine=machine,
            environ=dict(os.environ),
        )
        starter = Starter(
            folder=self.folder,
            options=OPTIONS,
            machine=machine,
            environ=os.environ,
            on_progress=lambda _: None,
            clock=SystemClock(),
            save=self.folder.save,
        )
        self.folder.save(replace(starter.start_redis(state), ready=True))
        self.supervisor = Supervisor(self.orders, SystemClock(), self._hear)
        self.link = redis.Redis.from_url(self.state.redis_url)

    @property
    def state(self) -> StackState:
        state = self.folder.load()
        assert state is not None
        return state

    @property
    def redis(self) -> ProcessRef:
        (found,) = [process for process in self.state.processes if process.role == "redis"]
        return found

    def kill_redis(self) -> None:
        process = self.redis.process()
        assert process is not None
        process.kill()
        process.wait(10)

    def look(self) -> None:
        """Look once, and wait for what that has started."""
        self.supervisor.look()
        self.supervisor.wait()

    def events(self) -> list[str]:
        return [event for event, _ in self.told]

    def end(self) -> None:
        end_processes(self.orders.mark)
        remove_folder(self.private_folder)

    def _hear(self, event: str, **fields: Any) -> None:
        self.told.append((event, fields))


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path)
    yield made
    made.end()


def test_a_redis_that_died_is_started_again_with_its_data_at_its_address(stack: Stack) -> None:
    stack.link.set("neve:a", "1")
    old, url = stack.redis, stack.state.redis_url
    stack.kill_redis()
    stack.look()
    assert stack.link.get("neve:a") == b"1"
    assert stack.redis != old
    assert stack.state.redis_url == url
    assert stack.events() == ["part is down", "part is up again"]
    stack.look()
    assert len(stack.told) == 2, "what is well is left alone"
    assert not stack.folder.repairs_file.exists()


def test_a_redis_that_is_silent_too_long_is_started_again(stack: Stack) -> None:
    stack.link.set("neve:a", "1")
    stack.supervisor.repairs.silence_max_s = {"redis": 3.0}
    stack.look()
    assert not stack.told
    old = stack.redis
    os.kill(old.pid, signal.SIGSTOP)
    while not stack.told:
        stack.look()
    assert "no answer for" in stack.told[0][1]["cause"]
    assert not old.alive()
    assert stack.link.get("neve:a") == b"1"


def test_a_redis_that_does_not_start_is_tried_again_and_told(stack: Stack) -> None:
    server = stack.orders.machine.redis
    assert server is not None
    broken = replace(stack.orders.machine, redis=replace(server, program=Path("/bin/false")))
    stack.supervisor.orders = replace(stack.orders, machine=broken)
    stack.kill_redis()
    stack.look()
    assert stack.events() == ["part is down", "part does not start"]
    stack.look()
    told = json.loads(stack.folder.repairs_file.read_text())
    assert "times: Redis exited at once" in told["redis"]
    fixed = replace(stack.orders.machine, redis=server)
    stack.supervisor.orders = replace(stack.orders, machine=fixed)
    while "part is up again" not in stack.events():
        stack.look()
    assert stack.link.ping()
    stack.look()
    assert not stack.folder.repairs_file.exists()


@pytest.mark.parametrize("how", ["ended", "started anew"])
def test_nothing_is_started_for_a_stack_that_is_over(stack: Stack, how: str) -> None:
    stack.kill_redis()
    state = stack.state
    stack.folder.state_file.unlink()
    if how == "started anew":
        stack.folder.save(replace(state, mark="another"))
    with pytest.raises(StackOverError):
        stack.look()
    assert processes_of_stack(stack.orders.mark) == []
    assert stack.folder.state_file.exists() is (how == "started anew")


def test_a_process_started_while_the_stack_ends_is_ended(stack: Stack) -> None:
    """`neve down` holds the lock while it ends everything."""
    stack.kill_redis()
    with stack.folder.locked():
        stack.look()
        with pytest.raises(StackOverError):
            stack.look()
    assert processes_of_stack(stack.orders.mark) == []
    with contextlib.suppress(redis.ConnectionError):
        raise AssertionError(f"somebody answers: {stack.link.ping()}")


def full_disk(stack: Stack, file: Path) -> None:
    """Have the next write of a file fail as it does on a full disk."""
    file.with_name(f"{file.name}.{os.getpid()}").symlink_to("/dev/full")


def test_a_full_disk_does_not_end_the_supervisor(stack: Stack) -> None:
    server = stack.orders.machine.redis
    assert server is not None
    broken = replace(stack.orders.machine, redis=replace(server, program=Path("/bin/false")))
    stack.supervisor.orders = replace(stack.orders, machine=broken)
    stack.kill_redis()
    full_disk(stack, stack.folder.repairs_file)
    stack.look()
    assert "part does not start" in stack.events()
    assert not stack.folder.repairs_file.exists()
    fixed = replace(stack.orders.machine, redis=server)
    stack.supervisor.orders = replace(stack.orders, machine=fixed)
    while "part is up again" not in stack.events():
        stack.look()
    assert stack.link.ping()


def test_a_redis_that_cannot_be_written_down_does_not_run_twice(stack: Stack) -> None:
    stack.kill_redis()
    full_disk(stack, stack.folder.state_file)
    stack.look()
    assert stack.events() == ["part is down", "part does not start"]
    assert "No space left" in stack.told[1][1]["cause"]
    assert processes_of_stack(stack.orders.mark) == []
    while "part is up again" not in stack.events():
        stack.look()
    assert [process.pid for process in processes_of_stack(stack.orders.mark)] == [stack.redis.pid]


def test_no_error_of_a_look_ends_the_supervisor(stack: Stack) -> None:
    text, stopped = stack.folder.state_file.read_text(), Event()
    stack.folder.state_file.write_text("")  # As a crash of the machine may leave it.
    thread = Thread(target=stack.supervisor.run, args=(stopped,))
    thread.start()
    while "look at the stack failed" not in stack.events():
        assert thread.is_alive()
    stack.folder.state_file.write_text(text)
    stack.kill_redis()
    while "part is up again" not in stack.events():
        assert thread.is_alive()
    stopped.set()
    thread.join()
    assert stack.link.ping()
