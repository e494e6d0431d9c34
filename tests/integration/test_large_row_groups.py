"""Files that are one large row group are looked at, and read in pieces, in little memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.parquet.file_inspection import inspect_file, sample_keys
from common.parquet.location import open_location
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from compactor.rewrite.kernel.normalized_keys import RowGroup
from compactor.rewrite.kernel.reader import Reader
from compactor.rewrite.kernel.winners import RowLayout
from compactor.rewrite.memory_budget import TASK_BYTES, task_environ
from compactor.rewrite.plan.inputs import FooterQuery, estimate_decoded_bytes, read_footers
from neve.recovery.fsck import FileCheck, check_file
from tests.support.peak_memory import peak_bytes
from tests.support.run_apart import run_apart
from tests.support.tables_on_disk import keyed_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc"),
]

MB = 1024**2
NAME = "a.parquet"
ROWS = 6_000_000
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("x", pa.float64())])
PIECE_ROWS = 100_000
LIBRARIES_BYTES = 190 * MB
ROOM_BYTES = 110 * MB
"""Of rows that are looked at, and pages that they lie in: a third of what is stored."""


def written(folder: Path) -> int:
    """Write the file; return how many bytes its one row group stores."""
    numbers = np.arange(ROWS, dtype=np.int64) * 3
    chance = np.random.default_rng(1)
    rows = pa.table(
        {"k": hexadecimal(numbers), "v": numbers, "x": chance.random(ROWS)}, schema=SCHEMA
    )
    options = {"use_dictionary": False, "compression": "none", "row_group_size": ROWS}
    pq.write_table(rows, folder / NAME, **options)
    group = pq.read_metadata(folder / NAME).row_group(0)
    return sum(group.column(at).total_compressed_size for at in range(group.num_columns))


def hexadecimal(numbers: np.ndarray) -> pa.StringArray:
    """Return each number as a text of 32 digits."""
    digits = np.full((len(numbers), 32), ord("0"), np.uint8)
    names = np.frombuffer(b"0123456789abcdef", np.uint8)
    for position in range(8):
        digits[:, 31 - position] = names[numbers >> 4 * position & 15]
    ends = np.arange(0, digits.size + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(digits))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("large")
    stored_bytes, _ = run_apart(partial(written, made))
    assert stored_bytes > 290 * MB
    return made


def rules_of(folder: Path) -> RowRules:
    table = keyed_table(folder, SCHEMA, key=("k",), tombstone_column=None, time_column=None)
    return RowRules.of(table)


def inspected(folder: Path) -> int:
    return inspect_file(open_location(folder.as_uri()), NAME, rules_of(folder)).rows.rows


def sampled(folder: Path) -> int:
    return len(sample_keys(open_location(folder.as_uri()), NAME, rules_of(folder)))


def measured(folder: Path) -> int:
    location = open_location(folder.as_uri())
    (footer,) = read_footers(location, [NAME], FooterQuery(("k",)))
    return estimate_decoded_bytes(location, {NAME: footer})


def checked(folder: Path) -> object:
    location, rules = open_location(folder.as_uri()), rules_of(folder)
    added = inspect_file(location, NAME, rules).data_file(added_at_s=0.0)
    how = FileCheck(location=location, rules=rules, stored={}, deep=True)
    return check_file(how, "tablet-1", added)


def read_in_pieces(folder: Path) -> list[int]:
    """Read rows here and there, as a merge does."""
    rules = rules_of(folder)
    reader = Reader(
        open_location(folder.as_uri()), NAME, RowLayout(arrow_schema(rules.schema), rules)
    )
    found = []
    for skip in (0, ROWS // 2, ROWS - PIECE_ROWS):
        piece = RowGroup(
            input=0,
            number=0,
            start=skip,
            rows=PIECE_ROWS,
            size_bytes=1,
            low=None,
            high=None,
            skip=skip,
        )
        held = reader.read(piece)
        found.append(int(held.frame.get_column("v")[0]))
    return found


CALLS: dict[str, tuple[Callable[[Path], object], object]] = {
    "added": (inspected, ROWS),
    "sampled": (sampled, 64),
    "measured": (measured, None),
    "checked": (checked, None),
    "in pieces": (read_in_pieces, [0, 3 * ROWS // 2, 3 * (ROWS - PIECE_ROWS)]),
}


def with_peak(call: Callable[[Path], object], folder: Path) -> tuple[object, int]:
    return call(folder), peak_bytes()


@pytest.mark.parametrize("name", CALLS)
def test_a_row_group_is_never_in_memory_as_a_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable, value in {"POLARS_MAX_THREADS": "2", **task_environ(TASK_BYTES)}.items():
        monkeypatch.setenv(variable, value)
    call, wanted = CALLS[name]
    (found, peak), _ = run_apart(partial(with_peak, call, folder))
    assert wanted is None or found == wanted
    assert peak < LIBRARIES_BYTES + ROOM_BYTES, f"{peak // MB} MB"
