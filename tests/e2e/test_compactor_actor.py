"""The compactor's actor on real Ray, Spark and Redis; only the coordinator is a stub."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from neve.local import LocalStack, StackOptions
from neve.local.machine import free_ports
from neve.local.servers import NODE_RESOURCE
from tests.support.installed_stack import InstalledStack
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def dashboard_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, dashboard_port: int) -> Iterator[LocalStack]:
    home = tmp_path_factory.mktemp("home")
    # Ray serves its metrics only beside its dashboard.
    options = StackOptions(actors=False, dashboard_port=dashboard_port)
    with InstalledStack.start(home=home, options=options) as stack:
        yield stack


def test_jobs_of_ray_are_taken_from_who_shows_its_token(
    stack: LocalStack, dashboard_port: int
) -> None:
    """Whoever may submit a job runs what he likes, as the stack's user."""
    token = stack.folder.ray_token_file.read_text().strip()
    url = f"http://127.0.0.1:{dashboard_port}/api/jobs/"
    order = {"entrypoint": "true"}

    def code(shown: str, order: dict[str, str] | None = None) -> int:
        headers = {"Authorization": f"Bearer {shown}"} if shown else {}
        method = "GET" if order is None else "POST"
        return httpx.request(
            method, url, headers=headers, json=order, timeout=PATIENCE_S
        ).status_code

    for stranger in ("", "0" * 64):
        assert {code(stranger), code(stranger, order)} <= {401, 403}
    assert code(token) == 200


@pytest.mark.parametrize(
    "node_resource",
    [
        pytest.param(NODE_RESOURCE, id="own"),
        pytest.param("", id="address", marks=pytest.mark.long),
    ],
)
def test_a_life_with_a_death_in_it(stack: LocalStack, tmp_path: Path, node_resource: str) -> None:
    _live(stack, tmp_path, node_resource, "whole")


def test_jobs_are_handed_back_before_ray_takes_the_node_away(
    stack: LocalStack, tmp_path: Path
) -> None:
    """The last test here: nothing else can be done with the node."""
    _live(stack, tmp_path, NODE_RESOURCE, "drained")


def _live(stack: LocalStack, folder: Path, node_resource: str, life: str) -> None:
    words = [stack.redis_url, stack.ray_address, str(folder), node_resource, life]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.compactor_life", *words],
        env=stack.driver_environ(),
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
