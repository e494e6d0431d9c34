"""Merge on read in pieces gives what merging everything at once gives."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId
from common.parquet.inspect import read_rows
from common.parquet.location import open_location
from common.parquet.write import write_table
from common.rows.rules import RowRules
from common.rows.scan import scan_tables
from neve.gateway import scan_tablet
from neve.gateway.scan import before
from neve.gateway.scan_tablet import TabletReader
from tests.support.tables_on_disk import KEYED, keyed_table


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
    return TabletReader(table, 1_000_000.0, KEYED.names), tablet


@pytest.mark.parametrize("seed", range(6))
def test_pieces_add_up_to_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    reader, tablet = tablet_on_disk(tmp_path, chance, count=1 + seed % 4)
    monkeypatch.setattr(scan_tablet, "PIECE_BYTES", 400)
    table = keyed_table(tmp_path)
    location, rules = open_location(table.location), RowRules.of(table)
    every = [read_rows(location, path, rules) for path in tablet.files]

    pieces = list(reader.read(tablet, None, None))

    assert len(pieces) > 3
    assert pa.concat_tables(pieces).equals(scan_tables(every, rules, 1_000_000.0))


def test_bytes_before_a_key_leave_nothing_between() -> None:
    assert before(b"") is None
    assert before(b"\x01\x00") == b"\x01"
    low = before(b"\x01\x80")
    assert low is not None
    assert b"\x01\x7f" + b"\xff" * 8 < low < b"\x01\x80"
