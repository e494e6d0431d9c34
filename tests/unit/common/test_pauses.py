"""Loops of a process wake it up together."""

from __future__ import annotations

import asyncio

import pytest

from common.runtime import pause


@pytest.mark.parametrize(
    ("now_s", "interval_s", "waited_s"),
    [
        (10.1, 0.25, 0.15),
        (10.1, 0.5, 0.4),
        (10.1, 2.0, 1.9),
        (10.0, 0.5, 0.5),
        (9.9999, 0.25, 0.2501),
    ],
)
def test_a_pause_ends_at_a_multiple_of_its_interval(
    monkeypatch: pytest.MonkeyPatch, now_s: float, interval_s: float, waited_s: float
) -> None:
    waits: list[float] = []

    async def sleep(delay_s: float) -> None:
        waits.append(delay_s)

    async def pause_at() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await pause(interval_s)

    asyncio.run(pause_at())
    assert waits == [pytest.approx(waited_s)]
