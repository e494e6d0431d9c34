"""The one stack of this package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stack import Service
from tests.support.stack import service as running_service


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that each test leaves as it was: two compactors, nothing in their hands."""
    with running_service(tmp_path_factory.mktemp("service")) as service:
        yield service
