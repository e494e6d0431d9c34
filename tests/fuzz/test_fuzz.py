"""Damaged Parquet and Arrow, in short: a few hundred inputs, and nobody but readers dies.

The long form is `make hostile`; see docs/reliability.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.run import BLOCK, FILES, STREAMS, Run

pytestmark = [pytest.mark.integration]

BLOCKS = 3


def test_damaged_inputs_end_no_service(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.open():
        run.check_bases()
        for number in range(BLOCKS):
            run.block(number)

    outcome = run.outcome
    assert outcome.violations == []
    wanted = {"append": STREAMS, "add": FILES, "coordinator's look": FILES, "Arrow file": 1}
    for way, each in wanted.items():
        counts = {end: n for end, n in outcome.counts.items() if end.startswith(way)}
        assert sum(counts.values()) == BLOCKS * each, counts
    assert outcome.counts["append read"] > 0
    assert outcome.counts["append refused"] > outcome.counts["append read"]
    assert outcome.counts["import read"] >= BLOCKS, "the sound one beside them"
    assert outcome.peaks["gateway"] > 0


def test_a_seed_is_the_same_input_whenever_it_is_given(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.open():
        run.block(1, only=BLOCK + STREAMS)

    assert run.outcome.violations == []
    assert sum(n for end, n in run.outcome.counts.items() if end.startswith("add ")) == 1
