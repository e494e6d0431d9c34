"""Commit rules: verdicts and steps that the model of `tests/sim` does not reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from common.lake import rules
from common.lake.source import (
    Answer,
    KeptRows,
    LakeFile,
    LakeOutput,
    Look,
    Planned,
    Sighting,
    Snapshot,
)
from common.primitives import PUBLISH_LIFE_S

FILES = {"a": LakeFile("a", 1, 10), "b": LakeFile("b", 1, 10, deleted_rows=2, deletes="v1")}
HEAD = Snapshot(5, "t", files=FILES, steady_since=3)
PLANNED = Planned("t", 5, {"a": "", "b": "v1"}, {"b": np.array([2, 3], np.uint64)})
OUTPUT = LakeOutput(
    "o", 1, 18, (), ("a", "b"), offsets=(KeptRows("a", 0, 10, 0), KeptRows("b", 0, 10, 10))
)


def positions(*values: int) -> Any:
    return np.array(values, np.uint64)


def head_with(*files: LakeFile, **changes: Any) -> Snapshot:
    return replace(HEAD, files=FILES | {file.path: file for file in files}, **changes)


def test_an_unchanged_head_takes_everything() -> None:
    assert rules.changed_deletes(PLANNED, HEAD) == ()
    verdict = rules.validate(PLANNED, [OUTPUT], HEAD, {})

    assert (verdict.outputs, verdict.removed) == ((OUTPUT,), (FILES["a"], FILES["b"]))
    assert (verdict.deletes, verdict.dropped, verdict.ended) == ({}, {}, "")


def test_later_deletes_lie_elsewhere_in_the_output() -> None:
    later = replace(FILES["b"], deletes="v2", deleted_rows=5)
    head = head_with(later)
    assert rules.changed_deletes(PLANNED, head) == (later,)
    verdict = rules.validate(PLANNED, [OUTPUT], head, {"b": positions(0, 2, 3, 4, 9)})

    assert verdict.deletes["o"].tolist() == [10, 12, 17]
    assert verdict.removed == (FILES["a"], later)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (replace(HEAD, table_id="u"), "another table with the id u lies at this location now"),
        (replace(HEAD, refusal="Névé cannot."), "Névé cannot."),
        (replace(HEAD, version=4), "the table went back from version 5 to 4"),
        (
            replace(HEAD, version=8, steady_since=6),
            "schema, properties or features may have changed up to version 6, after version 5 "
            "was planned",
        ),
    ],
)
def test_some_changes_end_the_attempt(head: Snapshot, reason: str) -> None:
    verdict = rules.validate(PLANNED, [OUTPUT], head, {})

    assert (verdict.ended, verdict.dropped, verdict.is_empty) == (reason, {"o": reason}, True)


@pytest.mark.parametrize(
    ("output", "rows", "reason"),
    [
        (OUTPUT, (2, 9), "has rows again that were deleted when it was planned"),
        (replace(OUTPUT, offsets=()), (2, 3, 9), "their positions in outputs are unknown"),
        (replace(OUTPUT, offsets=OUTPUT.offsets[:1]), (2, 3, 9), "are unknown"),
        (replace(OUTPUT, offsets=OUTPUT.offsets + OUTPUT.offsets), (2, 3, 9), "are unknown"),
        (OUTPUT, (2, 3, 4, 5, 6), "more than 2 rows of one output were deleted"),
    ],
)
def test_deletes_that_cannot_be_carried_over_drop_the_output(
    monkeypatch: pytest.MonkeyPatch, output: LakeOutput, rows: Sequence[int], reason: str
) -> None:
    monkeypatch.setattr(rules, "MOVED_MAX", 2)
    head = head_with(replace(FILES["b"], deletes="v2"))
    verdict = rules.validate(PLANNED, [output], head, {"b": positions(*rows)})

    assert (verdict.outputs, verdict.removed, verdict.is_empty) == ((), (), True)
    assert reason in verdict.dropped["o"]
    assert verdict.ended == ""


def test_another_vector_with_the_same_rows_is_no_change() -> None:
    head = head_with(replace(FILES["b"], deletes="v2"))
    verdict = rules.validate(PLANNED, [OUTPUT], head, {"b": positions(2, 3)})

    assert verdict.deletes == {}
    assert [file.deletes for file in verdict.removed] == ["", "v2"]


def test_outputs_that_share_inputs_are_groups_through_others_too() -> None:
    def output(path: str, *inputs: str) -> LakeOutput:
        return LakeOutput(path, 1, 1, (), inputs)

    groups = rules.output_groups(
        [
            output("1", "a"),
            output("2", "b"),
            output("3", "c"),
            output("4", "a", "c"),
            output("5", "b"),
        ]
    )
    paths = sorted(sorted(member.path for member in group) for group in groups)
    assert paths == [["1", "3", "4"], ["2", "5"]]


def test_an_input_without_live_rows_goes_without_an_output() -> None:
    planned = replace(PLANNED, positions={"b": positions(*range(10))})
    output = replace(OUTPUT, inputs=("a",), offsets=OUTPUT.offsets[:1])
    verdict = rules.validate(planned, [output], HEAD, {})
    assert verdict.removed == (FILES["a"], FILES["b"])

    verdict = rules.validate(PLANNED, [output], HEAD, {})
    assert verdict.removed == (FILES["a"],)
    assert verdict.dropped == {"b": "input b has live rows, but no output has them"}


# -------------------------------------------------------------- Sequence numbers, equality deletes

EQUAL = ((3, "e3"),)
"""Equality deletes that were applied to the second input, of version 3."""
NUMBERED = {
    "a": replace(FILES["a"], sequence=1),
    "b": replace(FILES["b"], sequence=2, equality=EQUAL),
}
SEQUENCED = replace(
    PLANNED,
    sequences={"a": 1, "b": 2},
    equality={"b": EQUAL},
    matched={"b": positions(3, 7)},
)


def numbered(path: str = "", **changes: Any) -> Snapshot:
    files = dict(NUMBERED)
    if path:
        files[path] = replace(files[path], **changes)
    return replace(HEAD, version=9, files=files)


def test_the_planned_sequence_numbers_and_equality_deletes_are_required() -> None:
    verdict = rules.validate(SEQUENCED, [OUTPUT], numbered(), {})
    assert verdict.removed == (NUMBERED["a"], NUMBERED["b"])


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (numbered("a", sequence=8), "input a left the table, and was added to it again"),
        (numbered("b", equality=()), "input b has lost equality deletes that were applied to it"),
        (
            numbered("b", equality=((3, "other"),)),
            "input b has lost equality deletes that were applied to it",
        ),
        (
            numbered("b", equality=(*EQUAL, (5, "e5"))),
            "input b has other equality deletes of versions up to the planned one",
        ),
    ],
)
def test_other_sequence_numbers_and_equality_deletes_drop_the_output(
    head: Snapshot, reason: str
) -> None:
    verdict = rules.validate(SEQUENCED, [OUTPUT], head, {})
    assert (verdict.dropped, verdict.is_empty) == ({"o": reason}, True)


def test_later_equality_deletes_apply_to_the_output() -> None:
    head = numbered("b", equality=(*EQUAL, (6, "e6")))
    assert rules.validate(SEQUENCED, [OUTPUT], head, {}).outputs == (OUTPUT,)


def test_positions_in_outputs_are_counted_without_rows_that_equality_deletes_removed() -> None:
    head = numbered("b", deletes="v2")
    verdict = rules.validate(SEQUENCED, [OUTPUT], head, {"b": positions(0, 2, 3, 7, 9)})
    # Row 7 was not written, so that nothing is to be deleted there; 2, 3 and 7 are not counted.
    assert verdict.deletes["o"].tolist() == [10, 16]


def test_equality_deletes_empty_an_input() -> None:
    planned = replace(SEQUENCED, matched={"b": positions(0, 1, *range(3, 10))})
    output = replace(OUTPUT, inputs=("a",), offsets=OUTPUT.offsets[:1])
    assert rules.validate(planned, [output], numbered(), {}).removed == tuple(NUMBERED.values())
    assert rules.validate(SEQUENCED, [output], numbered(), {}).removed == (NUMBERED["a"],)


# --------------------------------------------------------------------------------------- Publishing


def publishing(**changes: Any) -> rules.Publishing:
    return replace(rules.Publishing(PLANNED, (OUTPUT,), started_at_s=0), **changes)


def steps(state: rules.Publishing, *events: rules.PublishEvent) -> list[str]:
    names = []
    for event in events:
        state, step = rules.next_step(state, event, now_s=1.0)
        names.append(type(step).__name__)
        if isinstance(step, rules.EndPublishing):
            names.append(f"{step.ending}: {step.reason}")
    return names


LOADED, MARKED = rules.HeadLoaded(HEAD), rules.Marked(is_held=True)
ABSENT = rules.Looked(Sighting(Look.ABSENT, 5))


def test_a_step_that_fails_ends_the_attempt() -> None:
    failed = rules.StepFailed("the storage does not answer")
    assert steps(publishing(), failed) == ["EndPublishing", "failed: the storage does not answer"]
    assert steps(publishing(tries=1), failed)[1] == "cannot-tell: the storage does not answer"


def test_an_attempt_ends_after_its_tries_with_a_look() -> None:
    conflict = rules.SendAnswered(Answer.CONFLICT)
    once = [LOADED, MARKED, conflict]
    state = publishing(tries_max=2)

    assert steps(state, *once, LOADED, ABSENT, MARKED, conflict, ABSENT)[2:] == [
        "LoadHead", "LookForAttempt", "MarkReservation", "SendVersion", "LookForAttempt",
        "EndPublishing", "conflicted: other writers committed first at each of 2 tries",
    ]  # fmt: skip


def test_the_end_states_what_was_committed() -> None:
    found = rules.Looked(Sighting(Look.FOUND, 9, frozenset({"o"})))
    _, end = rules.next_step(publishing(tries=1), found, now_s=1.0)

    assert end == rules.EndPublishing(
        rules.PublishEnd.COMMITTED, version=9, committed=frozenset({"o"}), was_sent=True
    )


def test_a_look_begins_at_the_last_version_before_the_last_send() -> None:
    gone_back = rules.HeadLoaded(replace(HEAD, newest=8))
    state, _ = rules.next_step(publishing(), gone_back, now_s=1.0)
    state, _ = rules.next_step(state, MARKED, now_s=1.0)
    _, step = rules.next_step(state, rules.SendAnswered(Answer.COMMITTED), now_s=1.0)

    assert step == rules.LookForAttempt(since=8)


def test_an_old_attempt_does_not_send() -> None:
    state, step = rules.next_step(publishing(), LOADED, now_s=1.0)
    assert isinstance(step, rules.MarkReservation)
    _, on_time = rules.next_step(state, MARKED, now_s=PUBLISH_LIFE_S)
    _, late = rules.next_step(state, MARKED, now_s=PUBLISH_LIFE_S + 1)

    assert isinstance(on_time, rules.SendVersion)
    assert isinstance(late, rules.EndPublishing)
    assert (late.ending, late.was_sent) == (rules.PublishEnd.TOO_OLD, False)


def test_outputs_are_deleted_when_no_request_can_name_them() -> None:
    assert rules.may_delete_outputs(noted_version=5, head_version=6)
    assert not rules.may_delete_outputs(noted_version=6, head_version=6)


def test_outputs_that_a_version_has_added_are_not_deleted() -> None:
    paths = ["a", "b"]
    assert rules.never_committed(Sighting(Look.ABSENT, 6), paths) == paths
    assert rules.never_committed(Sighting(Look.FOUND, 6, frozenset({"a"})), paths) == ["b"]
    assert rules.never_committed(Sighting(Look.CANNOT_TELL, 6), paths) == []
