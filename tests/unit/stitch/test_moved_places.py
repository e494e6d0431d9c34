"""Page indexes and Bloom filters are found at their new places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import NotStitchableError
from common.parquet.location import open_location
from compactor.rewrite.parquet_bytes import footer as ids
from compactor.rewrite.parquet_bytes.footer import (
    Chunk,
    Span,
    decode,
    decode_whole,
    elements,
    integer,
)
from compactor.rewrite.parquet_bytes.relocation import (
    PAGE_BYTES,
    PAGE_OFFSET,
    PAGES,
    MovedChunk,
    StitchPiece,
    with_page_index,
)
from compactor.rewrite.parquet_bytes.stitch import stitch
from tests.support.layouts import layout_of_file, read_file_layout
from tests.support.misordered import last_first, misordered

ROWS = 6000
PAGE_HEADER_COMPRESSED = 3


def write(folder: Path, number: int, **options: Any) -> None:
    rows = pa.table(
        {
            "k": [(n * 7919) % ROWS + number * ROWS for n in range(ROWS)],
            "s": [f"v{n % 300}-{number}" for n in range(ROWS)],
        }
    )
    given = {"row_group_size": 2000, "data_page_size": 2000, "write_page_index": True}
    given["write_batch_size"] = 100
    pq.write_table(rows, folder / f"{number}.parquet", **given | options)


def join(folder: Path, *pieces: StitchPiece) -> tuple[bytes, list[Chunk]]:
    location = open_location(folder.as_uri())
    stitch(location, pieces, "s.parquet")
    layout = read_file_layout(location, "s.parquet")
    return (folder / "s.parquet").read_bytes(), [c for g in layout.groups for c in g.chunks]


def part(content: bytes, span: Span | None) -> bytes:
    assert span is not None
    return content[span.start : span.end]


def test_every_page_is_where_the_offset_index_says(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path, number)
    content, chunks = join(tmp_path, StitchPiece("2.parquet", (2, 0)), StitchPiece("1.parquet"))
    assert len(chunks) == 10
    for chunk in chunks:
        index = decode_whole(part(content, chunk.offset_index), {PAGES: {}})
        pages = [
            (integer(element, PAGE_OFFSET), integer(element, PAGE_BYTES))
            for element in elements(index, PAGES)
        ]
        assert len(pages) > 1
        for at, size in pages:
            assert at is not None
            header, body = decode(content, {}, at)
            assert size == body - at + (integer(header, PAGE_HEADER_COMPRESSED) or 0)
        last, size = pages[-1]
        assert (last or 0) + (size or 0) == chunk.data.end


def test_an_offset_index_is_moved_alike_however_it_is_stored(tmp_path: Path) -> None:
    write(tmp_path, 1)
    layout = read_file_layout(open_location(tmp_path.as_uri()), "1.parquet")
    chunk = layout.groups[0].chunks[0]
    plain = part((tmp_path / "1.parquet").read_bytes(), chunk.offset_index)
    pages = elements(decode_whole(plain, {PAGES: {}}), PAGES)
    values = [[page[number].value for number in (1, 2, 3)] for page in pages]
    # Each field has its number instead of the distance from the one before.
    spread = [b"\x06\x02%b\x05\x04%b\x06\x06%b\0" % tuple(page) for page in values]
    first = plain.index(b"\x16")
    other = plain[:first] + b"".join(spread) + b"\0"
    assert len(other) > len(plain)
    moved = MovedChunk(chunk, chunk.data.start + 1_000_000)
    ways = [with_page_index(moved, b"", index).offset_index for index in (plain, other)]
    assert ways[0] == ways[1] != plain
    damaged = (
        plain[:-1],
        plain + b"\0",
        plain[:first] + plain[first + 1 :],
        b"\x19\x1c" + plain[2:],
    )
    for index in damaged:
        with pytest.raises(NotStitchableError):
            with_page_index(moved, b"", index)
    away = MovedChunk(replace(chunk, data=Span(0, chunk.data.start)), chunk.data.start)
    for index in (plain, other):
        with pytest.raises(NotStitchableError, match="page at byte"):
            with_page_index(away, b"", index)


def test_misordered_columns_are_put_in_order(tmp_path: Path) -> None:
    """Pages, their indexes and Bloom filters are those of the same file well ordered."""
    blooms = {"k": {"ndv": 100}, "s": {"ndv": 300}}
    write(tmp_path, 1, bloom_filter_options=blooms)
    wanted, orderly = join(tmp_path, StitchPiece("1.parquet", (2, 0)))
    (tmp_path / "s.parquet").unlink()
    content = pa.py_buffer((tmp_path / "1.parquet").read_bytes())
    (tmp_path / "2.parquet").write_bytes(misordered(content, last_first))
    assert layout_of_file(tmp_path / "2.parquet").fault is not None

    joined, chunks = join(tmp_path, StitchPiece("2.parquet", (2, 0)))

    assert layout_of_file(tmp_path / "s.parquet").fault is None
    assert len(chunks) == 4
    end = chunks[-1].data.end
    assert joined[:end] == wanted[:end]
    for one, other in zip(chunks, orderly, strict=True):
        assert one.data == other.data
        assert part(joined, one.offset_index) == part(wanted, other.offset_index)
        assert part(joined, one.column_index) == part(wanted, other.column_index)
        blooms_of = [Span(c.bloom_start or 0, c.bloom_size or 0) for c in (one, other)]
        assert part(joined, blooms_of[0]) == part(wanted, blooms_of[1])


def test_row_groups_say_where_they_are(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path, number)
    join(tmp_path, StitchPiece("2.parquet", (2, 0)), StitchPiece("1.parquet"))
    layout = read_file_layout(open_location(tmp_path.as_uri()), "s.parquet")
    end = len(ids.MAGIC)
    for number, group in enumerate(layout.groups):
        assert integer(group.struct, ids.ORDINAL) == number
        assert integer(group.struct, ids.GROUP_OFFSET) == group.chunks[0].data.start == end
        assert integer(group.struct, ids.GROUP_COMPRESSED) == group.compressed_bytes
        assert [integer(chunk.struct, ids.CHUNK_OFFSET) for chunk in group.chunks] == [0, 0]
        end = group.chunks[-1].data.end


def test_statistics_stay_and_are_trusted(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    join(tmp_path, StitchPiece("2.parquet"), StitchPiece("1.parquet"))
    before = [pq.read_metadata(tmp_path / f"{number}.parquet") for number in (2, 1)]
    after = pq.read_metadata(tmp_path / "s.parquet")
    for number in range(6):
        for column in range(2):
            old = before[number // 3].row_group(number % 3).column(column)
            new = after.row_group(number).column(column)
            assert new.statistics.has_min_max
            assert new.statistics.to_dict() == old.statistics.to_dict()
            assert (new.num_values, new.encodings) == (old.num_values, old.encodings)
    frame = duckdb.connect().sql(f"select count(*) from '{tmp_path}/s.parquet' where s < 'v1'")
    assert frame.fetchall() == [(40,)]


def test_column_indexes_come_over_as_they_were(tmp_path: Path) -> None:
    write(tmp_path, 1)
    before = (tmp_path / "1.parquet").read_bytes()
    old = read_file_layout(open_location(tmp_path.as_uri()), "1.parquet").groups[1].chunks
    content, chunks = join(tmp_path, StitchPiece("1.parquet", (1,)))
    assert [part(content, chunk.column_index) for chunk in chunks] == [
        part(before, each.column_index) for each in old
    ]


def test_a_file_without_page_index_beside_one_that_has_one(tmp_path: Path) -> None:
    write(tmp_path, 1, write_page_index=False)
    write(tmp_path, 2)
    _, chunks = join(tmp_path, StitchPiece("1.parquet"), StitchPiece("2.parquet"))
    assert [chunk.column_index is None for chunk in chunks] == [True] * 6 + [False] * 6
    assert [chunk.offset_index is None for chunk in chunks] == [True] * 6 + [False] * 6
    assert pq.read_table(tmp_path / "s.parquet").num_rows == 2 * ROWS


def probe(path: Path, value: str) -> list[bool]:
    """Return for every row group whether its filter rules the value out."""
    found = (
        duckdb.connect()
        .sql(f"select * from parquet_bloom_probe('{path}', 's', '{value}')")
        .fetchall()
    )
    return [excluded for _, _, excluded in sorted(found)]


def test_bloom_filters_still_rule_out(tmp_path: Path) -> None:
    write(tmp_path, 1, bloom_filter_options={"s": {"ndv": 300, "fpp": 0.001}})
    rows = f"select range as k, 'v' || (range % 300) || '-2' as s from range({ROWS})"
    duckdb.connect().sql(f"copy ({rows}) to '{tmp_path}/2.parquet' (row_group_size 2048)")
    again = pq.read_table(tmp_path / "2.parquet").schema
    assert again.names == ["k", "s"]
    join(tmp_path, StitchPiece("2.parquet"))
    assert probe(tmp_path / "s.parquet", "v7-2") == [False] * 3
    assert probe(tmp_path / "s.parquet", "v7-1") == [True] * 3
    (tmp_path / "s.parquet").rename(tmp_path / "3.parquet")
    join(tmp_path, StitchPiece("1.parquet", (1, 2)))
    assert probe(tmp_path / "s.parquet", "v7-1") == [False] * 2
    assert probe(tmp_path / "s.parquet", "v7-2") == [True] * 2
    (tmp_path / "s.parquet").rename(tmp_path / "4.parquet")
    _, chunks = join(tmp_path, StitchPiece("3.parquet", (2, 0)), StitchPiece("3.parquet", (1,)))
    assert [chunk.bloom_start is None for chunk in chunks] == [True, False] * 3
    assert probe(tmp_path / "s.parquet", "v7-2") == [False] * 3
    assert probe(tmp_path / "s.parquet", "nothing") == [True] * 3
