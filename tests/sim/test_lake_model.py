"""Every order of events of a small lake table keeps its rows, and no guard can be left out.

`tests/support/lake_model.py` explores all worlds that a few events of each kind lead to, with the
product's own rules. The second test plants one fault at a time: without any one guard some order of
events loses, doubles or brings back rows, or deletes a file that a version names.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.lake_model import Explorer, Model, Scenario, ViolationError, without

pytestmark = pytest.mark.sim

SCENARIOS = {
    "deletes while an attempt works": Scenario(
        {"append": 1, "vector": 1, "copy": 1, "lost": 1}, first_deletes=(0,)
    ),
    "two outputs": Scenario({"vector": 1, "copy": 1, "compact": 1}, "two"),
    "an input in two outputs": Scenario({"vector": 1, "copy": 1, "restore": 1}, "split"),
    "unknown positions": Scenario({"append": 1, "vector": 1, "copy": 1}, "sorted"),
    "restores and vacuums": Scenario(
        {"vector": 1, "restore": 2, "vacuum": 1, "lost": 1}, first_deletes=(1,)
    ),
    "an emptied input": Scenario({"vector": 1, "restore": 2}, first_deletes=(0,)),
    "lost, late and false answers": Scenario(
        {"append": 1, "late": 1, "lost": 1, "false": 1, "vector": 1}
    ),
    "zombies and late requests": Scenario(
        {"append": 1, "late": 1, "death": 1, "release": 1}, attempts=2
    ),
    "a log that is cleaned up": Scenario(
        {"append": 2, "late": 1, "checkpoint": 2, "clean": 2, "release": 1}
    ),
    "changes of the schema": Scenario(
        {"schema": 1, "append": 1, "checkpoint": 1, "clean": 1, "lost": 1}
    ),
    "days and vacuums": Scenario({"day": 1, "vacuum": 1, "append": 1, "release": 1, "lost": 1}),
    "a Redis that forgets": Scenario({"redis": 1, "append": 1, "late": 1}, attempts=2),
}
LONG = {
    "all writers": Scenario(
        {"append": 1, "vector": 2, "copy": 1, "compact": 1, "restore": 1, "lost": 1}, "two",
        first_deletes=(0,),
    ),
    "two attempts with all that may fail": Scenario(
        {"append": 1, "vector": 1, "late": 1, "lost": 1, "death": 1, "release": 2, "redis": 1},
        attempts=2,
    ),
    "a log that is cleaned up and restored": Scenario(
        {"append": 2, "restore": 1, "checkpoint": 2, "clean": 2, "late": 1, "lost": 1, "vacuum": 1}
    ),
}  # fmt: skip


LARGE = {"zombies and late requests", "a log that is cleaned up", "a Redis that forgets"}
"""Scenarios of more worlds than `make test` visits."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in SCENARIOS],
)
def test_every_order_of_events_keeps_the_rows(name: str) -> None:
    count = Explorer(Model(SCENARIOS[name])).explore(worlds_max=20_000)
    print(f"{name}: {count} worlds")

    assert count > 500


@pytest.mark.long
@pytest.mark.parametrize("name", [*LONG, *sorted(LARGE)])
def test_more_orders_of_more_events_keep_the_rows(name: str) -> None:
    count = Explorer(Model((SCENARIOS | LONG)[name])).explore(worlds_max=400_000)
    print(f"{name}: {count} worlds")

    assert count > (30_000 if name in LARGE else 100_000)


REMOVED = (
    "removed = {path: head.files[path] for output in kept for path in output.inputs} | emptied"
)
RULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "an input must be live": (
        "deletes while an attempt works",
        (
            'return f"input {path} left the table"', 'return ""',
            REMOVED, REMOVED.replace("inputs}", "inputs if path in head.files}"),
            "if path in positions and", "if path in head.files and path in positions and",
        ),
    ),
    "planned deletes must still be there": (
        "restores and vacuums",
        ("if not np.isin(before, positions[path], assume_unique=True).all():", "if False:"),
    ),
    "later deletes are carried over": (
        "deletes while an attempt works", ("            deletes |= moved\n", ""),
    ),
    "positions are counted without planned deletes": (
        "deletes while an attempt works",
        ("- skipped.astype(np.uint64) ", ""),
    ),
    "unknown positions drop the output": (
        "unknown positions", ("        if left:\n", "        if False:\n"),
    ),
    "outputs with common inputs stay together": (
        "an input in two outputs",
        ("if paths.isdisjoint(other_paths):", "if True:"),
    ),
    "an input without an output has no live row": (
        "forgetful", ("if _left_out(planned, path).size != ", "if 0 > "),
    ),
    "an emptied input must still be empty": (
        "an emptied input",
        ("if reason := why_not_empty(planned, path, head, positions):", "if reason := '':"),
    ),
    "removes name the deletes at the head": (
        "deletes while an attempt works",
        (
            "return Verdict(tuple(kept), tuple(removed.values()), deletes, dropped)",
            "removed = {p: replace(f, deletes=planned.deletes[p]) for p, f in removed.items()}\n"
            "    return Verdict(tuple(kept), tuple(removed.values()), deletes, dropped)",
        ),
    ),
    "a change of the schema ends the attempt": (
        "changes of the schema", ("if head.steady_since > planned.version:", "if False:"),
    ),
    "an attempt looks for itself before it tries again": (
        "restores and vacuums",
        ("return (state, LookForAttempt(state.base)) if state.was_sent else _compare(state)",
         "return _compare(state)"),
    ),
    "an attempt that cannot tell stops": (
        "history", ("if sighting.look is Look.CANNOT_TELL:", "if False:"),
    ),
    "an attempt looks after a commit": (
        "lost, late and false answers",
        ("if answer is Answer.COMMITTED or",
         "if answer is Answer.COMMITTED:\n        return state, _end(state, PublishEnd.COMMITTED)\n"
         "    if"),
    ),
    "an attempt sends only while it holds its reservation": (
        "zombies and late requests", ("    if not is_held:\n", "    if False:\n"),
    ),
    "an attempt older than a day does not send": (
        "days and vacuums", ("> PUBLISH_LIFE_S:", "> 1e9:"),
    ),
    "a compactor deletes its outputs only if it never sent": (
        "lost, late and false answers",
        ("return EndPublishing(ending, reason, was_sent=state.was_sent)",
         "return EndPublishing(ending, reason)"),
    ),
    "the collector waits until the table has grown": (
        "zombies and late requests", ("return head_version > noted_version", "return True"),
    ),
    "the collector looks first": (
        "zombies and late requests", (" and path not in sighting.outputs]", "]"),
    ),
}  # fmt: skip
"""Guards of the rules: a scenario, and what takes the guard away."""
AROUND: dict[str, str] = {
    "put without condition": "deletes while an attempt works",
    "look without missing versions": "history",
    "look without checkpoints": "a log that is cleaned up",
    "collector looks for attempts only": "zombies and late requests",
    "release deletes": "zombies and late requests",
}
"""Guards of the log, the follower and the collector, with a scenario."""
MORE = {
    "forgetful": Scenario({"append": 1}, "forgetful"),
    "history": Scenario(
        {"restore": 1, "append": 1, "checkpoint": 2, "clean": 2, "lost": 1, "vacuum": 1}
    ),
}


def violation(scenario: Scenario, **changes: Any) -> str:
    with pytest.raises(ViolationError) as caught:
        Explorer(Model(scenario, **changes)).explore(worlds_max=200_000)
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
    assert Explorer(Model(MORE[name])).explore() > 15
