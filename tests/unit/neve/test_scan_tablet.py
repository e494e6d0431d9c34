"""Merge on read in pieces gives what merging everything at once gives."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.keys import encode_key, key_before
from common.model.table import Table, TableSettings
from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId
from common.parquet import row_batches
from common.parquet.file_inspection import ProbedFiles, read_rows
from common.parquet.location import open_location
from common.parquet.write import write_table
from common.rows.merge import scan_tables
from common.rows.rules import RowRules
from neve.gateway import table_files
from neve.gateway.table_files import ScanWeights, TabletReader
from tests.support.tables_on_disk import KEYED, bag_table, keyed_table, random_rows


def tablet_on_disk(folder: Path, chance: random.Random, count: int) -> tuple[TabletReader, Tablet]:
    table = keyed_table(folder)
    location, rules = open_location(table.location), RowRules.of(table)
    files = {}
    for number in range(count):
        keys = [chance.randrange(200) for _ in range(300)]
        rows = pa.table(
            {
                "k": keys,
                "name": [chance.choice(["", "a", "b"]) for _ in keys],
                "v": [chance.randrange(50) for _ in keys],
                "dead": [chance.random() < 0.2 for _ in keys],
            },
            schema=pa.schema([KEYED.field(name) for name in ("k", "name", "v", "dead")]),
        )
        facts = write_table(location, f"{number}.parquet", rows, rules, table.settings)
        files[facts.path] = facts.data_file(added_at_s=1.0)
    tablet = Tablet(
        id=TabletId(table.id, PLUS_INFINITY), bounds=Bounds(None, PLUS_INFINITY), files=files
    )
    return TabletReader(table, 1_000_000.0, KEYED.names, ProbedFiles(), ScanWeights()), tablet


@pytest.mark.parametrize("seed", range(6))
def test_pieces_add_up_to_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    reader, tablet = tablet_on_disk(tmp_path, chance, count=1 + seed % 4)
    monkeypatch.setattr(table_files, "PIECE_BYTES", 400)
    table = keyed_table(tmp_path)
    location, rules = open_location(table.location), RowRules.of(table)
    every = [read_rows(location, path, rules) for path in tablet.files]

    pieces = list(reader.read(tablet, None, None))

    assert len(pieces) > 3
    assert pa.concat_tables(pieces).equals(scan_tables(every, rules, 1_000_000.0))


NOW_S, MEBI = 1_000_000.0, 1024**2
WITH_TTL = TableSettings(ttl_s=400.0)


def tablet_of(table: Table, *every: pa.Table) -> Tablet:
    """Return a tablet of files with these rows."""
    location, rules = open_location(table.location), RowRules.of(table)
    files = {}
    for number, rows in enumerate(every):
        facts = write_table(location, f"{number}.parquet", rows, rules, table.settings)
        files[facts.path] = facts.data_file(added_at_s=1.0)
    return Tablet(
        id=TabletId(table.id, PLUS_INFINITY), bounds=Bounds(None, PLUS_INFINITY), files=files
    )


def counts(table: Table, tablet: Tablet, *span: bytes | None) -> tuple[int, int]:
    """Return how many rows are counted, and how many a scan gives."""
    reader = TabletReader(table, NOW_S, KEYED.names, ProbedFiles(), ScanWeights())
    start, end = span or (None, None)
    scanned = sum(piece.num_rows for piece in reader.read(tablet, start, end))
    return sum(reader.counts(tablet, start, end)), scanned


def numbered(*keys: int, **columns: Any) -> pa.Table:
    """Return rows with these keys, alive at every time."""
    size = len(keys)
    usual = {
        "k": keys,
        "name": ["n"] * size,
        "v": [1] * size,
        "dead": [False] * size,
        "at": pa.array([int(NOW_S * 1e6)] * size, pa.timestamp("us", "UTC")),
        "x": [0.5] * size,
    }
    return pa.table(usual | columns).cast(KEYED)


@pytest.mark.parametrize("ttl", [None, 100.0])
@pytest.mark.parametrize("seed", range(6))
def test_as_many_rows_are_counted_as_are_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, ttl: float | None
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(table_files, "PIECE_BYTES", 3000)
    make = bag_table if seed % 3 == 2 else keyed_table
    table = make(tmp_path, settings=TableSettings(ttl_s=ttl))
    every = [
        pa.Table.from_pylist(random_rows(chance, 200, keys=60), KEYED) for _ in range(1 + seed % 4)
    ]
    tablet = tablet_of(table, *every)
    spans: list[tuple[bytes | None, bytes | None]] = [(None, None)]
    if table.key:
        keys = sorted(filter(None, (file.key_max for file in tablet.files.values())))
        spans += [(key_before(keys[0]), None), (None, keys[0]), (keys[0][:6], keys[-1])]
    for span in spans:
        counted, scanned = counts(table, tablet, *span)
        assert counted == scanned


def test_a_tie_of_an_expired_row_with_one_alive_is_decided_as_in_a_scan(tmp_path: Path) -> None:
    table = keyed_table(tmp_path, settings=WITH_TTL)
    old = pa.array([0] * 40, pa.timestamp("us", "UTC"))
    keys = range(40)
    tablet = tablet_of(table, numbered(*keys), numbered(*keys, at=old, x=[0.25] * 40))

    counted, scanned = counts(table, tablet)

    assert counted == scanned
    assert 0 < scanned < 40


def test_columns_that_decide_nothing_are_not_read(tmp_path: Path) -> None:
    table = keyed_table(tmp_path)
    tablet = tablet_of(table, numbered(1, 2, 3), numbered(2, 3, 4, v=[2, 2, 2]))
    for path in tmp_path.glob("*.parquet"):
        _damage(path, "x")

    assert (
        sum(
            TabletReader(table, NOW_S, KEYED.names, ProbedFiles(), ScanWeights()).counts(
                tablet, None, None
            )
        )
        == 4
    )


def test_metadata_alone_tells_of_files_that_lie_apart(tmp_path: Path) -> None:
    table = keyed_table(tmp_path)
    tablet = tablet_of(table, numbered(1, 2, 3), numbered(4, 5), numbered(6, 7, dead=[True, False]))
    for name in ("0.parquet", "1.parquet"):
        (tmp_path / name).unlink()

    assert (
        sum(
            TabletReader(table, NOW_S, KEYED.names, ProbedFiles(), ScanWeights()).counts(
                tablet, None, None
            )
        )
        == 6
    )


def test_of_a_file_that_reaches_out_of_the_range_rows_are_counted(tmp_path: Path) -> None:
    table = keyed_table(tmp_path)
    tablet = tablet_of(table, numbered(1, 2, 3), numbered(4, 5, 6))
    middle = tablet.files["0.parquet"].key_max

    assert counts(table, tablet, None, middle) == (3, 3)
    low = encode_key([2, "n"], RowRules.of(table).key_types)
    assert counts(table, tablet, low, None) == (4, 4)
    assert counts(table, tablet, None, low) == (2, 2)


def test_metadata_alone_tells_of_files_without_a_key_until_they_may_expire(tmp_path: Path) -> None:
    table = bag_table(tmp_path, settings=WITH_TTL)
    old = pa.array([0, int(NOW_S * 1e6)], pa.timestamp("us", "UTC"))
    tablet = tablet_of(table, numbered(1, 1, 2), numbered(1, 2, at=old))
    (tmp_path / "0.parquet").unlink()

    assert (
        sum(
            TabletReader(table, NOW_S, KEYED.names, ProbedFiles(), ScanWeights()).counts(
                tablet, None, None
            )
        )
        == 4
    )


def test_rows_of_a_file_without_the_time_are_counted(tmp_path: Path) -> None:
    table = bag_table(tmp_path, settings=WITH_TTL)
    tablet = tablet_of(table, numbered(1, 1, 2))
    pq.write_table(numbered(1, 1, 2).drop_columns(["at"]), tmp_path / "0.parquet")
    (path, file), *_ = tablet.files.items()
    tablet = replace(tablet, files={path: replace(file, time_min_s=None, time_max_s=None)})

    assert counts(table, tablet) == (3, 3)


def _damage(path: Path, column: str) -> None:
    """Overwrite the pages of a column."""
    group = pq.read_metadata(path).row_group(0)
    chunk = next(
        group.column(at)
        for at in range(group.num_columns)
        if group.column(at).path_in_schema == column
    )
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * chunk.total_compressed_size)


def test_bytes_before_a_key_leave_nothing_between() -> None:
    assert key_before(b"") is None
    assert key_before(b"\x01\x00") == b"\x01"
    low = key_before(b"\x01\x80")
    assert low is not None
    assert b"\x01\x7f" + b"\xff" * 8 < low < b"\x01\x80"


def test_pieces_are_small_also_where_long_texts_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "PIECE_BYTES", MEBI)
    monkeypatch.setattr(row_batches, "BATCH_BYTES", 10 * MEBI)
    table = keyed_table(tmp_path)
    tablet = tablet_of(
        table, *(numbered(*range(5_000), name=["x" * 4_000] * 5_000) for _ in range(2))
    )
    assert sum(file.size_bytes for file in tablet.files.values()) < MEBI
    reader = TabletReader(table, NOW_S, KEYED.names, ProbedFiles(), ScanWeights())

    sizes = [piece.nbytes for piece in reader.read(tablet, None, None)]

    # Each of two rows with one key weighs.
    assert 20e6 < sum(sizes) < 22e6
    assert max(sizes) < 12 * MEBI


def test_weights_are_remembered_and_the_oldest_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed_table(tmp_path)
    tablet = tablet_of(table, numbered(1), numbered(2), numbered(3))
    files, place = [*tablet.files.values()], open_location(table.location)
    looked: list[int] = []

    def told(_: object, columns: list[str]) -> int:
        looked.append(len(columns))
        return 7

    monkeypatch.setattr(table_files, "decoded_bytes", told)
    weights = ScanWeights(known_max=2)

    assert weights.of(place, files, ["k"]) == dict.fromkeys(tablet.files, 7)
    weights.of(place, files[1:], ["k"])
    assert looked == [1, 1, 1]
    weights.of(place, files[2:], ["k", "v"])
    weights.of(place, files[1:2], ["k"])
    assert looked == [1, 1, 1, 2, 1]
