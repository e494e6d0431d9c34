"""The row hash sees names and values, and nothing of how they are stored."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from common.rows.row_facts import row_hash, rows_digest

LETTERS = pa.array(["x", "y", None])
TABLE = pa.table({"a": pa.array([1, None, 3], pa.int8()), "b": LETTERS})


def test_row_hashes_keep_their_published_numbers() -> None:
    """Other people's code computes them too: a change is a new format."""
    assert [f"{number:016x}" for number in row_hash(TABLE).tolist()] == HASHES


HASHES = ["fc15774dfb71d6fb", "2e28d5f50c50d4aa", "58eee66c0e8e98ae"]


@pytest.mark.parametrize(
    "other",
    [
        TABLE.select(["b", "a"]),
        TABLE.cast(pa.schema([("a", pa.int64()), ("b", pa.large_string())])),
        TABLE.cast(pa.schema([("a", pa.int16()), ("b", pa.string_view())])),
        TABLE.set_column(1, "b", TABLE["b"].dictionary_encode()),
        TABLE.set_column(1, "b", pc.run_end_encode(TABLE["b"])),
        TABLE.set_column(
            1, "b", pa.ExtensionArray.from_storage(pa.json_(), pa.array(["x", "y", None]))
        ),
        TABLE.append_column("c", pa.nulls(3, pa.float64())),
        TABLE.append_column("c", pa.nulls(3)),
        TABLE.append_column("c", pa.nulls(3, pa.struct([("d", pa.int8())]))),
        pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 0), TABLE.slice(1)]),
    ],
)
def test_chunks_and_encodings_do_not_change_the_row_hash(other: pa.Table) -> None:
    assert row_hash(other).tolist() == row_hash(TABLE).tolist()


@pytest.mark.parametrize(
    "other",
    [
        TABLE.rename_columns(["a", "c"]),
        TABLE.rename_columns(["b", "a"]),
        TABLE.set_column(1, "b", pa.array(["x\0", "y\0", ""])),
        TABLE.set_column(0, "a", pa.array([2, 0, 4])),
    ],
)
def test_other_names_or_values_change_the_row_hash(other: pa.Table) -> None:
    both = row_hash(TABLE).tolist()[:2], row_hash(other).tolist()[:2]
    assert not set(both[0]) & set(both[1])


def test_columns_outside_the_schema_do_not_count() -> None:
    more = TABLE.append_column("temporary", pa.array([1, 2, 3]))
    assert row_hash(more, TABLE.schema).tolist() == row_hash(TABLE).tolist()


def test_the_digest_ignores_order_but_not_number() -> None:
    hashes = row_hash(TABLE)
    assert rows_digest(hashes[::-1]) == rows_digest(hashes)
    assert rows_digest(row_hash(pa.concat_tables([TABLE, TABLE.slice(0, 1)]))) != rows_digest(
        hashes
    )


def test_no_rows_give_no_hashes() -> None:
    assert row_hash(TABLE.slice(0, 0)).tolist() == []
