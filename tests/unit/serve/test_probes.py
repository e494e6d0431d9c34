"""Probes over real HTTP: what they answer, and what a bad caller gets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from common.errors import ConfigError
from neve.serve.watchdog import Health, Probes


@pytest.fixture
def state() -> dict[str, bool]:
    return {"live": True, "ready": False}


@pytest.fixture
def probes(state: dict[str, bool]) -> Iterator[Probes]:
    served = Probes(
        "127.0.0.1",
        0,
        live=lambda: Health(state["live"], {"last_round_s": 1.0}),
        ready=lambda: Health(state["ready"], {"waiting": {"gateway": "it starts"}}),
    )
    yield served
    served.close()


def ask(probes: Probes, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", probes.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_each_probe_answers_for_itself(probes: Probes, state: dict[str, bool]) -> None:
    assert ask(probes, "/live") == (200, '{"last_round_s": 1.0}\n')
    status, body = ask(probes, "/ready")
    assert (status, json.loads(body)) == (503, {"waiting": {"gateway": "it starts"}})
    state["ready"] = True
    assert ask(probes, "/ready")[0] == 200


def test_other_paths_and_methods_are_refused(probes: Probes) -> None:
    assert ask(probes, "/" + "x" * 5000)[0] == 404
    assert ask(probes, "/live", method="POST")[0] == 501


def test_a_caller_that_says_nothing_holds_nobody_up(probes: Probes) -> None:
    with socket.create_connection(("127.0.0.1", probes.port)):
        assert ask(probes, "/live")[0] == 200


def test_a_port_in_use_is_said(probes: Probes) -> None:
    def well() -> Health:
        return Health(True, {})

    with pytest.raises(ConfigError, match="choose another --health-port"):
        Probes("127.0.0.1", probes.port, live=well, ready=well)
