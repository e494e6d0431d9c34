"""What holds for the plans of every planner, however it plans."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from common.model.file import DataFile
from common.model.job import Kind
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.plugins import PLANNERS, load_planner
from common.spi.planner import PlanParameters, RunningJob
from coordinator.plugins.planners.size_tiered import moment
from tests.support.planning import parameters

pytestmark = pytest.mark.unit

EVERY = pytest.mark.parametrize("name", PLANNERS.built_in)
TYPES = (KeyType.INT,)
NOW_S = 1_000_000.0


def asked(seed: int, kind: Kind = Kind.SYSTEM) -> PlanParameters:
    """Return a tablet of files with sizes, keys and times by chance."""
    chance = Random(seed)
    files = {}
    for number in range(chance.choice((3, 12, 40))):
        low, at_s = chance.randrange(100), NOW_S - chance.randrange(500_000)
        files[f"f{number}"] = DataFile(
            path=f"f{number}",
            size_bytes=chance.choice((10_000, 1_000_000, 60_000_000)),
            rows=100,
            key_min=encode_key([low], TYPES),
            key_max=encode_key([low + chance.choice((1, 50))], TYPES),
            time_min_s=at_s,
            time_max_s=at_s + 100.0,
            added_at_s=NOW_S - chance.randrange(5000),
        )
    known = parameters(files, kind=kind)
    return replace(known, now_s=NOW_S, timed=True, key_types=TYPES)


@EVERY
@pytest.mark.parametrize("seed", range(6))
def test_a_plan_without_reasons_has_the_same_jobs(name: str, seed: int) -> None:
    planner, wanted = load_planner(name), asked(seed)
    explained = planner.plan(wanted)
    plain = planner.plan(replace(wanted, explains=False))
    assert plain.jobs == explained.jobs
    assert plain.left in ({}, explained.left)


@pytest.mark.parametrize("name", [name for name in PLANNERS.built_in if name != "budgeted"])
def test_a_request_without_candidates_and_a_running_job_without_files_plan_nothing(
    name: str,
) -> None:
    # The core asks no planner about nothing; `budgeted` relies on that.
    wanted = replace(asked(1, Kind.USER), candidates=())
    assert not load_planner(name).plan(wanted).jobs
    empty = RunningJob(kind=Kind.SYSTEM, files=())
    system = replace(asked(1), candidates=(), running=(empty,))
    assert not load_planner(name).plan(system).jobs


def test_a_time_that_no_calendar_has_is_shown_as_a_number() -> None:
    assert moment(0.0) == "1970-01-01 00:00 UTC"
    assert moment(1e15) == "second 1000000000000000"
