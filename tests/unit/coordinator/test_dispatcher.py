"""The simple dispatcher: by kind, and by a request's hints."""

from __future__ import annotations

import pytest

from common.model.job import Kind
from common.model.table import Table, TableSettings
from common.spi.planner import DispatchParameters
from coordinator.plugins.dispatchers import SimpleDispatcher

TABLE = Table(
    id="t1", name="events", location="file:///x", schema=(), settings=TableSettings(service="tidy")
)
ALL = ("big", "tidy", "tidy-system", "tidy-user", "tidy-user-big")


@pytest.mark.parametrize(
    ("kind", "hints", "services", "chosen"),
    [
        (Kind.SYSTEM, {}, ALL, "tidy-system"),
        (Kind.SYSTEM, {}, ("tidy", "tidy-user"), "tidy"),
        (Kind.USER, {}, ALL, "tidy-user"),
        (Kind.USER, {}, ("tidy",), "tidy"),
        (Kind.USER, {"compaction_type": "big"}, ALL, "tidy-user-big"),
        (Kind.USER, {"compaction_type": "huge"}, ALL, "tidy-user"),
        (Kind.USER, {"service": "big"}, ALL, "big"),
        (Kind.USER, {"service": "gone"}, ALL, "tidy-user"),
        (Kind.SYSTEM, {}, ("other",), "tidy"),
    ],
)
def test_the_most_particular_service_is_chosen(
    kind: Kind, hints: dict[str, str], services: tuple[str, ...], chosen: str
) -> None:
    asked = DispatchParameters(table=TABLE, kind=kind, hints=hints, services=services)
    assert SimpleDispatcher().dispatch(asked) == chosen
