"""The closed loop of `make bench-control`: its schedule, its simulation, and what the page says."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from itertools import takewhile
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from benchmarks.closed_loop import simulated
from benchmarks.closed_loop.__main__ import CONTROLLERS, pairs_of
from benchmarks.closed_loop.capacity import Capacity
from benchmarks.closed_loop.figures import JOB_BYTES, Pair, course, report
from benchmarks.closed_loop.picture import FORETOLD, LEFT, REAL, WIDTH, picture
from benchmarks.closed_loop.schedule import Phase, part_at, phases
from benchmarks.closed_loop.simulated import Moment

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs"
RECORDED = DOCS / "control" / "closed-loop"
CAPACITY = Capacity(**json.loads((RECORDED / "capacity.json").read_text("utf-8")))
PLAN = phases()
MIB = 1024**2


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    """The recorded runs, and the same simulated now."""
    return pairs_of(RECORDED, PLAN, CAPACITY, CONTROLLERS)


def test_a_burst_is_three_times_the_rate_for_a_tenth_of_a_phase() -> None:
    phase = PLAN[1]
    rates = [part_at(PLAN, phase.begin_s + second) for second in range(70)]
    assert rates.count(0.2) == 63
    assert [rate for rate in rates if rate != 0.2] == pytest.approx([0.6] * 7)
    assert part_at(PLAN, 0.0) == part_at(PLAN, PLAN[-1].end_s) == 0.0


def test_the_time_to_return_counts_from_the_beginning_of_the_burst() -> None:
    phase = Phase(name="p", begin_s=100.0, length_s=50.0, part=0.5)
    backlogs = {99: 90, 105: 3, 119: 4, 121: 5, 124: 9, 130: 6, 133: 4, 140: 7, 151: 0}
    found = [Moment(float(at_s), backlog * MIB, 0.0) for at_s, backlog in backlogs.items()]
    seen = course(phase, found)
    assert (seen.level_bytes, seen.peak_bytes, seen.returned_s) == (4 * MIB, 9 * MIB, 13.0)
    assert course(phase, found[:-3]).returned_s is None


@pytest.mark.parametrize("number", range(len(CONTROLLERS)))
def test_each_controller_brings_the_backlog_back_after_every_burst(
    pairs: list[Pair], number: int
) -> None:
    pair = pairs[number]
    for phase in (each for each in PLAN if each.part):
        assert course(phase, pair.real).returned_s is not None, phase
        seen = course(phase, pair.foretold)
        *_, last = (each for each in pair.foretold if each.at_s < phase.end_s)
        assert last.backlog_bytes <= seen.level_bytes + JOB_BYTES < seen.peak_bytes + 2 * JOB_BYTES


def test_shares_rise_with_the_load_where_a_controller_decides(pairs: list[Pair]) -> None:
    for pair in pairs:
        mean = [
            sum(each.system_shares for each in own) / len(own)
            for phase in PLAN
            if phase.part
            for own in [[m for m in pair.foretold if phase.begin_s <= m.at_s < phase.end_s]]
        ]
        assert (mean == [100.0] * 3) if pair.controller == "static" else (mean == sorted(mean))


def test_the_specification_beside_the_page_is_that_of_the_recorded_run(pairs: list[Pair]) -> None:
    arrived = simulated.arrived_part(PLAN, CAPACITY, [pair.real for pair in pairs])
    document: dict[str, Any] = tomllib.loads((RECORDED / "simulated.toml").read_text("utf-8"))
    variants = document.pop("variant")
    assert [variant["name"] for variant in variants] == list(CONTROLLERS)
    for variant in variants:
        own = variant.get("control", {"options": {}})
        control = {"controller": variant["controller"], **own, **document["control"]}
        wanted = simulated.document(PLAN, CAPACITY, variant["controller"], arrived)
        assert {**document, "control": control} == wanted


def test_the_page_shows_what_the_recorded_samples_say(pairs: list[Pair]) -> None:
    page = (DOCS / "control.md").read_text("utf-8")
    real = [
        line
        for line in takewhile(bool, report(PLAN, pairs, CAPACITY.arrivals_bytes_s))
        if line not in page
    ]
    assert real == [], "draw it again: python -m benchmarks.closed_loop --step figures"


def test_the_picture_has_each_curve_beside_the_simulated_one(pairs: list[Pair]) -> None:
    drawn = [each for each in fromstring(picture(PLAN, pairs)) if each.tag.endswith("polyline")]
    colours = Counter(each.get("stroke") for each in drawn)
    assert colours == {REAL: 3 * len(pairs), FORETOLD: 2 * len(pairs)}
    widest = [
        float(point.split(",")[0]) for each in drawn for point in each.get("points", "").split()
    ]
    assert LEFT <= min(widest) <= max(widest) <= LEFT + WIDTH
