"""Chaos on the real stack, in short: a few faults, rest, and every row where it belongs.

`make test` has each fault alone, in tests/e2e. The long form of this is `make chaos`; see
docs/reliability.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.local.servers import AppendSync
from tests.chaos.run import Wanted, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

SEED = 23902
"""Its first faults kill nine parts, the supervisor among them, and freeze a compactor for long."""
FAULTS = 6
LENGTH_S = 50.0


def test_a_short_life_among_deaths(tmp_path: Path) -> None:
    wanted = Wanted(
        seed=SEED,
        sync=AppendSync.ALWAYS,
        faults_max=FAULTS,
        length_s=LENGTH_S,
    )
    result = run(tmp_path / "run", wanted, print)
    story = tmp_path / "run" / "story.jsonl"
    assert not result.failures, f"{result.failures}\nthe story: {story}"
    assert result.faults > 0
    assert result.numbers["scans"] > 0
    assert result.numbers["adds"] + result.numbers["appends"] > 0
    assert result.numbers["buffered calls"] > 0
    assert result.numbers["segments flushed"] > 0
