"""Which try of an append counts, when its files are all that is left."""

from __future__ import annotations

import pytest

from common.model.location_identity import (
    AppendTry,
    append_file_names,
    append_try_of,
)
from neve.recovery.rebuild.live_files import unadded_tries
from neve.recovery.scope import Steps
from neve.recovery.stored_files import StoredFile

CALL, OTHER = (f"018bcfe5-6be8-746d-8000-00000000000{number}" for number in (1, 2))


def names(attempt: str, count: int = 2, call: str = CALL) -> list[str]:
    return [
        f"_neve/append/part=1/{name}" for name in append_file_names(call, f"try-{attempt}", count)
    ]


def left(added: list[str], held: list[str], newest: str = "") -> set[str]:
    """Return what does not count; the files of one try are the newest."""
    stored = {
        path: StoredFile(path, 10, 2000.0 if newest and newest in path else 1000.0)
        for path in added
    }
    return {*unadded_tries(added, held, stored, Steps())}


def test_a_name_tells_its_try() -> None:
    first, last = names("a-b")

    assert append_try_of(first) == append_try_of(last) == AppendTry(CALL, "try-a-b", 2)


@pytest.mark.parametrize(
    "path",
    [
        "mine/a.parquet",
        f"mine/{CALL}-try-b-1of2.parquet",
        f"_neve/append/{CALL}-part-1f.parquet",  # as earlier releases have named them
        f"_neve/append/{CALL}-try-a-1of2.parquet.part",
        "_neve/last/job-1-att-2-0.parquet",
    ],
)
def test_other_file_names_belong_to_no_append_try(path: str) -> None:
    assert append_try_of(path) is None
    assert left([path, *names("a")], []) == set()


def test_a_single_try_counts_even_if_files_are_missing() -> None:
    assert left(names("a"), []) == set()
    assert left(names("a")[:1], []) == set()


def test_the_one_counts_that_was_in_the_table() -> None:
    first, second = names("a"), names("b")

    assert left([*first, *second], first[:1], newest="try-b") == {*second}
    assert left(second, first[1:]) == {*second}, "the other has been compacted and deleted since"


def test_without_other_evidence_the_newest_complete_try_counts() -> None:
    first, second = names("a"), names("b")

    assert left([*first, *second], [], newest="try-a") == {*second}
    assert left([*first[:1], *second], [], newest="try-a") == {*first[:1]}


def test_calls_do_not_mix() -> None:
    assert left([*names("a"), *names("b", call=OTHER)], names("a")) == set()
