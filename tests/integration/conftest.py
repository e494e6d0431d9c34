"""What tests of single parts on real Redis and real storage share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.recovery import Ground, ground_on
from tests.support.redis_server import RedisServer, redis_server

__all__ = ["redis_server"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def ground(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Ground]:
    """Tables in a folder, and their metadata in an empty Redis."""
    async with ground_on(redis_server, tmp_path) as made:
        yield made
