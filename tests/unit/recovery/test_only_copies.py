"""Which files that nobody knows may be the only copy of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neve.recovery.gc import OnlyCopies, Orphan
from neve.recovery.stored_files import CLOCKS_APART_S, OutputFooter, StoredFile

pytestmark = pytest.mark.unit
FOLDER = "_neve/last"


def output(name: str, *inputs: str, attempt: str = "") -> Orphan:
    """Return an output `job-<name>.parquet` of the attempt of that name."""
    path = f"{FOLDER}/job-{name}.parquet"
    footer = OutputFooter(
        path=path,
        table="t1",
        tablet="last",
        job="j",
        attempt=attempt or name,
        inputs=inputs,
        request=None,
        purge=None,
        outputs=(path,),
        rows=1,
    )
    return StoredFile(path, 10, 1000.0), footer


def appended(name: str, changed_s: float | None = 1000.0) -> Orphan:
    return StoredFile(f"_neve/append/{name}.parquet", 10, changed_s), None


def judge(
    *held: str,
    garbage: tuple[str, ...] = (),
    deleted: tuple[str, ...] = (),
    lost_s: float | None = None,
    **committed: str,
) -> OnlyCopies:
    """Return who judges; `committed`: attempt → its inputs, as words."""
    made = OnlyCopies(held=held, garbage=garbage, deleted=deleted, lost_s=lost_s)
    made.committed((attempt, inputs.split()) for attempt, inputs in committed.items())
    return made


@pytest.mark.parametrize(
    ("known", "kept"),
    [
        (judge("a", "b"), False),
        (judge("a"), True),
        (judge(), True),
        (judge("a", garbage=("b",)), False),
        (judge(garbage=("a", "b")), False),
        (judge("a", deleted=("b",)), False),
        (judge(deleted=("b",)), True),
        (judge(o2="a b"), False),
        (judge("a", o2="b c"), False),
        (judge("a", o1="b"), True),
        (judge(o1="a b"), True),
        (judge(o2="a"), True),
        (judge(o2=f"{FOLDER}/job-o1.parquet"), False),
    ],
)
def test_every_input_of_an_output_must_be_accounted_for(known: OnlyCopies, kept: bool) -> None:
    found = known.among([output("o1", "a", "b")])
    assert bool(found) is kept


def test_the_verdict_names_the_unknown_input() -> None:
    (why,) = judge("a").among([output("o1", "a", "b", "c")]).values()
    assert why == "what became of its input b and 1 more is not known"
    (why,) = judge("a", "b").among([output("o1", "a", "b", "c")]).values()
    assert why == "what became of its input c is not known"


def test_a_replaced_output_accounts_for_its_own_inputs() -> None:
    """A chain of outputs of which only the last is in the table; the others wait for nobody."""
    chain = [output("o1", "a", "b"), output("o2", f"{FOLDER}/job-o1.parquet", "c")]
    last = f"{FOLDER}/job-o2.parquet"
    assert judge(o3=last).among(chain) == {}
    zombie = output("z", "a", "b")
    assert judge(o3=last).among([*chain, zombie]) == {}
    assert [*judge().among([*chain, zombie])] == [chain[0][0].path, last, zombie[0].path]


def test_outputs_of_appends_that_were_lost_are_no_copies() -> None:
    """A fail-over has forgotten two adds without an answer, and two commits that followed."""
    (first, _), (second, _) = adds = [appended("a"), appended("b")]
    chain = [
        output("o2", f"{FOLDER}/job-o1.parquet", second.path),
        output("o1", "held", first.path),
    ]
    assert judge("held").among([*chain, *adds]) == {}
    assert judge("held").among([*adds, *reversed(chain)]) == {}
    assert [*judge().among([*chain, *adds])] == [chain[0][0].path, chain[1][0].path]
    assert len(judge("held", lost_s=2000.0).among([*chain, *adds])) == len(chain) + len(adds)


def test_an_unreadable_output_does_not_account_for_its_inputs() -> None:
    broken = (StoredFile(f"{FOLDER}/job-x.parquet", 10, 1000.0), None)
    next_one = output("o1", broken[0].path)
    assert [*judge().among([broken, next_one])] == [next_one[0].path]


@pytest.mark.parametrize(
    ("changed_s", "lost_s", "kept"),
    [
        (1000.0, None, False),
        (1000.0, 1000.0, True),
        (1000.0 + CLOCKS_APART_S, 1000.0, True),
        (1001.0 + CLOCKS_APART_S, 1000.0, False),
        (None, 1000.0, True),
    ],
)
def test_an_appended_file_must_be_younger_than_what_was_lost(
    changed_s: float | None, lost_s: float | None, kept: bool
) -> None:
    file = appended("a", changed_s)
    assert bool(judge(lost_s=lost_s).among([file])) is kept
    assert judge(lost_s=lost_s, o1=file[0].path).among([file]) == {}, "a known commit replaced it"


def test_an_output_without_rows_is_no_copy() -> None:
    file, footer = output("o1", "a", "b")
    assert footer is not None
    assert judge().among([(file, replace(footer, rows=0))]) == {}


def test_an_output_that_cannot_be_read_is_no_copy() -> None:
    broken = (StoredFile(f"{FOLDER}/job-x.parquet", 10, 1000.0), None)
    assert judge(lost_s=2000.0).among([broken]) == {}
