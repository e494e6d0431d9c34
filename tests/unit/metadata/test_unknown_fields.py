"""Fields that a newer release has added are read over, kept, and written back as they were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import BrokenValueError
from common.metadata.codec import (
    layout as codec,
)
from common.metadata.codec import (
    table as codec_request,
)
from common.metadata.codec import (
    table as codec_table,
)
from common.metadata.codec import (
    tablet,
)
from common.metadata.codec.tablet import FILE, unpack_files
from common.metadata.store_values import (
    AcceptedLoss,
    BufferSegment,
    CallKind,
    CallMark,
    CoordinatorClaim,
    MirrorHead,
    PublishingMark,
)
from common.model.fields import as_plain
from common.model.file import DataFile
from common.model.request import KeyRange, OutputSpec, Request, SelectorSpec, TransformSpec
from common.model.table import Column, Table, TableSettings
from tests.unit.metadata.test_codec import FILES, VALUES

REQUEST = Request(
    id="r", table="t", range=KeyRange(b"a", b"z"), cancelled_ranges=(KeyRange(b"b", b"c"),)
)
EVERY: list[tuple[codec.PackedLayout[Any], Any, dict[str, object]]] = [
    *VALUES,
    (FILE, DataFile(path="f", size_bytes=5, rows=6, tags=(("level", "1"),)), {"path": "f"}),
    (codec_table.CALL, CallMark(kind=CallKind.ADD, content="c", at_s=1.5), {}),
    (codec_table.CLAIM, CoordinatorClaim(coordinator="c", since_s=1.5), {}),
    (codec_table.LOSS, AcceptedLoss(since_s=1.5, until_s=2.5), {}),
    (codec_table.MIRROR_HEAD, MirrorHead(token="t", version=7, problem="p"), {}),
    (
        codec_table.PUBLISHING,
        PublishingMark(
            attempt="a", tablet_end=b"m", planned=3, base=4, outputs=("o",), marked_s=1.5
        ),
        {"attempt": "a"},
    ),
    (
        codec_table.SEGMENT,
        BufferSegment(number=7, flush="c", schema_id=1, schema=b"s", opened_s=1.5),
        {"number": 7},
    ),
    (
        codec_request.REQUEST,
        REQUEST,
        {"id": REQUEST.id, "table": REQUEST.table, "state": REQUEST.state},
    ),
    (codec_request._RANGE, KeyRange(b"a", None), {}),
    (codec_request._SELECTOR, SelectorSpec(name="size", options={"min": "1"}), {}),
    (codec_request._TRANSFORM, TransformSpec(), {}),
    (codec_request._OUTPUT, OutputSpec(codec="zstd"), {}),
]
TEXTS = st.text(max_size=8)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS | st.binary(max_size=8)
TREES = st.recursive(
    PLAIN | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=6,
)
EXTRAS = st.lists(TREES, min_size=1, max_size=5).map(tuple)


def extended(layout: codec.PackedLayout[Any], value: Any, extras: tuple[Any, ...]) -> bytes:
    """Return a value as a release writes it that knows more fields."""
    row = [codec._plain(slot, getattr(value, slot.name)) for slot in layout._slots]
    return codec.pack([*row, *extras])


def test_every_layout_is_looked_at() -> None:
    modules = (tablet, codec_request, codec_table, tablet)
    known = [var for module in modules for var in vars(module).values()]
    layouts = {id(each) for each in known if isinstance(each, codec.PackedLayout)}
    assert layouts == {id(layout) for layout, _, _ in EVERY}


@settings(deadline=None)
@given(st.sampled_from(EVERY), EXTRAS)
def test_unknown_fields_are_kept(
    example: tuple[codec.PackedLayout[Any], Any, dict[str, object]], extras: tuple[Any, ...]
) -> None:
    layout, value, named = example
    data = extended(layout, value, extras)
    found = layout.unpack("key", data, **named)
    assert found == value
    assert found.unknown_fields == extras
    assert layout.pack(found) == data
    assert replace(found).unknown_fields == extras
    assert "unknown_fields" not in as_plain(found)
    assert repr(found) == repr(value)


@settings(deadline=None)
@given(FILES, EXTRAS)
def test_unknown_fields_of_files_are_kept_on_the_quick_way_too(
    file: DataFile, extras: tuple[Any, ...]
) -> None:
    stored = {file.path.encode(): extended(FILE, file, extras)}
    for _ in range(2):  # The second time its shape is known, and the quick way taken.
        found = unpack_files("key", stored)[file.path]
        assert found == file
        assert FILE.pack(found) == stored[file.path.encode()]


def test_a_file_of_a_newer_release_takes_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    file = DataFile(path="f", size_bytes=5, rows=6)
    stored = {b"f": extended(FILE, file, ("new",))}
    unpack_files("key", stored)
    monkeypatch.setattr(tablet, "unpack_file", None)
    assert unpack_files("key", stored)["f"].unknown_fields == ("new",)


@settings(deadline=None)
@given(EXTRAS, EXTRAS)
def test_unknown_fields_inside_a_request_are_kept(
    first: tuple[Any, ...], second: tuple[Any, ...]
) -> None:
    wanted = replace(
        REQUEST,
        selector=replace(REQUEST.selector, unknown_fields=first),
        cancelled_ranges=(replace(REQUEST.cancelled_ranges[0], unknown_fields=second),),
    )
    data = codec_request.REQUEST.pack(wanted)
    named = {"id": REQUEST.id, "table": REQUEST.table, "state": REQUEST.state}
    found = codec_request.REQUEST.unpack("key", data, **named)
    assert found == REQUEST
    assert found.selector.unknown_fields == first
    assert found.cancelled_ranges[0].unknown_fields == second
    assert codec_request.REQUEST.pack(found) == data


@settings(deadline=None)
@given(st.dictionaries(TEXTS.map("new_{}".format), TREES, min_size=1, max_size=4), EXTRAS)
def test_unknown_fields_of_a_table_are_kept(
    named: dict[str, Any], column_extras: tuple[Any, ...]
) -> None:
    table = Table(
        id="t1",
        name="n",
        location="file:///t",
        schema=(Column("k", "int64"),),
        settings=TableSettings(ratio=2.0),
    )
    column = ["k", "int64", True, 0, *column_extras]
    stored: dict[bytes, bytes] = {
        b"spec": codec.pack({"name": "n", "location": "file:///t", "schema": [column], **named}),
        b"settings": codec.pack({"ratio": 2.0, **named}),
        b"version": b"1",
        b"state": b"live",
    }
    found = codec_table.unpack_table("key", "t1", stored)
    assert found == table
    written = codec_table.table_fields(found)
    assert written["settings"] == stored[b"settings"]
    assert codec.unpack("key", written["spec"]) == codec.unpack("key", stored[b"spec"])  # type: ignore[arg-type]  # bytes


LARGE = "x" * codec.UNKNOWN_BYTES_MAX


@pytest.mark.parametrize(
    ("extras", "cause"),
    [
        ((1,) * (codec.UNKNOWN_FIELDS_MAX + 1), "has 65 unknown fields, at most 64"),
        ((LARGE,), "bytes of unknown fields, at most 65536"),
    ],
    ids=["many", "large"],
)
def test_more_than_can_be_kept_is_refused(extras: tuple[Any, ...], cause: str) -> None:
    for layout, value, named in EVERY:
        with pytest.raises(BrokenValueError, match=f"key.*{cause}"):
            layout.unpack("key", extended(layout, value, extras), **named)
    file = DataFile(path="f", size_bytes=5, rows=6)
    with pytest.raises(BrokenValueError, match=f"key.*{cause}"):
        unpack_files("key", {b"f": extended(FILE, file, extras)})
    named_extras = {f"new_{number}": value for number, value in enumerate(extras)}
    with pytest.raises(BrokenValueError, match=f"key.*{cause}"):
        codec_table.unpack_settings("key", codec.pack(named_extras))


def test_another_version_is_refused_though_its_fields_fit() -> None:
    for layout, value, named in EVERY:
        data = b"\x02" + layout.pack(value)[1:]
        with pytest.raises(BrokenValueError, match="format version 2, this release reads 1"):
            layout.unpack("key", data, **named)
