"""Files that end the process that opens them end none of the gateway's."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.readers.pool import open_readers, use_readers
from common.settings import ReaderSettings
from neve.api import ARROW_STREAM
from neve.client import Client
from neve.client.errors import CallerError
from tests.support.gateway import TOKEN, Gateway, serving

HOSTILE = Path(__file__).parents[2] / "data" / "fuzz" / "files" / "aborts.parquet"
"""A damaged footer that makes Arrow end the process: a file of ours with some bytes changed."""
DEADLY = r"file bad.parquet cannot be read: the process that read it was ended by signal 6"
ROWS = pa.table({"id": [1, 2], "v": [1, 1], "s": ["a", "b"], "l": [[1], [2]]})
TABLE: dict[str, Any] = {"key": ["id"], "version_column": "v"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    readers = open_readers(ReaderSettings(count=2), lambda *_, **__: None)
    try:
        with serving() as served:
            yield served
    finally:
        use_readers(None)
        readers.close()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made
        for table in made.tables():
            made.drop(table.name)


def write(folder: Path, *good: str) -> None:
    for name in good:
        pq.write_table(ROWS, folder / f"{name}.parquet")
    shutil.copy(HOSTILE, folder / "bad.parquet")


def test_opening_it_ends_a_process() -> None:
    """Otherwise the tests below show nothing: then look for another one."""
    code = "import sys, pyarrow.parquet as pq; pq.ParquetFile(sys.argv[1]).metadata.to_dict()"

    done = subprocess.run([sys.executable, "-c", code, HOSTILE], capture_output=True, check=False)

    assert done.returncode == -signal.SIGABRT


def test_add_names_it_and_adds_nothing(client: Client, tmp_path: Path) -> None:
    write(tmp_path, "good", "better")
    client.create_table("t", str(tmp_path), example="good.parquet", **TABLE)

    with pytest.raises(CallerError, match=DEADLY):
        client.add_files("t", ["good.parquet", "bad.parquet", "better.parquet"])

    assert client.count("t") == 0
    client.add_files("t", ["good.parquet", "better.parquet"])
    assert client.count("t") == 2


def test_a_table_cannot_be_made_like_it(client: Client, tmp_path: Path) -> None:
    write(tmp_path)

    with pytest.raises(CallerError, match=DEADLY):
        client.create_table("t", str(tmp_path), example="bad.parquet", **TABLE)


def test_import_leaves_it_and_takes_the_others(client: Client, tmp_path: Path) -> None:
    write(tmp_path, "good", "better")

    done = client.import_table(str(tmp_path), "t", **TABLE, leave_misfits=True)

    assert done.misfits == 1
    assert client.count("t") == 2


@pytest.mark.parametrize("key", [["id"], []])
def test_a_scan_names_it(client: Client, tmp_path: Path, key: list[str]) -> None:
    write(tmp_path, "good")
    shutil.copy(tmp_path / "good.parquet", tmp_path / "late.parquet")
    options = TABLE if key else {}
    client.create_table("t", str(tmp_path), example="good.parquet", **options)
    client.add_files("t", ["good.parquet", "late.parquet"])
    shutil.copy(HOSTILE, tmp_path / "late.parquet")

    with pytest.raises(CallerError, match=DEADLY.replace("bad", "late")):
        client.scan("t")

    shutil.copy(tmp_path / "good.parquet", tmp_path / "late.parquet")
    assert client.scan("t").num_rows == (2 if key else 4)


def test_a_name_of_a_column_that_is_no_text_is_refused(client: Client, tmp_path: Path) -> None:
    write(tmp_path, "good")
    odd = pa.schema([*ROWS.schema, pa.field(b"caf\xe9", pa.int64())])
    pq.write_table(
        pa.Table.from_arrays([*ROWS.columns, ROWS["id"]], schema=odd), tmp_path / "odd.parquet"
    )
    client.create_table("t", str(tmp_path), example="good.parquet", **TABLE)

    with pytest.raises(CallerError, match=r"odd\.parquet has a name of a column that is not UTF-8"):
        client.add_files("t", ["good.parquet", "odd.parquet"])

    assert client.count("t") == 0


def test_import_leaves_names_that_are_no_text(client: Client, tmp_path: Path) -> None:
    write(tmp_path, "good")
    (tmp_path / "bad.parquet").unlink()
    odd = pa.schema([*ROWS.schema, pa.field(b"caf\xe9", pa.int64())])
    pq.write_table(
        pa.Table.from_arrays([*ROWS.columns, ROWS["id"]], schema=odd), tmp_path / "odd.parquet"
    )

    done = client.import_table(str(tmp_path), "t", **TABLE, leave_misfits=True)

    assert done.misfits == 1
    assert client.count("t") == 2


def appended(gateway: Gateway, schema: pa.Schema) -> httpx.Response:
    """Send a stream with one row of nulls to table `t`, byte by byte as Arrow writes it."""
    sink = pa.BufferOutputStream()
    rows = pa.Table.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(rows)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": ARROW_STREAM}
    body = sink.getvalue().to_pybytes()
    return httpx.post(f"{gateway.url}/v1/tables/t/append", content=body, headers=headers)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (pa.field(b"caf\xe9", pa.int64()), "that is not UTF-8: b'caf"),
        (pa.field("l", pa.struct([pa.field(b"\xe9", pa.int64())])), "that is not UTF-8"),
        (pa.field("l", pa.list_(pa.field(b"\xe9", pa.int64()))), "that is not UTF-8"),
        (pa.field("more", pa.int64()), "contains column 'more'"),
    ],
    ids=["column", "field", "element", "twice"],
)
def test_a_stream_with_odd_names_is_refused(
    gateway: Gateway, client: Client, tmp_path: Path, field: pa.Field, says: str
) -> None:
    write(tmp_path, "good")
    client.create_table("t", str(tmp_path), example="good.parquet", **TABLE)

    answer = appended(gateway, pa.schema([*ROWS.schema, field, field]))

    assert answer.status_code == 400
    assert says in answer.json()["detail"]
    assert client.append("t", ROWS).rows == 2
