"""Footers of strangers: nothing but a refusal comes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InputError, NotStitchableError
from common.parquet.location import open_location
from compactor.rewrite.parquet_bytes import footer as ids
from compactor.rewrite.parquet_bytes import sources
from compactor.rewrite.parquet_bytes import stitch as stitching
from compactor.rewrite.parquet_bytes.footer import (
    BINARY,
    DEPTH_MAX,
    FALSE,
    I16,
    I32,
    LIST,
    NUMBERS,
    STRUCT,
    TRUE,
    Elements,
    Field,
    FooterLayout,
    Located,
    Shape,
    Struct,
    ThriftError,
    binary_field,
    decode,
    decode_whole,
    edited,
    elements,
    encode,
    integer,
    number_field,
    read_layout,
    refuse_old_writer,
)
from compactor.rewrite.parquet_bytes.relocation import StitchPiece
from compactor.rewrite.parquet_bytes.stitch import stitch
from tests.support.layouts import opened_struct, read_file_layout

numbers = st.one_of(
    st.builds(number_field, st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(number_field, st.integers(-(1 << 15), (1 << 15) - 1), st.just(I16)),
)
leaves = st.one_of(
    numbers,
    st.builds(binary_field, st.binary(max_size=200)),
    st.sampled_from([Field(TRUE, b""), Field(FALSE, b"")]),
    st.builds(lambda value: Field(7, value), st.binary(min_size=8, max_size=8)),
)
field_ids = st.one_of(st.integers(1, 40), st.integers(1, (1 << 15) - 1))
structs: Any = st.recursive(
    st.dictionaries(field_ids, leaves, max_size=6),
    lambda inside: st.dictionaries(
        field_ids,
        st.one_of(
            leaves,
            st.builds(lambda value: Field(STRUCT, value), inside),
            st.builds(lambda values: Field(LIST, Elements(values)), st.lists(inside, max_size=20)),
        ),
        max_size=6,
    ),
    max_leaves=30,
)


def opening(struct: Struct) -> dict[int, Any]:
    """Return the shape that opens everything in a struct."""
    shape: dict[int, Any] = {}
    for number, field in struct.items():
        if isinstance(field.value, dict):
            shape[number] = opening(field.value)
        elif isinstance(field.value, Elements):
            shape[number] = {}
            for each in field.value.values:
                shape[number] = merged(shape[number], opening(each))
    return shape


def merged(one: dict[int, Any], other: dict[int, Any]) -> dict[int, Any]:
    both = dict(one)
    for number, inside in other.items():
        both[number] = merged(both.get(number, {}), inside)
    return both


@given(structs)
def test_thrift_is_decoded_and_unknown_fields_are_kept(struct: Struct) -> None:
    coded = encode(struct)
    assert decode_whole(coded, opening(struct)) == struct
    closed = decode_whole(coded, {})
    assert all(isinstance(field.value, bytes) for field in closed.values())
    assert encode(closed) == coded


@given(st.binary(max_size=300), structs)
def test_bytes_that_mean_nothing(noise: bytes, struct: Struct) -> None:
    for content in (noise, encode(struct)[: len(noise)], encode(struct) + noise):
        try:
            found, end = decode(content, opening(struct))
        except ThriftError:
            continue
        assert end <= len(content)
        assert decode_whole(encode(found), opening(struct)) == found


def read_inner(content: bytes, shape: Shape | None) -> Field | None:
    try:
        return decode_whole(content, {1: shape}).get(1)
    except ThriftError:
        return None


changes = st.dictionaries(field_ids, st.one_of(numbers, st.none()), max_size=4)


@given(structs, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3), changes)
def test_located_and_opened_structs_agree_on_damaged_bytes(
    struct: Struct, damage: list[tuple[int, int]], more: dict[int, Field | None]
) -> None:
    content = bytearray(encode({1: Field(STRUCT, struct)}))
    for at, byte in damage:
        content[at % len(content)] = byte
    opened, found = read_inner(bytes(content), {}), read_inner(bytes(content), None)
    if opened is None or isinstance(opened.value, Elements):
        assert found is None
        return
    assert found is not None
    if not isinstance(opened.value, dict):
        assert found == opened  # The damage has made it something else.
        return
    assert isinstance(found.value, Located)
    known = [number for number, field in opened.value.items() if field.type in NUMBERS]
    for number in known:
        assert integer(found.value, number) == integer(opened.value, number)
    assert integer(found.value, max(opened.value, default=0) + 1) is None
    for fields in (more, {number: Field(opened.value[number].type, b"\x02") for number in known}):
        wanted = {n: f for n, f in (opened.value | fields).items() if f is not None}
        assert decode_whole(edited(found.value, fields), {}) == wanted


def test_fields_that_do_not_lie_in_the_order_of_their_ids_are_changed_each_by_itself() -> None:
    content = b"\x1c" + b"\x46\x08" + b"\x06\x04\x0a" + b"\x00\x00"  # field 4, then field 2
    found = read_inner(content, None)
    assert found is not None
    assert isinstance(found.value, Located)
    fields: dict[int, Field | None] = {2: number_field(7), 4: number_field(9)}
    assert decode_whole(edited(found.value, fields), {}) == fields


@pytest.mark.parametrize(
    "content",
    [
        bytes([0x1C] * (DEPTH_MAX + 3)),  # structs without end
        bytes([0x19] + [0x19] * (DEPTH_MAX + 3)),  # lists without end
        b"\x19\xfc\xff\xff\xff\xff\x7f\x00",  # a list of 34 billion structs
        b"\x18\xff\xff\xff\xff\x0f\x00",  # four gigabytes of text
        b"\x16" + b"\xff" * 11 + b"\x00",  # a number that does not end
        b"\x16\x02\x06\x02\x02\x00",  # field 1 twice
        b"\x06\x03\x02\x00",  # field -2
        b"\x1f\x00",  # a type that is none
        b"\x1b\xff\xff\xff\xff\x0f\x88",  # a map of four billion texts
    ],
)
def test_bytes_that_mean_harm(content: bytes) -> None:
    for shape in ({}, {1: {}}):
        with pytest.raises(ThriftError):
            decode_whole(content, shape)


def a_file(folder: Path, **options: Any) -> Path:
    rows = pa.table({"k": range(900), "s": [f"v{n % 9}" for n in range(900)]})
    given_options = {"row_group_size": 300, "write_page_index": True} | options
    pq.write_table(rows, folder / "a.parquet", **given_options)
    return folder / "a.parquet"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> FooterLayout:
    folder = tmp_path_factory.mktemp("sound")
    a_file(folder)
    return read_file_layout(open_location(folder.as_uri()), "a.parquet")


@given(st.data())
def test_a_footer_with_changed_bytes_is_refused_or_stays_in_its_file(
    sound: FooterLayout, data: st.DataObject
) -> None:
    footer = bytearray(sound.footer)
    for _ in range(data.draw(st.integers(1, 4))):
        footer[data.draw(st.integers(0, len(footer) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_layout(bytes(footer), sound.size_bytes)
    except NotStitchableError:
        return
    for group in found.groups:
        assert 0 <= group.compressed_bytes <= found.data_end
        for chunk in group.chunks:
            assert 4 <= chunk.data.start <= chunk.data.end <= found.data_end


def changed(folder: Path, sound: FooterLayout, at: str, number: int, field: Field | None) -> None:
    """Write the file with one field of its first column, row group or of the file changed."""
    struct = decode_whole(sound.footer, {ids.ROW_GROUPS: {ids.CHUNKS: {ids.META: {}}}})
    group = elements(struct, ids.ROW_GROUPS)[0]
    chunk = elements(group, ids.CHUNKS)[0]
    place = {
        "file": struct,
        "group": group,
        "chunk": chunk,
        "meta": opened_struct(chunk, ids.META),
    }[at]
    assert place is not None
    if field is None:
        place.pop(number, None)
    else:
        place[number] = field
    path = a_file(folder)
    footer = encode(struct)
    content = path.read_bytes()[: -8 - len(sound.footer)]
    path.write_bytes(content + footer + len(footer).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize(
    ("at", "number", "field", "cause"),
    [
        ("file", ids.ENCRYPTION, Field(STRUCT, {}), "encrypted"),
        ("chunk", ids.CRYPTO, Field(STRUCT, {}), "encrypted"),
        ("chunk", ids.FILE_PATH, binary_field(b"/etc/passwd"), "other files"),
        ("chunk", ids.META, None, "undescribed columns"),
        ("meta", ids.CODEC, number_field(99, I32), "codec 99"),
        ("meta", ids.DATA_PAGE, number_field(-4), "expected a count"),
        ("meta", ids.DATA_PAGE, number_field(1), "dictionary at byte"),
        ("meta", ids.COMPRESSED, number_field(1 << 60), "are not before"),
        ("meta", ids.COMPRESSED, number_field(4000), "share the bytes"),
        ("meta", ids.BLOOM, number_field(1 << 40), "are not before"),
        ("meta", ids.DATA_PAGE, Field(BINARY, b"\x00"), "expected a whole number"),
        ("group", ids.ROWS, number_field(5), "row groups have others"),
        ("group", ids.CHUNKS, Field(LIST, Elements([])), "row group of 0 columns"),
        ("file", ids.FILE_ROWS, number_field(7), "row groups have others"),
        ("file", ids.CREATED_BY, None, "does not name its writer"),
        ("chunk", ids.OFFSET_INDEX, number_field(4), "offset index is damaged"),
    ],
)
def test_a_file_with_one_wrong_field_is_not_stitched(
    tmp_path: Path, sound: FooterLayout, at: str, number: int, field: Field | None, cause: str
) -> None:
    changed(tmp_path, sound, at, number, field)
    with pytest.raises(NotStitchableError, match=cause):
        stitch(open_location(tmp_path.as_uri()), [StitchPiece("a.parquet")], "s.parquet")
    assert not (tmp_path / "s.parquet").exists()


def test_row_groups_that_share_bytes_do_not_multiply(tmp_path: Path, sound: FooterLayout) -> None:
    struct = decode_whole(sound.footer, {ids.ROW_GROUPS: {}})
    groups = elements(struct, ids.ROW_GROUPS)
    struct[ids.ROW_GROUPS] = Field(LIST, Elements([groups[0]] * 3))
    changed(tmp_path, sound, "file", ids.ROW_GROUPS, struct[ids.ROW_GROUPS])
    with pytest.raises(NotStitchableError, match="share bytes"):
        stitch(open_location(tmp_path.as_uri()), [StitchPiece("a.parquet")], "s.parquet")


def test_a_dictionary_at_zero_is_none(tmp_path: Path, sound: FooterLayout) -> None:
    a_file(tmp_path, use_dictionary=False)
    location = open_location(tmp_path.as_uri())
    plain = read_file_layout(location, "a.parquet")
    struct = decode_whole(plain.footer, {ids.ROW_GROUPS: {ids.CHUNKS: {ids.META: {}}}})
    meta = opened_struct(elements(elements(struct, ids.ROW_GROUPS)[0], ids.CHUNKS)[0], ids.META)
    assert meta is not None
    meta[ids.DICTIONARY_PAGE] = number_field(0)
    footer = encode(struct)
    content = (tmp_path / "a.parquet").read_bytes()[: -8 - len(plain.footer)]
    ending = footer + len(footer).to_bytes(4, "little") + b"PAR1"
    (tmp_path / "a.parquet").write_bytes(content + ending)
    stitch(location, [StitchPiece("a.parquet")], "s.parquet")
    column = pq.read_metadata(tmp_path / "s.parquet").row_group(0).column(0)
    assert (column.has_dictionary_page, column.data_page_offset) == (False, 4)
    assert pq.read_table(tmp_path / "s.parquet")["k"].to_pylist() == list(range(900))


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", b"x" * 100, b"PAR1" + b"\0" * 20 + b"PARE", b"PAR1" + b"\xff" * 20 + b"PAR1"],
)
def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"file a\.parquet cannot be stitched"):
        read_file_layout(open_location(tmp_path.as_uri()), "a.parquet")


@pytest.mark.parametrize(
    "created_by",
    [
        b"parquet-mr version 1.8.1 (build 4aba4dae7bb0d4edbcf7923ae1339f28fd3f7fcf)",
        b"parquet-mr",
        b"parquet-cpp version 1.5.1-SNAPSHOT",
        b"parquet-cpp-arrow version 1.0.1",
        b"",
        None,
    ],
)
def test_writers_with_known_faults(created_by: bytes | None) -> None:
    with pytest.raises(NotStitchableError):
        refuse_old_writer(created_by)


@pytest.mark.parametrize(
    "created_by",
    [
        b"parquet-mr version 1.13.1 (build db4183109d5b734ec5930d870cdae161e408ddba)",
        b"parquet-cpp-arrow version 26.0.1",
        b"DuckDB version v1.4.0 (build b8a06e4)",
        b"Polars",
        b"\xff\xfe",
        b"neve version 0.1.0",
    ],
)
def test_writers_that_are_trusted(created_by: bytes) -> None:
    refuse_old_writer(created_by)


def test_footers_that_would_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_file(tmp_path)
    pieces = [StitchPiece("a.parquet")] * 3
    location = open_location(tmp_path.as_uri())
    stitch(location, pieces, "s.parquet")
    size = len(read_file_layout(location, "a.parquet").footer)
    monkeypatch.setattr(stitching, "FOOTERS_BYTES_MAX", 3 * size - 1)
    with pytest.raises(NotStitchableError, match="footers take more than"):
        stitch(location, pieces, "t.parquet")
    monkeypatch.setattr(sources, "FOOTER_BYTES_MAX", size - 1)
    with pytest.raises(NotStitchableError, match="does not fit"):
        stitch(location, pieces[:1], "t.parquet")
    assert not (tmp_path / "t.parquet").exists()
