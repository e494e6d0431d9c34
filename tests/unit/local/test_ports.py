"""Ports are had by binding them: who is second gets another, unless it insists."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from common.errors import ConfigError
from neve.local.machine import (
    LOOPBACK,
    TRIES_MAX,
    free_ports,
    is_free,
    start_on_free_port,
)


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as kept:
        yield kept


def listen(sockets: ExitStack, port: int) -> None:
    server = sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    try:
        server.bind((LOOPBACK, port))
    except OSError as error:
        raise ConfigError(f"does not come up at {port}") from error
    server.listen()


def test_two_that_want_the_same_port_both_come_up(sockets: ExitStack) -> None:
    port = free_ports(1)[0]
    first = start_on_free_port(lambda wanted: listen(sockets, wanted), port, insisted=False)
    second = start_on_free_port(lambda wanted: listen(sockets, wanted), port, insisted=False)
    assert first == port
    assert second != port
    assert not is_free(first)
    assert not is_free(second)


def test_insisting_on_a_taken_port_is_an_error(sockets: ExitStack) -> None:
    port = free_ports(1)[0]
    listen(sockets, port)
    with pytest.raises(ConfigError, match=f"does not come up at {port}"):
        start_on_free_port(lambda wanted: listen(sockets, wanted), port, insisted=True)


def test_only_a_taken_port_is_tried_again() -> None:
    tried: list[int] = []

    def start(port: int) -> None:
        tried.append(port)
        raise ConfigError("no token")

    with pytest.raises(ConfigError, match="no token"):
        start_on_free_port(start, free_ports(1)[0], insisted=False)
    assert len(tried) == 1


def test_tries_are_bounded_where_somebody_is_always_quicker(sockets: ExitStack) -> None:
    tried: list[int] = []

    def start(port: int) -> None:
        tried.append(port)
        listen(sockets, port)
        listen(sockets, port)

    with pytest.raises(ConfigError, match="does not come up"):
        start_on_free_port(start, free_ports(1)[0], insisted=False)
    assert len(tried) == len(set(tried)) == TRIES_MAX
