"""Who may have a worker of Spark's, and what a worker does after a task."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from compactor.spark.task_daemon import peer_owner
from tests.support.neighbour import NOBODY, as_nobody
from tests.support.patience import PATIENCE_S


@pytest.fixture
def door() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        yield door


def test_the_user_at_the_other_end_is_known(door: socket.socket) -> None:
    with socket.create_connection(door.getsockname()):
        link, _ = door.accept()
        with link:
            assert peer_owner(link) == os.getuid()


def test_a_client_that_speaks_ipv6_is_known_as_java_does(door: socket.socket) -> None:
    with socket.socket(socket.AF_INET6) as client:
        client.connect((f"::ffff:{door.getsockname()[0]}", door.getsockname()[1]))
        link, _ = door.accept()
        with link:
            assert peer_owner(link) == os.getuid()


def test_a_connection_of_another_user_is_recognised(door: socket.socket) -> None:
    def knock() -> bytes:
        with socket.create_connection(door.getsockname()) as link:
            return link.recv(1)

    with ThreadPoolExecutor(1) as beside:
        heard = beside.submit(as_nobody, knock)
        link, _ = door.accept()
        with link:
            owner = peer_owner(link)
            link.sendall(b"!")
        assert heard.result(PATIENCE_S) == b"!"
    assert owner == (NOBODY if os.getuid() == 0 else os.getuid())


WORKER = """
import gc, socket
from compactor.spark import task_daemon

def first_task(connection, authenticated):
    import polars
    return 0

task_daemon._run_task = first_task
mine, theirs = socket.socketpair()
loaded = len(gc.get_objects())
code = task_daemon._run_task_at_once(mine, authenticated=True)
print(code, gc.get_freeze_count() > loaded, len(gc.get_objects()) < 1_000)
"""
"""In a process of its own, because frozen objects stay frozen."""


def test_what_the_first_task_has_loaded_is_not_searched_for_garbage() -> None:
    answer = subprocess.check_output([sys.executable, "-c", WORKER], text=True)
    assert answer.split() == ["0", "True", "True"]
