"""A full disk says nothing of a job: it waits, and goes on when there is room."""

from __future__ import annotations

import errno
import os
import pickle
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from common.errors import InputError, RewriteError, UnavailableError
from common.model.table import Table
from common.parquet.location import open_location, storage_error
from common.parquet.write import write_table
from common.rows.rules import RowRules
from common.wire import Assignment
from compactor.rewrite.attempt import stitch_plan, stitch_whole
from compactor.rewrite.attempt_folder import attempt_folder
from compactor.rewrite.general_merge import rewrite_in_memory
from compactor.rewrite.kernel.reader import FileErrors
from compactor.rewrite.merge.tasks import merge_small_job
from compactor.rewrite.outputs import TaskFailure, pickled_outcome
from compactor.rewrite.plan.rewrite_plan import make_plan
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    keyed_table,
    settings,
    write_file,
)

DISK_BYTES = 8 * 1024**2
LEFT_BYTES = 64 * 1024
ROWS = 8_000
FULL = (
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    OSError("IOError: Error writing bytes to file. Detail: [errno 28] No space left on device"),
)
AWAY = (
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(errno.EIO, "Input/output error"),
    pa.ArrowInvalid("failed to read: Input/output error (os error 5)"),
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a small disk of its own, which only root can mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},nr_inodes=200", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here; the errors are tested without one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def job_on(folder: Path) -> Assignment:
    """Return a job over two sorted files of which no row can be copied in less room."""
    table = keyed_table(folder, settings=settings(row_group_bytes=1 << 19))
    dice = random.Random(1)
    for number in range(2):
        keys = range(number * ROWS, (number + 1) * ROWS)
        rows = {
            "k": keys,
            "name": [dice.randbytes(20).hex() for _ in keys],
            "v": [number] * ROWS,
            "dead": [None] * ROWS,
            "at": [0] * ROWS,
            "x": [0.5] * ROWS,
        }
        write_file(folder, f"{number}.parquet", pa.table(rows, schema=KEYED), compression="zstd")
    return assignment_over(table, ["0.parquet", "1.parquet"])


def fill(folder: Path) -> Path:
    """Fill a disk but for a little room; return the file to delete."""
    filler = folder / "filler"
    free = os.statvfs(folder)
    filler.write_bytes(b"x" * (free.f_bavail * free.f_frsize - LEFT_BYTES))
    return filler


def in_memory(assignment: Assignment) -> object:
    return rewrite_in_memory(make_plan(assignment))


def merged(assignment: Assignment) -> object:
    return merge_small_job(make_plan(assignment))


def stitched(assignment: Assignment) -> object:
    plan = make_plan(assignment)
    stitching = stitch_plan(plan, assignment)
    assert stitching is not None
    return stitch_whole(stitching, plan)


@pytest.mark.parametrize("way", [in_memory, merged, stitched])
def test_a_job_on_a_full_disk_waits(disk: Path, way: Callable[[Assignment], object]) -> None:
    assignment = job_on(disk)
    filler = fill(disk)

    with pytest.raises(UnavailableError, match="full"):
        way(assignment)

    assert not [*disk.glob("_neve/**/*.parquet")], "nothing is left of it"
    filler.unlink()
    way(assignment)


def test_an_append_to_a_full_disk_says_so(disk: Path) -> None:
    table: Table = job_on(disk).table
    fill(disk)
    dice = random.Random(2)
    rows = {
        "k": range(ROWS),
        "v": [1] * ROWS,
        "name": [dice.randbytes(20).hex() for _ in range(ROWS)],
    }

    with pytest.raises(UnavailableError, match="is full: free"):
        write_table(
            open_location(table.location),
            "new.parquet",
            pa.table(rows),
            RowRules.of(table),
            table.settings,
        )
    assert not (disk / "new.parquet").exists()


def test_a_full_folder_for_temporary_files(disk: Path) -> None:
    for number in range(100_000):
        try:
            (disk / f"{number}").mkdir()
        except OSError:
            break

    with pytest.raises(UnavailableError, match="full"), attempt_folder(str(disk / "scratch")):
        pass


@pytest.mark.parametrize("error", [*FULL, *AWAY], ids=str)
def test_whatever_raises_it_nobody_is_to_blame(error: Exception) -> None:
    assert isinstance(storage_error(RewriteError, "not written", error), UnavailableError)
    assert ("the storage is full" in str(storage_error(RewriteError, "x", error))) == (
        error in FULL
    )

    def task() -> object:
        raise error

    outcome = pickle.loads(pickled_outcome(task))
    assert isinstance(outcome, TaskFailure)
    assert outcome.error_class == "UnavailableError"
    with pytest.raises(UnavailableError), FileErrors("file a.parquet"):
        raise error


def test_other_errors_blame_what_they_name() -> None:
    error = OSError("Corrupt snappy compressed data.")
    assert type(storage_error(RewriteError, "not written", error)) is RewriteError
    with pytest.raises(InputError), FileErrors("file a.parquet"):
        raise error
