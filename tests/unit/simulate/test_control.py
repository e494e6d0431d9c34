"""Controllers in a simulation: what they decide holds."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import RequestError
from neve.simulate.specification import read_specifications
from neve.simulate.world import World
from tests.support.simulated import document, read, world

GROUP = {"name": "default", "slots": 4, "compactors": 2, "slot_bytes_s": "10MB"}


def loaded(control: dict[str, Any], **more: Any) -> World:
    table = {"arrivals": {"every": "10s", "size": "2MB"}}
    written = document(
        table,
        control=control,
        cluster={"group": [GROUP]},
        simulation={"days": 0.02, "drain_max": "1h"},
        **more,
    )
    return world(written)


def test_rewrites_move_no_more_bytes_than_the_controller_may_give() -> None:
    limit = 2_000_000
    made = loaded({"controller": "static", "bytes_s_max": limit, "period": "5s"})
    outcome = made.run()
    made.check()

    # Whatever is read is written again, but for the seconds before the first decision.
    moved_bytes = 2 * outcome.read_bytes
    assert 0.9 < moved_bytes / (limit * (outcome.ended_s + 60)) <= 1.0
    free = loaded({"controller": "static"})
    assert free.run().ended_s < outcome.ended_s


def test_jobs_that_nobody_waits_for_have_the_slots_of_the_decision() -> None:
    table = {"settings": {"file_limit": 0}}
    made = world(
        document(
            {**table, "arrivals": {"every": "10s", "size": "2MB"}},
            control={"controller": "static", "options": {"slots": 1}, "period": "1s"},
            cluster={"group": [GROUP]},
            simulation={"days": 0.01},
        )
    )
    most = 0
    while made.step():
        if made.now_s > 5:
            most = max(most, sum(len(group.running) for group in made.groups.values()))
    assert most == 1


def test_a_larger_backlog_raises_the_shares_of_system_work() -> None:
    control = {"controller": "control-points", "memory": "20MB", "period": "1s"}
    made = loaded(control)
    assert made.control is not None
    seen: set[float] = set()
    while made.step():
        seen.add(round(made.control.decision.shares["system"]))  # type: ignore[index]  # a StrEnum
    assert max(seen) > min(seen)


def test_controllers_are_set_side_by_side_with_planners() -> None:
    found = read_specifications(
        document(), lambda name: name, ["ratio", "size-tiered"], ["static", "debt"]
    )
    assert [each.variant for each in found] == [
        "ratio, static",
        "ratio, debt",
        "size-tiered, static",
        "size-tiered, debt",
    ]
    assert [each.control.name for each in found if each.control] == ["static", "debt"] * 2


def test_options_are_of_the_controller_that_they_were_written_for() -> None:
    control = {"controller": "drain-time", "options": {"goal": "5m"}, "period": "2s"}
    variants = [{"name": "a"}, {"name": "b", "controller": "debt"}]
    one, other = read_specifications(document(control=control, variant=variants), lambda name: name)
    assert one.control is not None
    assert other.control is not None
    assert (one.control.options, other.control.options) == ({"goal": "5m"}, {})
    assert other.control.rules.period_s == 2.0


def test_there_is_no_controller_unless_somebody_asks_for_one() -> None:
    assert read(document()).control is None
    assert world(document()).control is None


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        ({}, "control.controller is missing, expected a text"),
        ({"controller": "stattic"}, "control.controller: "),
        (
            {"controller": "debt", "options": {"x": 1}},
            "control.options: controller debt: option 'x' is unknown",
        ),
        ({"controller": "static", "period": 0}, "control.period is 0 s, expected 1 s to 3600 s"),
        ({"controller": "static", "memory": -1}, "control.memory"),
        ({"controller": "static", "hysteresis": 2}, "control.hysteresis is 2, expected 0 to 0.9"),
        ({"controller": "static", "shares": 2}, "control.shares: key 'shares' is unknown"),
    ],
)
def test_a_wrong_controller_is_named(control: dict[str, Any], expected: str) -> None:
    with pytest.raises(RequestError) as raised:
        read(document(control=control))
    assert expected in str(raised.value)


def test_controllers_hear_how_deep_tablets_are_now_and_not_how_deep_they_were() -> None:
    made = loaded({"controller": "debt", "period": "1s"})
    depths: list[int] = []
    while made.step():
        depths.append(made._facts().deepest_files)
    assert made.outcome.at_rest
    assert max(depths) > 1
    assert depths[-1] == 0, "no work waits in the end"
    assert min(depths[depths.index(max(depths)) :]) < max(depths)
