"""A transform is refused where it does not fit its table."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import RequestError
from common.expressions.clauses import parse_transform, protected_columns
from common.model.request import KeyRange, TransformKind, TransformSpec
from common.model.table import Column
from tests.support.assignments import a_table

DELETE = TransformSpec(kind=TransformKind.DELETE_WHERE, text="s = 'x' and v > 2")
SET = TransformSpec(kind=TransformKind.SET, text="s = upper(s)")
PLUGIN = TransformSpec(kind=TransformKind.PLUGIN, name="mask", options={"a": "b"})
NO_KEY: dict[str, Any] = {"key": (), "version_column": None, "tombstone_column": None}


def test_an_empty_transform_is_none() -> None:
    assert parse_transform(TransformSpec(), a_table(**NO_KEY), KeyRange(b"\x01")) is None


def test_each_kind_says_what_it_reads_and_does() -> None:
    deletion = parse_transform(DELETE, a_table(), KeyRange(b"\x01"))
    assert deletion is not None
    assert deletion.description == "delete where s = 'x' and v > 2"
    assert deletion.columns == {"s", "v"}
    assigned = parse_transform(SET, a_table(), KeyRange())
    assert assigned is not None
    assert [one.column for one in assigned.assignments] == ["s"]
    plugged = parse_transform(PLUGIN, a_table(), KeyRange())
    assert plugged is not None
    assert (plugged.plugin, plugged.options, plugged.expressions) == ("mask", {"a": "b"}, ())


def test_rows_may_have_wider_columns_than_the_table() -> None:
    wide = (*a_table().schema, Column("more", "int64"))
    spec = TransformSpec(kind=TransformKind.SET, text="more = more + 1")
    with pytest.raises(RequestError, match="there is no column more"):
        parse_transform(spec, a_table(), KeyRange())
    assert parse_transform(spec, a_table(), KeyRange(), wide) is not None


@pytest.mark.parametrize(
    ("spec", "table", "key_range", "says"),
    [
        (DELETE, {"tombstone_column": None}, KeyRange(), "has no tombstone column"),
        (DELETE, NO_KEY, KeyRange(until=b"\x01"), "has no key: .* expected no range"),
        (PLUGIN, NO_KEY, KeyRange(start=b""), "expected no range"),
        (TransformSpec(kind=TransformKind.PLUGIN), {}, KeyRange(), "lacks the plug-in's name"),
        (TransformSpec(kind=TransformKind.SET, text="v = 1"), {}, KeyRange(), "may not be set"),
        (TransformSpec(kind=TransformKind.SET, text="dead = true"), {}, KeyRange(), "may not be"),
        (TransformSpec(kind=TransformKind.DELETE_WHERE, text="s"), {}, KeyRange(), "predicate"),
    ],
)
def test_a_transform_that_does_not_fit_the_table_is_refused(
    spec: TransformSpec, table: dict[str, Any], key_range: KeyRange, says: str
) -> None:
    with pytest.raises(RequestError, match=says):
        parse_transform(spec, a_table(**table), key_range)


def test_key_time_tombstone_and_partition_columns_are_protected() -> None:
    table = a_table(time_column="v", partition_by=("s",))
    assert protected_columns(table) == {"k", "v", "dead", "s"}
    assert protected_columns(a_table(**NO_KEY)) == frozenset()
