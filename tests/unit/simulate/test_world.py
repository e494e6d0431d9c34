"""Whole runs: what is always true of them, and figures that are known from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.bench_planning import ACCUMULO, AMPLIFICATION_ROUNDS
from common.errors import PluginError, RequestError
from common.model.job import Plan
from common.spi.planner import PlanParameters
from coordinator.plugins.planners.leveled import level_of, levels_of
from neve.simulate import world as module
from neve.simulate.figures import Outcome
from neve.simulate.report import as_document
from neve.simulate.tablet import alive_part
from tests.support.simulated import document, read, world

ROUND_S = 60
FAST = {"name": "default", "slots": 100, "compactors": 1, "slot_bytes_s": "1000000GB"}


def run(written: Mapping[str, Any]) -> Outcome:
    made = world(written)
    outcome = made.run()
    made.check()
    return outcome


# ------------------------------------------------------------------------- Known from elsewhere


# The planner's property test has all rates; a few show that the simulator spends the same.
@pytest.mark.parametrize("files", [1, 5, 15])
def test_write_amplification_of_ratio_is_accumulos(files: int) -> None:
    """So many files of 1,000 bytes a round; all that is planned is done before the next round."""
    written = {
        "simulation": {"days": (AMPLIFICATION_ROUNDS + 0.5) * ROUND_S / 86_400, "sample": "1h"},
        "table": [
            {
                "name": "events",
                "settings": {"ratio": 3, "max_files": 10, "file_limit": 15},
                "arrivals": {"every": ROUND_S, "regular": True, "files": files, "size": 1000},
            }
        ],
        "cluster": {"group": [FAST]},
    }
    outcome = run(written)

    assert outcome.arrived_bytes == AMPLIFICATION_ROUNDS * files * 1000
    assert outcome.write_amplification == pytest.approx(ACCUMULO[files], rel=0.01)


def test_a_limited_volume_rewrites_no_faster_than_it_may() -> None:
    limit = 2_000_000
    outcome = run(
        document(
            {"arrivals": {"every": "20s", "size": "4MB"}},
            cluster={"volumes": {"default": limit}},
            simulation={"days": 0.02},
        )
    )
    assert outcome.at_rest
    assert outcome.read_bytes <= limit * outcome.ended_s
    # All that is to be done takes longer than files arrive: the volume is never idle.
    assert outcome.ended_s > outcome.length_s
    assert outcome.read_bytes == pytest.approx(limit * outcome.ended_s, rel=0.1)


def test_what_a_volume_does_not_limit_is_as_fast_as_without_it() -> None:
    plain = run(document())
    wide = run(document(cluster={"volumes": {"default": "1000GB"}}))

    assert wide.rewritten_bytes == pytest.approx(plain.rewritten_bytes, rel=0.01)
    assert wide.busy_slot_s == pytest.approx(plain.busy_slot_s, rel=0.01)


def test_updates_are_merged_away_and_deletes_with_what_they_delete() -> None:
    arrivals = {"every": "1m", "size": "200KB", "updates": 0.8, "deletes": 0.2}
    table = {"keys": 20_000, "initial": "2MB", "settings": {"tombstone_retention": "1m"}}
    made = world(document({**table, "arrivals": arrivals}))
    outcome = made.run()
    made.check()

    # Of 5 tablets with 20,000 keys each never more can be seen than these.
    most = 5 * 20_000 * 100
    assert outcome.samples[-1].live_bytes <= most
    assert outcome.dropped_bytes > outcome.arrived_bytes / 2
    assert outcome.space_amplification > 1.0


def test_rows_expire_where_a_table_says_so() -> None:
    table = {"keyed": False, "settings": {"ttl": "30m"}, "planner": "time-window"}
    arrivals = {"every": "1m", "size": "100KB"}
    made = world(document({**table, "arrivals": arrivals}))
    outcome = made.run()
    made.check()

    # Half an hour of arrivals is alive; the rest waits until a window has expired as a whole.
    assert outcome.samples[-1].live_bytes == pytest.approx(5 * 30 * 102_400, rel=0.2)
    assert outcome.dropped_bytes > 0
    assert outcome.jobs["drop"] > 0
    for tablet in made.tablets():
        for file in tablet.files.values():
            assert alive_part(file, -float("inf")) is not None


@pytest.mark.parametrize("planner", ["ratio", "size-tiered", "leveled", "time-window", "bin-pack"])
def test_planners_that_need_not_explain_decide_the_same(planner: str) -> None:
    table = {"planner": planner, "keyed": planner != "time-window"}
    arrivals = {"every": "30s", "size": "1MB", "size_spread": 1.0}
    written = document({**table, "arrivals": arrivals}, simulation={"days": 0.03})
    silent, telling = world(written), world(written)
    for each in telling.tables:
        assert each.parameters["explains"] is False
        each.parameters["explains"] = True

    assert as_document([telling.run()]) == as_document([silent.run()])
    assert sum(silent.outcome.jobs.values()) > 20


def test_outputs_of_a_cut_have_no_key_in_common() -> None:
    """Otherwise `leveled` takes them for files of level 0, and never comes to rest."""
    table = {"tablets": 1, "planner": "leveled", "settings": {"target_bytes": 2 << 20}}
    found = world(document({**table, "arrivals": {"every": "1m", "size": "1MB"}}))
    outcome = found.run()
    (tablet,) = found.tablets()
    levels = levels_of(tablet.files.values())

    assert outcome.at_rest
    assert len(levels[1].files) > 2
    tagged = [file for file in tablet.files.values() if level_of(file)]
    assert sum(len(level.files) for level in levels[1:]) == len(tagged)


def test_a_slow_cluster_lets_work_wait_and_a_fast_one_does_not() -> None:
    table = {"arrivals": {"every": "15s", "size": "4MB"}}
    group = {"name": "default", "slots": 1, "compactors": 1}
    slow, fast = (
        run(document(table, cluster={"group": [{**group, "slot_bytes_s": speed}]}))
        for speed in ("3MB", "200MB")
    )
    assert slow.waits.percentile_s(0.99) > 60 > fast.waits.percentile_s(0.99)
    assert slow.backlog_bytes > 10 * fast.backlog_bytes
    assert slow.drain_s > fast.drain_s
    assert slow.files_per_tablet > fast.files_per_tablet


def test_compactors_come_with_a_burst_and_leave_after_it() -> None:
    burst = {"at": "30m", "for": "20m", "times": 30}
    group = {"name": "default", "slots": 1, "compactors": {"min": 1, "max": 5}}
    group |= {"slot_bytes_s": "2MB", "start": "20s"}
    outcome = run(
        document(
            {"arrivals": {"every": "2m", "size": "1MB", "burst": [burst]}},
            cluster={"group": [group], "autoscaler": {"drain_target": "1m"}},
            simulation={"days": 0.2, "sample": "2m"},
        )
    )
    counts = [sample.compactors for sample in outcome.samples]
    assert counts[0] == 1
    assert max(counts) == 5
    assert counts[-1] <= 2, "most of them have left"
    hours = outcome.ended_s / 3600
    assert hours < outcome.compactor_hours < 5 * hours


def test_a_full_queue_sheds_jobs_which_are_planned_again() -> None:
    table = {"tablets": 40, "arrivals": {"every": "20s", "size": "4MB"}}
    written = document(table, cluster={"queue_jobs": 2}, simulation={"days": 0.01})
    made = world(written)
    outcome = made.run()

    assert outcome.deferred > 0
    assert outcome.at_rest
    for tablet in made.tablets():
        made._plan(tablet)
    assert not len(made.queues), "planners want something, but nobody did it"


def test_a_job_that_was_evicted_for_one_of_its_own_plan_is_let_in_again() -> None:
    """Several jobs of one plan, in a queue for a few of them."""
    table = {
        "tablets": 1,
        "planner": "bin-pack",
        "keyed": False,
        "settings": {"target_bytes": "4MB"},
        "arrivals": {"every": 5, "size": "1MB", "size_spread": 1.0, "files": 3},
    }
    group = {"name": "default", "slots": 2, "compactors": 2, "slot_bytes_s": "100KB"}
    cluster = {"group": [group], "queue_jobs": 5, "volumes": {"default": "150KB"}}
    basic = {"days": 0.006, "seed": 0, "drain_max": "5m"}
    outcome = run(document(table, cluster=cluster, simulation=basic))

    assert outcome.deferred > 0
    assert outcome.jobs["rewrite"] > 10


def test_a_run_that_is_not_done_says_so() -> None:
    group = {"name": "default", "slots": 1, "compactors": 1, "slot_bytes_s": 1000}
    outcome = run(document(cluster={"group": [group]}, simulation={"drain_max": "10m"}))

    assert not outcome.at_rest
    assert outcome.ended_s <= outcome.length_s + 600


# ------------------------------------------------------------------------------- Always true


KINDS = [
    {"planner": "ratio"},
    {"planner": "size-tiered"},
    {"planner": "leveled", "settings": {"target_bytes": "2MB"}},
    {"planner": "budgeted"},
    {"planner": "ratio", "keyed": False},
    {"planner": "bin-pack", "keyed": False, "settings": {"target_bytes": "4MB"}},
    {"planner": "time-window", "keyed": False, "settings": {"ttl": "20m"}},
    {
        "planner": "time-chunk",
        "keyed": False,
        "options": {"granularity": "1h", "skip_offset": "10m"},
    },
    {"planner": "log-segment"},
]


@st.composite
def specifications(draw: st.DrawFn) -> dict[str, Any]:
    table = dict(draw(st.sampled_from(KINDS)))
    arrivals: dict[str, Any] = {
        "every": draw(st.sampled_from([10, 40])),
        "size": draw(st.sampled_from(["10KB", "1MB"])),
        "size_spread": draw(st.sampled_from([0.0, 1.0])),
        "files": draw(st.integers(1, 3)),
    }
    if table.get("keyed", True):
        arrivals |= {"updates": draw(st.sampled_from([0.0, 0.5])), "deletes": 0.1}
        table |= {"keys": draw(st.sampled_from([1, 1000, 10**6])), "initial": "1MB"}
        table.setdefault("settings", {})
        table["settings"] = {**table["settings"], "tombstone_retention": "2m"}
    else:
        arrivals |= {"late": 0.2, "late_max": "30m"}
    table |= {"tablets": draw(st.integers(1, 3)), "arrivals": arrivals}
    cluster: dict[str, Any] = {
        "queue_jobs": draw(st.sampled_from([2, 1000])),
        "group": [
            {
                "name": "default",
                "slots": draw(st.integers(1, 3)),
                "compactors": {"min": draw(st.integers(0, 1)), "max": 2},
                "slot_bytes_s": draw(st.sampled_from(["100KB", "50MB"])),
            }
        ],
    }
    if draw(st.booleans()):
        cluster["volumes"] = {"default": "150KB"}
    basic = {"days": 0.004, "seed": draw(st.integers(0, 1000)), "drain_max": "5m"}
    return document(table, cluster=cluster, simulation=basic)


@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(written=specifications())
def test_bytes_and_files_are_conserved_and_slots_never_exceeded(written: dict[str, Any]) -> None:
    """`check` holds bytes and files together, and refuses a file that is an input of two jobs."""
    made = world(written)
    before_s, steps = 0.0, 0
    while made.step():
        assert made.now_s >= before_s
        before_s = made.now_s
        steps += 1
        if not steps % 20:
            made.check()
        running = sum(len(group.running) for group in made.groups.values())
        slots = sum(
            compactor.slots
            for group in made.groups.values()
            for compactor in group.compactors.values()
        )
        assert running <= slots
    made.check()


def test_a_seed_gives_the_same_run_and_another_one_another() -> None:
    table = {"arrivals": {"every": "1m", "size_spread": 0.5, "updates": 0.3}, "key_skew": 0.7}
    one, same, other = (
        as_document([run(document(table, simulation={"seed": seed}))]) for seed in (5, 5, 6)
    )
    assert one == same
    assert one != other


# ------------------------------------------------------------------------------ What goes wrong


class _Broken:
    def plan(self, parameters: PlanParameters) -> Plan:
        raise ZeroDivisionError(parameters.table_name)


def test_a_planner_that_fails_ends_the_run_in_a_sentence() -> None:
    made = world(document())
    object.__setattr__(made.tables[0].rule, "planner", _Broken())

    with pytest.raises(PluginError, match="planner ratio: ZeroDivisionError: events"):
        made.run()


def test_files_beyond_what_memory_holds_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES_MAX", 30)
    group = {"name": "default", "slots": 1, "compactors": 1, "slot_bytes_s": 1}

    with pytest.raises(RequestError, match="compaction does not keep up"):
        run(document(cluster={"group": [group]}))


def test_progress_is_told_in_seconds_of_the_run() -> None:
    heard: list[float] = []
    arrivals = {"every": "1s", "size": 1000}
    made = world(document({"arrivals": arrivals}, simulation={"days": 0.02}))
    made.run(heard.append)

    assert len(heard) > 3
    assert heard == sorted(heard)
    assert read(document()).length_s == 8640.0
