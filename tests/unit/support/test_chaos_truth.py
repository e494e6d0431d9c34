"""The oracle of the chaos runs notices everything that must not happen, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.chaos.batches import KINDS, Batch, Kind, drawn, mod_of, rows_of
from tests.chaos.draw import WAYS, How, Part, draw
from tests.chaos.journal import Journal, replayed
from tests.chaos.truth import Truth, Wish

KEYED = Kind(name="t", keyed=True, keys=100, splits=(49,), rows_max=20, pause_s=0.1)
BAG = Kind(name="b", keyed=False, rows_max=20, pause_s=0.1)
FIRST = Batch(1, 0, 1, 10)
SECOND = Batch(2, 5, 1, 10)
LAST = 100


def told(kind: Kind, *batches: Batch, wishes: tuple[Wish, ...] = ()) -> Truth:
    """Return the truth after batches that were acknowledged, two moments after each other."""
    truth = Truth(kind)
    for at, batch in enumerate(batches):
        truth.intend(batch, 2 * at + 1)
        truth.acknowledge(batch.number, 2 * at + 2)
    for wish in wishes:
        truth.ask(wish)
    return truth


def seen(kind: Kind, *batches: Batch, tags: str = "") -> pa.Table:
    """Return what a right scan shows: per key the newest row, with these tags."""
    rows = [row for batch in batches for row in rows_of(kind, batch).to_pylist()]
    name = "k" if kind.keyed else "n"
    newest = {row[name]: {**row, "tags": tags} for row in rows}
    return pa.Table.from_pylist(list(newest.values()), schema=kind.schema)


def without(rows: pa.Table, key: int) -> pa.Table:
    """Return a scan without a key."""
    kept = [row for row in rows.to_pylist() if key not in (row.get("k"), row.get("n"))]
    return pa.Table.from_pylist(kept, schema=rows.schema)


def check(truth: Truth, found: pa.Table, began: int = LAST) -> str:
    """Return the first problem, or nothing."""
    return next(iter(truth.check(found, began, began + 1)), "")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_correct_rows_raise_no_complaint(kind: Kind) -> None:
    dice = random.Random(1)
    batches = [drawn(kind, number, dice) for number in range(1, 12)]
    rows = {}
    for batch in batches:
        for row in rows_of(kind, batch).to_pylist():
            key = row["k"] if kind.keyed else row["n"]
            rows[key] = None if batch.ended(key) else row
    found = pa.Table.from_pylist([row for row in rows.values() if row], schema=kind.schema)
    truth = told(kind, *batches)
    assert check(truth, found) == ""
    assert check(truth, found) == ""
    assert found.num_rows > 100


@pytest.mark.parametrize("kind", [KEYED, BAG], ids=["keyed", "bag"])
def test_lost_doubled_and_strange_rows_are_noticed(kind: Kind) -> None:
    first = Batch(1, 20, 1, 10)
    found = seen(kind, first)
    assert "lost" in check(told(kind, first), without(found, 25))
    assert "doubled" in check(told(kind, first), pa.concat_tables([found, found.slice(0, 1)]))
    assert "nowhere" in check(told(kind, first), seen(kind, Batch(1, 20, 1, 11)))
    other = pa.Table.from_pylist(
        [{**row, "text": "x"} for row in found.to_pylist()], schema=kind.schema
    )
    assert "other values" in check(told(kind, first), other)


def test_an_older_row_must_not_rise() -> None:
    assert "rose" in check(told(KEYED, FIRST, SECOND), seen(KEYED, SECOND, FIRST))


def test_a_pending_write_may_be_seen_but_never_disappears() -> None:
    truth = told(KEYED, FIRST)
    truth.intend(SECOND, 50)
    assert check(truth, seen(KEYED, FIRST), 60) == ""
    assert check(truth, seen(KEYED, FIRST, SECOND), 70) == ""
    assert "rose" in check(truth, seen(KEYED, FIRST), 80)


def test_a_key_that_has_ended_is_not_seen_and_does_not_come_back() -> None:
    ending = Batch(2, 5, 1, 1, ends=1)
    truth = told(KEYED, FIRST, ending)
    assert "ends its key" in check(truth, seen(KEYED, FIRST, ending))
    truth = told(KEYED, FIRST, ending)
    assert check(truth, without(seen(KEYED, FIRST), 5)) == ""
    assert "rose" in check(truth, seen(KEYED, FIRST))


def test_a_removed_row_does_not_rise_though_nobody_has_said_that_the_delete_is_done() -> None:
    wish = Wish(1, 0, 100, mod_of(3, 1), asked=50)
    truth = told(KEYED, FIRST, wishes=(wish,))
    assert check(truth, seen(KEYED, FIRST)) == ""
    assert check(truth, without(seen(KEYED, FIRST), 3), 110) == ""
    assert "removed row rose" in check(truth, seen(KEYED, FIRST), 120)
    assert "lost" in check(truth, without(without(seen(KEYED, FIRST), 3), 4), 130)


def test_a_delete_that_is_done_has_deleted() -> None:
    wish = Wish(1, 0, 100, mod_of(3, 1), asked=50, ended=60, state="done")
    assert "not deleted by 1" in check(told(KEYED, FIRST, wishes=(wish,)), seen(KEYED, FIRST))
    wish.state = "done_in_part"
    assert check(told(KEYED, FIRST, wishes=(wish,)), seen(KEYED, FIRST)) == ""


def test_a_change_happens_once_where_it_is_meant_and_not_later() -> None:
    def change(tags: str, **more: object) -> str:
        wish = Wish(**{"number": 1, "low": 0, "high": 100, "delete": None, "asked": 50, **more})
        return check(told(KEYED, FIRST, wishes=(wish,)), seen(KEYED, FIRST, tags=tags))

    done = {"ended": 60, "state": "done"}
    assert change("|1", **done) == change("|1") == change("") == ""
    assert (
        change("", ended=60, state="cancelled") == change("|1", ended=60, state="cancelled") == ""
    )
    assert "twice" in change("|1|1")
    assert "not changed by 1" in change("", **done)
    assert "does not mean it" in change("|1", low=1)
    assert "does not mean it" in change("|2")
    assert "was over" in change("|1", asked=-10, ended=0, state="done")


def test_a_change_is_neither_taken_back_nor_made_after_the_end() -> None:
    wish = Wish(1, 0, 100, None, asked=50)
    truth = told(KEYED, FIRST, wishes=(wish,))
    assert check(truth, seen(KEYED, FIRST, tags="|1")) == ""
    assert "taken back" in check(truth, seen(KEYED, FIRST), 110)

    wish = Wish(1, 0, 100, None, asked=50, ended=60, state="cancelled")
    truth = told(KEYED, FIRST, wishes=(wish,))
    assert check(truth, seen(KEYED, FIRST)) == ""
    assert "after it was over" in check(truth, seen(KEYED, FIRST, tags="|1"), 110)


def test_the_file_of_the_journal_tells_everything(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", [KEYED])
    journal.intend("t", FIRST, "call")
    journal.note("t", "acknowledged", number=1)
    wish = {"number": 1, "low": 0, "high": 100, "delete": None}
    journal.note("t", "asked", wish=wish)
    journal.note("t", "ended", number=1, state="done")
    journal.intend("t", Batch(2, 50, 1, 3), "another")
    found = seen(KEYED, FIRST)
    live = journal.check("t", found, journal.moment())
    journal.close()
    truths, moment = replayed(journal.path, [KEYED])
    assert truths["t"].check(found, moment, moment + 1) == live
    assert "not changed by 1" in live[0]
    assert truths["t"].unanswered() == [2]


def test_a_seed_draws_the_same_faults_and_all_kinds_come() -> None:
    def some(seed: int, *, redis_dies: bool = True, disk_fills: bool = True) -> list[str]:
        faults = draw(seed, redis_dies=redis_dies, disk_fills=disk_fills)
        return [
            f"{fault.gap_s} {harm}"
            for fault, _ in zip(faults, range(24), strict=False)
            for harm in fault.harms
        ]

    assert some(3) == some(3) != some(4)
    kinds = {f"{how} {part}" for part in Part for how in WAYS.get(part, (How.KILL, How.FREEZE))}
    assert {kind for kind in kinds if any(kind in each for each in some(3))} == kinds
    assert not [each for each in some(3, redis_dies=False) if "kill Redis" in each]
    assert not [each for each in some(3, redis_dies=False) if "fill disk" in each]
    assert not [each for each in some(3, disk_fills=False) if "fill disk" in each]
