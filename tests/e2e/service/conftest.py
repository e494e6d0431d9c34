"""The one stack of this package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.settings import TraceSettings
from tests.support.stack import SETTINGS, Service
from tests.support.stack import service as running_service
from tests.support.trace_receiver import Receiver, trace_receiver


@pytest.fixture(scope="package")
def receiver() -> Iterator[Receiver]:
    """Where the service sends its traces."""
    with trace_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Service]:
    """A service that each test leaves as it was: two compactors, nothing in their hands."""
    settings = replace(SETTINGS, trace=TraceSettings(endpoint=receiver.endpoint))
    with running_service(tmp_path_factory.mktemp("service"), settings) as service:
        yield service
