"""The compactor's actor on real Ray, Spark and Redis; only the coordinator is a stub."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neve.local import LocalStack, StackOptions
from neve.local.ray_head import NODE_RESOURCE

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    home = tmp_path_factory.mktemp("home")
    with LocalStack.start(home=home, options=StackOptions(actors=False)) as stack:
        yield stack


@pytest.mark.parametrize("node_resource", [NODE_RESOURCE, ""], ids=["own", "address"])
def test_a_life_with_a_death_in_it(stack: LocalStack, tmp_path: Path, node_resource: str) -> None:
    words = [stack.redis_url, stack.ray_address, str(tmp_path), node_resource]
    life = subprocess.run(
        [sys.executable, "-m", "tests.support.compactor_life", *words],
        env=stack.driver_environ(),
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert life.returncode == 0, life.stderr
