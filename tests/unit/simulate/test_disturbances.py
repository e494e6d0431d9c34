"""Requests of users, attempts that die, compactors that are lost: what they do to a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import RequestError
from neve.simulate.figures import Outcome
from neve.simulate.report import as_document, as_page
from neve.simulate.world import World
from tests.support.simulated import document, read, world

ASKED = {"requests": {"every": "5m"}}
SLOW = [{"name": "default", "slots": 2, "compactors": 1, "slot_bytes_s": "1MB"}]


def run(written: Mapping[str, Any]) -> Outcome:
    return made(written).outcome


def made(written: Mapping[str, Any]) -> World:
    found = world(written)
    found.run()
    found.check()
    return found


def failing(**rule: object) -> dict[str, Any]:
    return document(cluster={"failures": rule})


# ---------------------------------------------------------------------------------------- Requests


def test_nobody_asks_and_nothing_dies_if_nothing_is_said() -> None:
    found = as_document([run(document())])["variants"][0]
    nothing = {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}
    assert found["requests"] == {"done": 0, "failed": 0, "wait_s": nothing, "time_s": nothing}
    assert set(found["failures"].values()) == {0}


@pytest.mark.parametrize("planner", ["ratio", "size-tiered", "leveled", "bin-pack"])
def test_a_request_brings_all_files_of_a_tablet_to_what_its_planner_wants(planner: str) -> None:
    """Without arrivals of any size a tablet that was asked for has nothing left but results."""
    table = {"planner": planner, "initial": "4MB", "arrivals": {"every": "2h", "size": "1MB"}}
    found = made(document({**table, "tablets": 1, "requests": {"every": "15m"}}))
    outcome = found.outcome

    assert outcome.requests_done >= 1
    assert outcome.requests_failed == 0
    (tablet,) = found.tablets()
    assert any(file.request is not None for file in tablet.files.values())


def test_requests_cost_work_and_their_times_are_told() -> None:
    plain, asked = run(document()), run(document(ASKED))

    assert asked.requests_done == pytest.approx(0.1 * 24 * 12, rel=0.5)
    assert asked.rewritten_bytes > 1.5 * plain.rewritten_bytes
    assert asked.arrived_bytes == plain.arrived_bytes, "the same files come"
    assert asked.request_waits.count == asked.request_times.count == asked.requests_done
    assert asked.request_times.percentile_s(0.5) > asked.request_waits.percentile_s(0.5)
    assert max(sample.open_requests for sample in asked.samples) >= 1
    assert asked.samples[-1].open_requests == 0
    page = as_page([asked], "")
    assert "Requests of users" in page
    assert 'id="open-requests"' in page
    assert 'id="wasted"' not in page


def test_a_boost_lets_requests_start_sooner_on_a_full_cluster() -> None:
    def of(boost: int) -> Outcome:
        busy = {"arrivals": {"every": "40s", "size": "2MB"}, "settings": {"file_limit": 2}}
        asked = {"requests": {"every": "3m", "boost": boost}}
        return run(document({**busy, **asked}, cluster={"group": SLOW}))

    slow, fast = of(0), of(20_000)
    assert slow.requests_done == fast.requests_done > 20
    assert fast.request_waits.percentile_s(0.5) < slow.request_waits.percentile_s(0.5) / 2


def test_no_system_job_begins_in_a_tablet_that_a_request_waits_for() -> None:
    busy = {"arrivals": {"every": "5s", "size": "1MB"}, "requests": {"every": "1m"}}
    group = [{"name": "default", "slots": 4, "compactors": 2, "slot_bytes_s": "2MB"}]
    found = world(document(busy, cluster={"group": group}, simulation={"days": 0.02}))
    waited = 0
    while found.step():
        for tablet in found.tablets():
            shown = found.stored(tablet)
            if shown.waiting:
                waited += 1
                assert not found.queues.jobs_of(tablet.id), "nothing is queued until it selects"
                assert shown.selection is None
    assert waited > 40
    assert found.outcome.requests_done > 5


def test_a_hold_that_expires_lets_the_service_have_the_files() -> None:
    """User jobs wait long behind those over the limit, and the request selects again."""
    busy = {"arrivals": {"every": "40s", "size": "2MB"}, "settings": {"file_limit": 2}}
    found = made(document({**busy, "requests": {"every": "3m"}}, cluster={"group": SLOW}))
    assert found.outcome.request_waits.longest_s > 120
    assert found.outcome.requests_failed == 0
    assert found.outcome.requests_done > 20


# ---------------------------------------------------------------------------------------- Failures


def test_attempts_die_as_often_as_they_are_to_and_their_bytes_are_wasted() -> None:
    outcome = run(failing(attempts=0.2))
    jobs = sum(outcome.jobs.values())

    assert outcome.failed_attempts == pytest.approx(0.25 * jobs, rel=0.35)
    # By chance they die when half of their bytes are read.
    mean = outcome.read_bytes / jobs
    assert outcome.wasted_bytes == pytest.approx(outcome.failed_attempts * mean / 2, rel=0.5)
    assert outcome.samples[-1].wasted_bytes == outcome.wasted_bytes
    assert outcome.at_rest
    assert "Failures" in as_page([outcome], "")


def test_what_failed_is_tried_again_later_by_the_rules_of_the_service() -> None:
    plain, failed = run(document()), run(failing(attempts=0.5))

    assert failed.waits.count == sum(failed.jobs.values()) + failed.failed_attempts
    assert failed.files_per_tablet > plain.files_per_tablet, "files wait while their inputs pause"
    assert failed.arrived_bytes == plain.arrived_bytes


def test_inputs_that_failed_pause_before_they_are_tried_again() -> None:
    found = world(failing(attempts=0.5))
    died_s: dict[str, float] = {}
    running, pauses_s = set[str](), list[float]()
    while found.step():
        now = {job for tablet in found.tablets() for job in tablet.running}
        pauses_s += [found.now_s - died_s.pop(job) for job in now - running if job in died_s]
        left = {file.job for tablet in found.tablets() for file in tablet.files.values()}
        died_s |= dict.fromkeys(running - now - left, found.now_s)
        running = now
    assert len(pauses_s) > 20
    assert min(pauses_s) >= 1.0


def test_compactors_are_lost_and_others_come_in_their_place() -> None:
    group = [{"name": "default", "slots": 2, "compactors": 3, "slot_bytes_s": "1MB"}]
    rule = {"compactor_life": "10m", "restart": "1m"}
    limited = {"group": group, "failures": rule, "volumes": {"default": "4MB"}}
    for cluster in ({"group": group, "failures": rule}, limited):
        found = made(document({"arrivals": {"every": "20s"}}, cluster=cluster))
        outcome = found.outcome
        # Of three compactors one is lost in about 11 minutes, life and restart together.
        assert outcome.lost_compactors == pytest.approx(3 * 144 / 11, rel=0.4)
        assert outcome.lost_attempts > 0
        assert outcome.failed_attempts == 0
        assert outcome.wasted_bytes > 0
        assert found.groups["default"].count == 3
        assert min(sample.compactors for sample in outcome.samples) == 3, "starting ones count"
        assert outcome.at_rest


def test_a_lost_compactor_is_away_until_it_has_started_again() -> None:
    def busy_hours(restart: str) -> float:
        rule = {"compactor_life": "10m", "restart": restart}
        cluster = {"group": SLOW, "failures": rule}
        return run(document({"arrivals": {"every": "30s"}}, cluster=cluster)).drain_s

    assert busy_hours("1h") > busy_hours("1s")


def test_the_same_seed_lets_the_same_die() -> None:
    written = document(ASKED, cluster={"failures": {"attempts": 0.1, "compactor_life": "30m"}})
    one, same = run(written), run(written)
    other = run({**written, "simulation": {**written["simulation"], "seed": 2}})
    assert as_document([one]) == as_document([same])
    assert (
        as_document([one])["variants"][0]["failures"]
        != (as_document([other])["variants"][0]["failures"])
    )


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    planner=st.sampled_from(["ratio", "size-tiered", "leveled", "bin-pack"]),
    attempts=st.sampled_from([0.0, 0.3]),
    limited=st.booleans(),
    seed=st.integers(1, 1000),
)
def test_whatever_dies_all_bytes_are_accounted_for(
    planner: str, attempts: float, limited: bool, seed: int
) -> None:
    table = {"planner": planner, "requests": {"every": "4m"}, "arrivals": {"every": "1m"}}
    cluster = {
        "failures": {"attempts": attempts, "compactor_life": "5m", "restart": "20s"},
        **({"volumes": {"default": "20MB"}} if limited else {}),
    }
    found = world(document(table, cluster=cluster, simulation={"days": 0.02, "seed": seed}))
    steps = 0
    while found.step():
        steps += 1
        if not steps % 50:
            found.check()
    found.check()


# ----------------------------------------------------------------------------- The specification


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (document({"requests": {"every": "0s"}}), "requests.every is 0 s, expected 0.1 s to"),
        (document({"requests": {"often": 1}}), "requests: .*'often'|requests.often"),
        (document({"requests": {"boost": -1}}), "requests.boost is -1, expected 0 to 20000"),
        (document({"requests": {"every": 0.1}}, simulation={"days": 10}), "requests would be made"),
        (failing(attempts=1.0), "cluster.failures.attempts is 1, expected 0 to 0.9"),
        (failing(compactor_life="1s"), "cluster.failures.compactor_life is 1 s, expected 60 s"),
        (failing(attempt=0.1), "failures.*'attempt'"),
    ],
)
def test_what_is_wrong_is_said(written: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read(written)
