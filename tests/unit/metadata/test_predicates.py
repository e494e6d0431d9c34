"""The worked reservation and commit cases, and what they leave out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.metadata.changes.attempts import may_commit, may_hold_dropped_key, may_reserve
from common.metadata.changes.files import may_add
from common.metadata.changes.protocol import may_change
from common.metadata.changes.selections import may_drop_hold
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import DroppedRows, Refusal, RefusalCode
from common.model.table import TableState
from common.model.tablet import (
    PLUS_INFINITY,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Reservation,
    Selection,
    Tablet,
    TabletId,
)

CASES = json.loads((Path(__file__).parents[2] / "data" / "accumulo.json").read_text())
ID = TabletId("tbl-1", PLUS_INFINITY)


def file(path: str, **fields: Any) -> DataFile:
    return DataFile(path=path, size_bytes=1, rows=1, **fields)


def reservation(attempt: str, case: dict[str, Any]) -> Reservation:
    return Reservation(
        attempt=attempt,
        job="j",
        kind=Kind(case["kind"]),
        inputs=tuple(case["files"]),
        output_prefix="o",
        outputs_max=1,
        group="g",
        compactor="c",
        since_s=0,
        now_s=0,
        request=case.get("request"),
    )


def tablet_of(case: dict[str, Any]) -> Tablet:
    selected, operation = case.get("selected"), case.get("operation")
    return Tablet(
        id=ID,
        bounds=Bounds(None, PLUS_INFINITY),
        files={path: file(path) for path in case["files"]},
        running={name: reservation(name, entry) for name, entry in case["running"].items()},
        selection=Selection(
            request=selected["request"],
            files=tuple(selected["files"]),
            completed_jobs=selected["completed_jobs"],
            since_s=selected.get("selected_at_ms", 0) / 1000,
        )
        if selected
        else None,
        waiting=dict.fromkeys(case.get("user_requested", ()), 0.0),
        operation=Operation(OperationKind.SPLIT, "op", OperationStep.DRAIN) if operation else None,
    )


def allowed(case: dict[str, Any]) -> bool:
    """Answer a reservation case: with us, an expired hold is dropped by a change of its own."""
    tablet = tablet_of(case["tablet"]) if case["tablet"] else None
    drops = case["job_drops_selection"]
    if tablet is not None and drops and tablet.selection is not None:
        now_s, expiry_s = case["now_ms"] / 1000, case["hold_expiry_ms"] / 1000
        if may_drop_hold(tablet, now_s=now_s, expiry_s=expiry_s) is not None:
            return False
        tablet = replace(tablet, selection=None)
    return not may_reserve(
        tablet,  # type: ignore[arg-type]  # None is refused too
        state=TableState.LIVE,
        kind=Kind(case["kind"]),
        inputs=case["job_files"],
        request=case["request"],
    )


@pytest.mark.parametrize("case", CASES["reservation_check"], ids=lambda case: case["id"])
def test_may_reserve_answers_as_recorded(case: dict[str, Any]) -> None:
    if case["expect"] == "error":
        with pytest.raises(AssertionError):
            allowed(case)
    else:
        assert allowed(case) is case["expect"], case.get("note")


@pytest.mark.parametrize("case", CASES["commit_check"], ids=lambda case: case["id"])
def test_may_commit_answers_as_recorded(case: dict[str, Any]) -> None:
    empty: dict[str, Any] = {"files": [], "running": {}}
    refusal = may_commit(tablet_of(case["tablet"] or empty), case["compaction_id"])
    assert (refusal is None) is case["expect"], refusal


SPLIT = Operation(OperationKind.SPLIT, "op", OperationStep.CUT, b"m")
MERGE = Operation(OperationKind.MERGE, "op", OperationStep.DRAIN)
PLAIN = Tablet(id=ID, bounds=Bounds(None, PLUS_INFINITY), files={"a": file("a"), "b": file("b")})


@pytest.mark.parametrize(
    ("tablet", "state", "cuts_at", "code"),
    [
        (PLAIN, TableState.LIVE, None, None),
        (PLAIN, TableState.LIVE, b"x", None),
        (PLAIN, TableState.PAUSED, None, "paused"),
        (PLAIN, TableState.GOING, None, "table"),
        (PLAIN, TableState.NEW, None, "table"),
        (PLAIN, None, None, "table"),
        (replace(PLAIN, operation=SPLIT), TableState.LIVE, b"m", None),
        (replace(PLAIN, operation=SPLIT), TableState.LIVE, b"n", "operation"),
        (replace(PLAIN, operation=SPLIT), TableState.LIVE, None, "operation"),
        (replace(PLAIN, operation=MERGE), TableState.LIVE, None, "operation"),
        (
            replace(PLAIN, operation=replace(SPLIT, step=OperationStep.CLOSE)),
            TableState.LIVE,
            b"m",
            "operation",
        ),
        (replace(PLAIN, waiting={"r": 0.0}), TableState.LIVE, None, "waiting"),
    ],
)
def test_may_reserve_gives_the_code_of_its_refusal(
    tablet: Tablet, state: TableState | None, cuts_at: bytes | None, code: str | None
) -> None:
    refusal = may_reserve(
        tablet, state=state, kind=Kind.SYSTEM, inputs=["a"], request=None, cuts_at=cuts_at
    )
    assert (refusal and refusal.code) == code


def test_a_message_names_a_few_files_and_counts_the_others() -> None:
    inputs = [f"f{number}" for number in range(9)]
    refusal = may_reserve(
        PLAIN, state=TableState.LIVE, kind=Kind.SYSTEM, inputs=inputs, request=None
    )
    assert refusal == Refusal(
        RefusalCode.GONE, "tablet tbl-1;last: files are gone: f0, f1, f2, f3, f4 and 4 more"
    )


def test_an_analysis_holds_no_file_and_needs_a_tablet_that_may_change() -> None:
    def asked(state: TableState) -> Refusal | None:
        return may_reserve(PLAIN, state=state, kind=Kind.SYSTEM, inputs=[], request=None)

    assert asked(TableState.LIVE) is None
    refused = asked(TableState.PAUSED)
    assert refused is not None
    assert refused.code == RefusalCode.PAUSED


@pytest.mark.parametrize(
    ("fields", "older"),
    [
        ({"key_min": b"a", "key_max": b"b", "version_min": b"5"}, True),
        ({"key_min": b"c", "key_max": b"z", "version_min": b"5"}, True),
        ({"key_min": b"d", "key_max": b"z", "version_min": b"5"}, False),
        ({"key_min": b"A", "key_max": b"Z", "version_min": b"5"}, False),
        ({"key_min": b"ba", "key_max": b"ba", "version_min": b"5"}, False),
        ({"key_min": b"ba", "key_max": b"bb", "version_min": b"5"}, True),
        ({"key_min": b"ba", "version_min": b"5"}, True),
        ({"key_max": b"A", "version_min": b"5"}, False),
        ({"key_min": b"a", "key_max": b"b", "version_min": b"8"}, False),
        ({"key_min": b"a", "key_max": b"b", "version_min": b"7"}, True),
        ({}, True),
    ],
)
def test_which_file_may_hold_an_older_row(fields: dict[str, bytes], older: bool) -> None:
    dropped = DroppedRows(spans=((b"a", b"b"), (b"bb", b"c")), version_max=b"7")
    assert may_hold_dropped_key(file("f", **fields), dropped) is older


@pytest.mark.parametrize(
    ("bounds", "fields", "fits"),
    [
        (Bounds(b"b", b"f"), {"key_min": b"c", "key_max": b"f"}, True),
        (Bounds(b"b", b"f"), {"key_min": b"b", "key_max": b"f"}, False),
        (Bounds(b"b", b"f"), {"key_min": b"c", "key_max": b"g"}, False),
        (Bounds(b"b", b"f"), {}, False),
        (Bounds(None, b"f"), {}, False),
        (Bounds(None, PLUS_INFINITY), {}, True),
        (Bounds(None, b"p", "day=1"), {"key_min": b"x", "key_max": b"z"}, True),
    ],
)
def test_may_add_takes_files_within_the_bounds_of_their_tablet(
    bounds: Bounds, fields: dict[str, bytes], fits: bool
) -> None:
    refusal = may_add(
        ID, file("f", **fields), bounds=bounds, operation=None, purge=None, late_data=False
    )
    assert (refusal is None) is fits


@pytest.mark.parametrize(
    ("fields", "crosses"),
    [
        ({"key_min": b"a", "key_max": b"m"}, False),
        ({"key_min": b"n", "key_max": b"z"}, False),
        ({"key_min": b"m", "key_max": b"n"}, True),
        ({}, True),
    ],
)
def test_may_add_refuses_files_across_the_cut_of_a_split(
    fields: dict[str, bytes], crosses: bool
) -> None:
    everywhere = Bounds(None, PLUS_INFINITY)
    draining = replace(SPLIT, step=OperationStep.DRAIN)
    merging = replace(draining, kind=OperationKind.MERGE)
    for operation, barred in ((SPLIT, crosses), (draining, crosses), (merging, False)):
        refusal = may_add(
            ID,
            file("f", **fields),
            bounds=everywhere,
            operation=operation,
            purge=None,
            late_data=False,
        )
        assert (refusal is not None) is barred, operation


def test_tables_being_created_or_dropped_may_not_change() -> None:
    assert may_change("t", TableState.PAUSED) is None
    for state in (TableState.NEW, TableState.GOING, None):
        refusal = may_change("t", state)
        assert refusal is not None
        assert refusal.code == "table"
