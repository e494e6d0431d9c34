"""Every order of events of a small Iceberg table keeps its rows, and no guard can be left out.

As `test_lake_model.py`, with sequence numbers, position deletes and equality deletes.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.iceberg_model import IcebergExplorer
from tests.support.lake_model import Model, Scenario, ViolationError, without

pytestmark = pytest.mark.sim

SCENARIOS = {
    "deletes by position": Scenario(
        {"append": 1, "position": 2, "copy": 1, "lost": 1}, first_deletes=(0,)
    ),
    "deletes by value": Scenario({"append": 1, "equality": 2, "lost": 1}),
    "rows that are inserted again": Scenario({"upsert": 2, "position": 1}),
    "positions and values": Scenario({"equality": 1, "position": 2, "upsert": 1}),
    "two outputs": Scenario({"position": 1, "copy": 1, "equality": 1, "compact": 1}, "two"),
    "an input in two outputs": Scenario({"position": 1, "copy": 1, "equality": 1}, "split"),
    "unknown positions": Scenario({"append": 1, "position": 1, "equality": 1}, "sorted"),
    "rollbacks": Scenario(
        {"rollback": 2, "append": 1, "position": 1, "equality": 1, "lost": 1}, first_deletes=(1,)
    ),
    "files that are added again": Scenario({"put_back": 1, "equality": 2, "position": 1}),
    "lost, late and false answers": Scenario(
        {"append": 1, "late": 1, "lost": 1, "false": 1, "position": 1}
    ),
    "zombies and late requests": Scenario(
        {"append": 1, "late": 1, "death": 1, "release": 1, "rollback": 1}, attempts=2
    ),
    "expired snapshots": Scenario({"append": 2, "expire": 2, "late": 1, "lost": 1, "release": 1}),
    "another branch": Scenario({"branch": 1, "late": 1, "append": 1, "rollback": 1, "release": 1}),
    "days and orphans": Scenario({"day": 1, "orphans": 1, "append": 1, "release": 1, "lost": 1}),
    "a Redis that forgets": Scenario({"redis": 1, "append": 1, "late": 1}, attempts=2),
}
LONG = {
    "all writers": Scenario(
        {
            "append": 1,
            "position": 1,
            "upsert": 1,
            "copy": 1,
            "compact": 1,
            "rollback": 1,
            "lost": 1,
        },
        "two",
        first_deletes=(0,),
    ),
    "two attempts with all that may fail": Scenario(
        {"append": 1, "position": 1, "late": 1, "lost": 1, "death": 1, "release": 2, "redis": 1},
        attempts=2,
    ),
}
LARGE = {"zombies and late requests", "a Redis that forgets", "rollbacks", "expired snapshots"}
AS_DELTA = {"a Redis that forgets", "lost, late and false answers"}
"""Scenarios of rules that both formats share: `test_lake_model.py` has the same in each run."""


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    slow = name in LARGE | AS_DELTA
    return [pytest.mark.slow] * slow + [pytest.mark.long] * (name in AS_DELTA)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in SCENARIOS])
def test_every_order_of_events_keeps_the_rows(name: str) -> None:
    count = IcebergExplorer(Model(SCENARIOS[name])).explore(worlds_max=20_000)
    print(f"{name}: {count} worlds")

    assert count > 300


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_more_orders_of_more_events_keep_the_rows(name: str) -> None:
    count = IcebergExplorer(Model(LONG[name])).explore(worlds_max=400_000)
    print(f"{name}: {count} worlds")

    assert count > 100_000


RULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "an input has its planned number": (
        "a file that is added again",
        ("if file.sequence != planned.sequences.get(path, 0):", "if False:"),
    ),
    "planned equality deletes must still be there": (
        "deletes that are rolled back", ("if not applied <= equality:", "if False:"),
    ),
    "other equality deletes are later than the plan": (
        "forks",
        ("if any(sequence <= planned.version for sequence, _ in equality - applied):", "if False:"),
    ),
    "planned positions must still be deleted": (
        "deletes that are rolled back",
        ("if not np.isin(before, positions[path], assume_unique=True).all():", "if False:"),
    ),
    "later positions are carried over": (
        "deletes by position", ("            deletes |= moved\n", ""),
    ),
    "rows that were removed by value are not counted": (
        "a position after a value",
        ("return before if matched is None else np.union1d(before, matched)", "return before"),
    ),
    "an input must be live": (
        "deletes by position",
        (
            'return f"input {path} left the table"', 'return ""',
            "    if file.sequence != planned", "    if file and file.sequence != planned",
            "set(file.equality)", "set(file.equality if file else ())",
            "if file.deletes == planned.deletes[path]:\n        return",
            "if not file or file.deletes == planned.deletes[path]:\n        return",
            "removed = {path: head.files[path] for output in kept for path in output.inputs}",
            "removed = {path: head.files[path] for output in kept for path in output.inputs "
            "if path in head.files}",
            "if path in positions and", "if path in head.files and path in positions and",
        ),
    ),
    "an attempt looks for itself before it tries again": (
        "a commit that is rolled back",
        ("return (state, LookForAttempt(state.base)) if state.was_sent else _compare(state)",
         "return _compare(state)"),
    ),
    "an attempt that cannot tell stops": (
        "history", ("if sighting.look is Look.CANNOT_TELL:", "if False:"),
    ),
    "an attempt sends only while it holds its reservation": (
        "zombies and late requests", ("    if not is_held:\n", "    if False:\n"),
    ),
    "the collector waits until a number was given": (
        "zombies and late requests", ("return head_version > noted_version", "return True"),
    ),
    "the collector looks first": (
        "zombies and late requests", (" and path not in sighting.outputs]", "]"),
    ),
}  # fmt: skip
"""Guards of the rules: a scenario, and what takes the guard away."""
AROUND: dict[str, str] = {
    "outputs get the new number": "deletes by value",
    "outputs get the least number of inputs": "rows that are inserted again",
    "delete files go though outputs need them": "deletes by value",
    "delete files go though other files need them": "values of three files",
    "the branch may have moved": "a branch that moves",
    "numbers may be given twice": "numbers",
    "look without missing snapshots": "history",
    "the head's number in place of the last one": "back and forth",
    "tries are cleaned at once": "tries",
    "collector looks for attempts only": "zombies and late requests",
    "release deletes": "zombies and late requests",
}
"""Guards of the catalog, the sender, the follower and the collector, with a scenario."""
MORE = {
    "forks": Scenario({"rollback": 2, "append": 2, "equality": 1}),
    "a branch that moves": Scenario({"append": 1, "rollback": 1}),
    "a commit that is rolled back": Scenario({"lost": 1, "rollback": 1}),
    "history": Scenario({"append": 1, "rollback": 1, "expire": 1, "lost": 1, "orphans": 1}),
    "deletes that are rolled back": Scenario({"rollback": 1, "position": 1, "equality": 1}),
    "a file that is added again": Scenario({"put_back": 1, "equality": 1}),
    "a position after a value": Scenario({"equality": 1, "position": 1}),
    "values of three files": Scenario({"append": 1, "equality": 1}),
    "numbers": Scenario({"append": 1, "rollback": 1, "late": 1, "death": 1, "release": 1}),
    "back and forth": Scenario({"append": 1, "rollback": 2, "late": 1, "death": 1, "release": 1}),
    "tries": Scenario({"position": 1, "late": 1, "lost": 1}),
}


def violation(scenario: Scenario, **changes: Any) -> str:
    with pytest.raises(ViolationError) as caught:
        IcebergExplorer(Model(scenario, **changes)).explore(worlds_max=100_000)
    return str(caught.value)


@pytest.mark.parametrize("guard", RULES)
def test_no_guard_of_the_rules_can_be_left_out(guard: str) -> None:
    name, replacements = RULES[guard]
    scenario = (SCENARIOS | MORE)[name]
    print(violation(scenario, rules=without(*replacements)))


@pytest.mark.parametrize("fault", AROUND)
def test_no_guard_around_the_rules_can_be_left_out(fault: str) -> None:
    scenario = (SCENARIOS | MORE)[AROUND[fault]]
    print(violation(scenario, faults=frozenset({fault})))


@pytest.mark.parametrize("name", MORE)
def test_the_scenarios_of_the_faults_are_sound(name: str) -> None:
    assert IcebergExplorer(Model(MORE[name])).explore(worlds_max=20_000) > 15
