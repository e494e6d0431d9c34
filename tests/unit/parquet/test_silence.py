"""A storage that does not answer says nothing of a file: nobody takes it for damaged or gone."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import RequestError, UnavailableError
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.file_inspection import inspect_file, open_table_file
from common.parquet.location import is_silence, open_location
from common.parquet.manifest import (
    manifest_folder_name,
    write_part,
    write_pointer,
)
from common.rows.rules import RowRules
from compactor.rewrite import general_merge
from compactor.rewrite.plan.rewrite_plan import make_plan
from compactor.rewrite.verify import verify
from neve.gateway.table_files import StoredFiles
from neve.recovery.fsck import FileCheck, check_file
from neve.recovery.gc import _read_orphan
from neve.recovery.rebuild.table_rebuild import read_published_manifest
from neve.recovery.scope import FindingCode
from neve.recovery.stored_files import StoredFile
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    keyed_table,
    random_rows,
    write_file,
)
from tests.support.unreliable_disk import Faults, unreliable

ERRORS = (
    OSError(errno.EIO, "input/output error"),
    OSError(errno.ESTALE, "stale file handle"),
    OSError(errno.ENOTCONN, "transport endpoint is not connected"),
    TimeoutError("too late"),
    ConnectionResetError("gone"),
    OSError("When reading x: AWS Error SLOW_DOWN during GetObject operation: reduce your rate"),
    OSError("When reading x: AWS Error SERVICE_UNAVAILABLE during HeadObject operation: later"),
    OSError("When reading x: AWS Error INTERNAL_FAILURE during GetObject operation: sorry"),
    OSError("When reading x: AWS Error UNKNOWN (HTTP status 503) during HeadObject operation"),
)
OF_THE_FILE = (
    OSError("Corrupt snappy compressed data."),
    OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"),
    PermissionError(errno.EACCES, "permission denied"),
    FileNotFoundError(errno.ENOENT, "no such file"),
    OSError(errno.EINVAL, "it is a pipe"),
    OSError("When reading x: AWS Error ACCESS_DENIED during HeadObject operation"),
)


@pytest.fixture
def disk() -> Iterator[Faults]:
    with unreliable() as faults:
        yield faults


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_errors_of_a_silent_storage_are_recognised(error: OSError) -> None:
    assert is_silence(error)


@pytest.mark.parametrize("error", OF_THE_FILE, ids=str)
def test_errors_of_one_file_are_no_silence(error: OSError) -> None:
    assert not is_silence(error)


def table_in(folder: Path) -> Table:
    rows = pa.Table.from_pylist(random_rows(random.Random(1), 20), KEYED)
    write_file(folder, "a.parquet", rows)
    return keyed_table(folder)


def opens(table: Table, _disk: Faults) -> None:
    with open_table_file(open_location(table.location), "a.parquet"):
        pass


def reads_manifest(table: Table, disk: Faults) -> None:
    location, folder = open_location(table.location), manifest_folder_name(1, 1.0, "x")
    part = write_part(location, folder, 0, [])
    write_pointer(location, folder, {"format": "neve-manifest", "version": 1, "parts": [part]})
    disk.silent["part-00000.parquet"] = ERRORS[0]
    read_published_manifest(location)


def verifies(table: Table, disk: Faults) -> None:
    plan = make_plan(assignment_over(table, ["a.parquet"]))
    result = general_merge.rewrite_in_memory(plan)
    disk.silent[Path(plan.output.paths[0]).name] = ERRORS[0]
    verify(plan, result, lambda: False)


def appends(table: Table, disk: Faults) -> None:
    disk.silent["b.parquet"] = ERRORS[0]
    rows = pq.read_table(open_location(table.location).full("a.parquet"))
    StoredFiles().write(table, "b.parquet", rows)


def sweeps(table: Table, _disk: Faults) -> None:
    _read_orphan(open_location(table.location), table, StoredFile("a.parquet", 1, 1.0))


@pytest.mark.parametrize("work", [opens, reads_manifest, verifies, appends, sweeps])
def test_storage_that_does_not_answer_is_unavailable(
    disk: Faults, tmp_path: Path, work: Callable[[Table, Faults], None]
) -> None:
    table = table_in(tmp_path)
    if work in (opens, sweeps):
        disk.silent["a.parquet"] = ERRORS[0]

    with pytest.raises(UnavailableError):
        work(table, disk)


def test_a_check_goes_on_where_one_file_cannot_be_read(disk: Faults, tmp_path: Path) -> None:
    table = table_in(tmp_path)
    facts = inspect_file(open_location(table.location), "a.parquet", RowRules.of(table))
    disk.silent["a.parquet"] = ERRORS[0]
    how = FileCheck(
        location=open_location(table.location), rules=RowRules.of(table), stored={}, deep=True
    )

    found = check_file(how, TabletId(table.id, PLUS_INFINITY), facts.data_file(added_at_s=1.0))

    assert found is not None
    assert found.code is FindingCode.CORRUPT


def test_a_damaged_file_is_told_as_such(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")

    with pytest.raises(RequestError):
        opens(table, Faults())
