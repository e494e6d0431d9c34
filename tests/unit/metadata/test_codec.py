"""Everything stored comes back as it was; whatever else is there is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import MetadataError
from common.metadata.codec import (
    layout as codec,
)
from common.metadata.codec import (
    table as codec_table,
)
from common.metadata.codec import (
    tablet,
)
from common.metadata.codec.tablet import (
    FILE,
    unpack_file,
    unpack_files,
)
from common.metadata.store_values import (
    AttemptOutcome,
    GarbageEntry,
    HistoryEntry,
    Manifest,
    PinEntry,
)
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import AttemptEnd
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import (
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Reservation,
    Selection,
    TabletId,
)

TEXTS = st.text(max_size=20)
COUNTS = st.integers(0, 2**62)
TIMES = st.floats(0, 1e12)
KEYS = st.none() | st.binary(max_size=20)
FILES = st.builds(
    DataFile,
    path=st.from_regex(r"[a-z_]{1,8}(/[a-z0-9.=-]{1,8}){0,2}", fullmatch=True).filter(
        lambda path: ".." not in path
    ),
    size_bytes=COUNTS,
    rows=COUNTS,
    key_min=KEYS,
    key_max=KEYS,
    version_min=KEYS,
    version_max=KEYS,
    time_min_s=st.none() | TIMES,
    time_max_s=st.none() | TIMES,
    tombstones=COUNTS,
    tombstones_since_s=st.none() | TIMES,
    live_bytes=st.none() | COUNTS,
    schema_id=COUNTS,
    clean=st.booleans(),
    open=st.booleans(),
    added_at_s=TIMES,
    tags=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    job=st.none() | TEXTS,
    request=st.none() | TEXTS,
)


@settings(deadline=None)
@given(FILES)
def test_a_file_is_packed_and_unpacked(file: DataFile) -> None:
    path, data = file.path.encode(), FILE.pack(file)
    assert unpack_file("key", path, data) == file
    for _ in range(2):  # The second time its shape is known, and the quick way taken.
        assert unpack_files("key", {path: data}) == {file.path: file}


@settings(deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=12))
def test_garbage_is_a_file_or_refused(data: bytes, path: bytes) -> None:
    for stored in (data, codec.PREFIX + data):
        found = files_or_refusal(path, stored)
        if isinstance(found, MetadataError):
            assert "key" in str(found)
        else:
            assert FILE.pack(found)[:1] == codec.PREFIX


def files_or_refusal(path: bytes, data: bytes) -> DataFile | MetadataError:
    """Return the file, or the error that refuses it; nothing else may happen."""
    try:
        (file,) = unpack_files("key", {path: data}).values()
    except MetadataError as error:
        return error
    return file


@settings(deadline=None)
@given(FILES, st.data())
def test_a_damaged_file_is_a_file_or_refused(file: DataFile, data: st.DataObject) -> None:
    stored = bytearray(FILE.pack(file))
    stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    other = files_or_refusal(file.path.encode(), bytes(stored))
    if isinstance(other, MetadataError):
        return
    for field in fields(DataFile):
        value = getattr(other, field.name)
        assert type(value) in {str, int, float, bytes, bool, tuple, type(None)}
    assert min(other.size_bytes, other.rows, other.tombstones) >= 0


def test_a_plain_file_is_small() -> None:
    file = DataFile(
        path="f", size_bytes=10**9, rows=10**7, key_min=b"k" * 9, key_max=b"m" * 9, added_at_s=1e9
    )
    assert len(FILE.pack(file)) < 45


VALUES: list[tuple[codec.PackedLayout[object], object, dict[str, object]]] = [
    (tablet.BOUNDS, Bounds(None, b"m"), {}),
    (tablet.BOUNDS, Bounds(b"a", b"m", "day=1"), {}),
    (
        tablet.RESERVATION,
        Reservation(
            attempt="a1",
            job="j",
            kind=Kind.USER,
            inputs=("a", "b"),
            output_prefix="o",
            outputs_max=3,
            group="g",
            compactor="c",
            since_s=1.5,
            now_s=2.5,
            request="r",
        ),
        {"attempt": "a1"},
    ),
    (
        tablet.SELECTION,
        Selection(request="r", files=("a", "b"), results=("b",), completed_jobs=2, since_s=3.5),
        {},
    ),
    (tablet.SELECTION, Selection(request="r", files=()), {}),
    (tablet.OPERATION, Operation(OperationKind.MERGE, "op", OperationStep.CLOSE), {}),
    (tablet.OPERATION, Operation(OperationKind.SPLIT, "op", OperationStep.CUT, b"m"), {}),
    (
        tablet.OPERATION,
        Operation(OperationKind.SPLIT, "op", OperationStep.CUT, b"m", 1.5, "too many bytes"),
        {},
    ),
    (
        codec_table.GARBAGE,
        GarbageEntry(path="p", stamped_s=1.5, key_min=b"a", tablet_end=b"m"),
        {"path": "p"},
    ),
    (codec_table.PIN, PinEntry(pin="p", since_s=1.5, until_s=2.5), {"pin": "p"}),
    (
        codec_table.OUTCOME,
        AttemptOutcome(attempt="a", end=AttemptEnd.LOST, cause="c"),
        {"attempt": "a"},
    ),
    (codec_table.MANIFEST, Manifest(number=3, path="m", begun_s=1.5), {}),
    (
        codec_table.HISTORY,
        HistoryEntry(
            position="1-1",
            attempt="a",
            job="j",
            tablet=TabletId("t", b"m"),
            kind="SYSTEM",
            end="failed",
            group="g",
            compactor="c",
            inputs=("a",),
            outputs=(),
            bytes_in=1,
            bytes_out=2,
            rows_in=3,
            rows_out=4,
            started_s=5.5,
            ended_s=6.5,
            reason="r",
            cause="c",
            request="r1",
            expired_dropped=7,
        ),
        {"position": "1-1", "tablet": TabletId("t", b"m")},
    ),
]


@pytest.mark.parametrize(("layout", "value", "given_"), VALUES)
def test_each_value_is_packed_and_unpacked(
    layout: codec.PackedLayout[object], value: object, given_: dict[str, object]
) -> None:
    assert layout.unpack("key", layout.pack(value), **given_) == value


def stored_table(table: Table) -> dict[bytes, bytes]:
    return {
        name.encode(): word if isinstance(word, bytes) else str(word).encode()
        for name, word in codec_table.table_fields(table).items()
    }


@pytest.mark.parametrize(
    "named",
    [
        {"key": ("gone",)},
        {"version_column": "gone"},
        {"tombstone_column": "gone"},
        {"time_column": "gone"},
    ],
)
def test_a_table_that_names_a_column_that_it_lacks_is_none(named: dict[str, Any]) -> None:
    schema = (Column("k", "int64", nullable=False),)
    table = Table(id="t1", name="n", location="s3://b/p", schema=schema, **named)
    with pytest.raises(MetadataError, match=r"is no table .column 'gone' is not in its schema"):
        codec_table.unpack_table("key", "t1", stored_table(table))


def test_a_table_is_packed_and_unpacked() -> None:
    table = Table(
        id="t1",
        name="n",
        location="s3://b/p",
        schema=(Column("k", "int64", nullable=False), Column("v", "string")),
        key=("k",),
        partition_by=("p",),
        settings=TableSettings(ratio=2, ttl_s=3.5, codec="snappy"),
        settings_version=7,
        state=TableState.PAUSED,
        created_at_s=1.5,
    )
    assert codec_table.unpack_table("key", "t1", stored_table(table)) == table


def test_settings_of_another_type_are_no_settings() -> None:
    for wrong in ({"ratio": "3"}, {"max_files": True}, {"ttl_s": float("nan")}, {"codec": None}):
        with pytest.raises(
            MetadataError, match=f"no settings of this release .{next(iter(wrong))}"
        ):
            codec_table.unpack_settings("key", codec.pack(wrong))


def test_a_value_that_is_too_large_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "VALUE_BYTES_MAX", 100)
    with pytest.raises(MetadataError, match="exceeds"):
        codec.pack("x" * 200)
    with pytest.raises(MetadataError, match="at most 100 are allowed"):
        codec.unpack("key", codec.PREFIX + b"x" * 200)


def test_a_file_that_is_too_large_is_not_read() -> None:
    with pytest.raises(MetadataError, match="at most"):
        unpack_files("key", {b"f": codec.PREFIX + b"\0" * (1024**2 + 1)})


@pytest.mark.parametrize("value", [object(), [[[[[[[1]]]]]]], {1: {2, 3}}])
def test_only_plain_values_go_into_settings(value: object) -> None:
    with pytest.raises(ValueError, match=r"plain|deeply"):
        codec.plain_tree(value)


def test_plain_values_become_tuples_and_maps() -> None:
    assert codec.plain_tree({"a": [1, "b", None, 1.5, True]}) == {"a": (1, "b", None, 1.5, True)}


@pytest.mark.parametrize(
    "value",
    ["x" * (codec.TEXT_BYTES_MAX + 1), b"x" * (codec.TEXT_BYTES_MAX + 1), [0] * 1_000_001],
    ids=["text", "bytes", "items"],
)
def test_a_value_that_cannot_be_unpacked_is_not_packed(value: object) -> None:
    with pytest.raises(MetadataError, match="could not be read back"):
        codec.pack(["beside", value])


def test_a_file_that_nobody_could_read_is_not_written() -> None:
    long = DataFile(path="f", size_bytes=1, rows=1, key_min=b"k" * 600_000, key_max=b"l" * 600_000)
    with pytest.raises(MetadataError, match="a DataFile of 1200"):
        FILE.pack(long)


@pytest.mark.parametrize("wrong", [7, 2**62, "k", None, [1]])
def test_where_bytes_are_wanted_a_number_makes_none(wrong: object) -> None:
    """`bytes(2**62)` would ask for as much memory."""
    quantiles = codec.pack([1, 5.0, 100, 3, [b"k", wrong], 10, [], 0.1])
    for stored in ({b"l": codec.pack([[5.0, wrong]])}, {b"y": quantiles}):
        with pytest.raises(MetadataError, match="is no record"):
            tablet.unpack_record("key", stored)


def test_a_count_that_is_infinite_is_none() -> None:
    stored = {b"y": codec.pack([float("inf"), 5.0, 100, 3, [], 10, [], 0.1])}
    with pytest.raises(MetadataError, match="is no record"):
        tablet.unpack_record("key", stored)
