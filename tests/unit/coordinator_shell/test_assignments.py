"""What an attempt is told of the files beside its inputs: may its tombstones go?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.model.file import DataFile
from common.model.job import Kind
from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.tablet import (
    PLUS_INFINITY,
    Bounds,
    Record,
    Reservation,
    Selection,
    Tablet,
    TabletId,
)
from common.rows.rules import DropRule
from coordinator.core.assignment import compose_assignment
from tests.support.planning import job
from tests.support.request_shell import TABLE

CASES = json.loads((Path(__file__).parents[2] / "data" / "accumulo_deletes.json").read_text())
KEYS = (b"\x20", b"\x40")
TOMBSTONE = 50
"""Version of the tombstone in question; every file but a later one has rows from 1 on."""


def version(number: int) -> bytes:
    return encode_value(number, KeyType.INT)


def file(path: str, since: int = 1, keys: tuple[bytes, bytes] = KEYS) -> DataFile:
    return DataFile(
        path=path,
        size_bytes=10,
        rows=10,
        key_min=keys[0],
        key_max=keys[1],
        version_min=version(since),
        version_max=version(90),
    )


def a_reservation(kind: Kind, inputs: tuple[str, ...], request: str | None) -> Reservation:
    return Reservation(
        attempt="at1",
        job="j1",
        kind=kind,
        inputs=inputs,
        output_prefix="out/at1",
        outputs_max=1,
        group="default",
        compactor="c1",
        since_s=0.0,
        now_s=0.0,
        request=request,
    )


def may_go(key: bytes, inputs: list[str], *files: DataFile, chosen: tuple[str, ...] = ()) -> bool:
    """Return whether an attempt over these inputs may drop a tombstone of a key."""
    kind = Kind.USER if chosen else Kind.SYSTEM
    request = "r1" if chosen else None
    held = a_reservation(kind, tuple(inputs), request)
    tablet = Tablet(
        id=TabletId(TABLE.id, PLUS_INFINITY),
        bounds=Bounds(None, PLUS_INFINITY),
        files={each.path: each for each in files},
        running={"at1": held},
        selection=Selection(request="r1", files=chosen) if chosen else None,
    )
    wanted = job("j1", kind=kind, request=request, inputs=tuple(inputs))
    given = compose_assignment(wanted, held, TABLE, tablet, now_s=1e6)
    return DropRule(version(99), given.outside).allows(key, version(TOMBSTONE))


@pytest.mark.parametrize("case", CASES["propagate_deletes"], ids=str)
def test_deletes_are_propagated_where_accumulo_does(case: dict[str, Any]) -> None:
    files = [file(path) for path in case.get("tablet_files") or case["selected"]]
    if not case.get("initially_all", True):
        files.append(file("not-selected"))
    if case["kind"] == "USER":
        files.append(file("later", since=TOMBSTONE + 1))
    gone = may_go(b"\x30", case["job_files"], *files, chosen=tuple(case.get("selected", ())))
    assert gone is not case["propagate_deletes"]


@pytest.mark.parametrize(
    ("key", "gone"), [(b"\x20", True), (b"\x2f", True), (b"\x30", False), (b"\x40", False)]
)
def test_deletes_outside_of_the_keys_of_other_files_go(key: bytes, gone: bool) -> None:
    beside = file("c", keys=(b"\x30", b"\x40"))
    assert may_go(key, ["a", "b"], file("a"), file("b"), beside) is gone


def test_a_file_with_newer_rows_only_keeps_no_tombstone() -> None:
    kept = [file("a"), file("b", since=TOMBSTONE)]
    assert not may_go(b"\x30", ["a"], *kept)
    assert may_go(b"\x30", ["a"], file("a"), file("b", since=TOMBSTONE + 1))


@pytest.mark.parametrize(("halved", "told"), [("j1", 3), ("another", 0)])
def test_a_job_is_told_how_often_it_ran_out_of_memory(halved: str, told: int) -> None:
    wanted = job("j1", kind=Kind.SYSTEM, inputs=("a",))
    held = a_reservation(wanted.kind, ("a",), None)
    tablet = Tablet(
        id=TabletId(TABLE.id, PLUS_INFINITY),
        bounds=Bounds(None, PLUS_INFINITY),
        files={"a": file("a")},
        running={"at1": held},
        record=Record(halved_job=halved, halvings=3),
    )
    assert compose_assignment(wanted, held, TABLE, tablet, now_s=1e6).halvings == told
