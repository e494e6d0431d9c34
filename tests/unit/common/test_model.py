"""Values refuse what cannot be, and keep what a newer release adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.errors import RequestError
from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import KEY_CHARS_MAX, parse_key
from common.model.outcome import RefusalCode
from common.model.table import Column, Filling, Table, TableState, recovery_note

pytestmark = pytest.mark.unit

TABLE = Table(id="t1", name="events", location="file:///e", schema=(Column("x", "int64"),))


@pytest.mark.parametrize("path", ["", "/a.parquet", "a/../../b.parquet"])
def test_the_path_of_a_file_is_below_the_location(path: str) -> None:
    with pytest.raises(ValueError, match="must be relative to the location, without"):
        DataFile(path=path, size_bytes=1, rows=1)


@pytest.mark.parametrize("field", ["size_bytes", "rows", "tombstones"])
def test_a_file_counts_nothing_below_zero(field: str) -> None:
    file = DataFile(path="a.parquet", size_bytes=1, rows=1)
    with pytest.raises(ValueError, match=r"a\.parquet: .* must not be negative"):
        replace(file, **{field: -1})  # type: ignore[arg-type]  # by name


def test_a_code_of_a_newer_release_is_kept_and_a_number_is_no_code() -> None:
    assert RefusalCode("of-a-newer-release") == "of-a-newer-release"
    with pytest.raises(ValueError, match="7 is not a valid RefusalCode"):
        RefusalCode(7)  # type: ignore[arg-type]  # what a damaged message may have


def test_an_incomplete_table_has_a_note() -> None:
    assert recovery_note(TABLE) == ""
    assert "table 'events' is incomplete" in recovery_note(replace(TABLE, incomplete=True))


@pytest.mark.parametrize(("verb", "command"), [("import", "table import"), ("rebuild", "rebuild")])
def test_a_table_that_is_being_filled_has_a_note(verb: str, command: str) -> None:
    filling = Filling(run="r1", verb=verb, files=3, done=1)
    note = recovery_note(replace(TABLE, state=TableState.FILLING, filling=filling))
    assert note.startswith("table 'events' is being filled (")
    assert f"repeat `neve {command}` if it has ended early" in note


def test_a_key_that_is_too_long_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(RequestError, match=f"has {KEY_CHARS_MAX + 1} characters, more than"):
        parse_key("k" * (KEY_CHARS_MAX + 1), [KeyType.STRING])
