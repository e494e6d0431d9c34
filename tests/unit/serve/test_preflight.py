"""What keeps a service from starting on a cluster is said in a sentence that names it."""

from __future__ import annotations

import socket

import pytest

from common.config import load_settings
from common.errors import ConfigError, UnavailableError
from neve.serve.preflight import (
    NotYetError,
    checked_address,
    joining_problem,
    missing_resources,
    secret_remarks,
)


@pytest.mark.parametrize("environ", [{}, {"RAY_ADDRESS": ""}, {"RAY_ADDRESS": "auto"}])
def test_no_address_is_said(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no Ray cluster is configured: set RAY_ADDRESS"):
        checked_address(None, environ)


@pytest.mark.parametrize(
    "address", ["http://head:10001", "head", "ray://head", "head:port", "ray://:10001", "head:0x1"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read, expected ray://host:10001"):
        checked_address(address, {})


def test_an_address_where_nobody_listens_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(
            UnavailableError, match=f"no Ray answers at {address}: Connection refused"
        ):
            checked_address(None, {"RAY_ADDRESS": address})


def test_an_address_where_somebody_listens_is_taken() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert checked_address(address, {"RAY_ADDRESS": "elsewhere:1"}) == address


def test_a_wrong_version_is_told_from_other_errors() -> None:
    version = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.44.1")
    assert "runs another version: Version mismatch" in str(joining_problem("h:1", version))
    other = ConnectionError("reset\nby a peer")
    assert str(joining_problem("h:1", other)) == (
        "the Ray cluster at h:1 cannot be joined: ConnectionError: reset"
    )


@pytest.mark.parametrize(
    ("environ", "got"),
    [
        ({}, "no token, because RAY_AUTH_MODE is not `token`"),
        ({"RAY_AUTH_MODE": "token"}, "no token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, "no token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": __file__}, "a token that it refuses"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "abc"}, "a token that it refuses"),
    ],
)
def test_what_was_shown_in_place_of_the_right_token_is_said(
    environ: dict[str, str], got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    said = str(joining_problem("h:1", RuntimeError("Invalid or missing authentication token")))
    assert f"requires a token, and got {got}: set RAY_AUTH_MODE=token" in said


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (RuntimeError("Version mismatch"), False),
        (RuntimeError("Authentication failed: no token"), False),
        (ConnectionError("ray client connection timeout"), True),
        (RuntimeError("GCS is not ready yet"), True),
    ],
)
def test_what_may_pass_is_tried_again(error: Exception, *, again: bool) -> None:
    assert isinstance(joining_problem("h:1", error), NotYetError) is again


def test_of_a_headline_the_last_line_is_said_too() -> None:
    error = ConnectionAbortedError("Initialization failure:\nTraceback\n  File x\nno channel\n")
    assert str(joining_problem("h:1", error)).endswith("Initialization failure: no channel")


def test_what_no_node_has_is_said_of_service_and_groups() -> None:
    settings = load_settings(
        environ={},
        flags=[
            "cluster.service_resource=neve_service",
            "groups.small.compactors={min=0, max=2}",
            "groups.small.resource=neve_group_small",
            "groups.none.compactors=0",
            "groups.none.resource=neve_group_none",
            "groups.anywhere.compactors=1",
        ],
    )
    room = {"CPU": 4.0, "memory": 8.0 * (1 << 30)}
    said = list(missing_resources(settings, [room]))
    assert [each.partition(";")[0].partition(": coord")[0] for each in said] == [
        "no node has the Ray resource 'neve_service' of setting cluster.service_resource",
        "group small: no node has the Ray resource 'neve_group_small'",
    ]
    both = {"neve_service": 1.0, "neve_group_small": 1.0, **room}
    assert list(missing_resources(settings, [both])) == []
    small = {"neve_service": 1.0, "neve_group_small": 1.0, "CPU": 1.0, "memory": 2.0 * (1 << 30)}
    said = list(missing_resources(settings, [small, room]))
    assert [each.partition(";")[0] for each in said] == [
        "group small: no node with the Ray resource 'neve_group_small' has the 2 CPUs and 2.2 GiB"
        " that its Spark executors require: the largest has 1 and 2.0 GiB"
    ]


def test_secrets_that_rays_head_would_keep_are_named() -> None:
    secret = load_settings(environ={"NEVE_GATEWAY_TOKEN": "t", "NEVE_STORE_URL": "redis://:p@h"})
    assert [secret_remark.split()[1] for secret_remark in secret_remarks(secret)] == [
        "store.url",
        "gateway.token",
    ]
    files = {"NEVE_GATEWAY_TOKEN_FILE": "/run/t", "NEVE_STORE_URL_FILE": "/run/u"}
    assert not [*secret_remarks(load_settings(environ=files))]
    assert not [*secret_remarks(load_settings(environ={"NEVE_STORE_URL": "redis://h:6379"}))]
