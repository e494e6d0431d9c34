"""Whatever happens to inputs and disks: the same rows, or an error that says which file it was.

Every way of rewriting meets flipped bits, files that end early, footers that lie and disks
that are full. None of them may give other rows than it should, and none leave an output.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import CompactionError, InputError, RewriteError
from common.model.table import Table
from common.parquet.file_inspection import stream_rows
from common.parquet.location import Location, open_location
from common.rows.rules import RowRules
from common.wire import Assignment
from compactor.rewrite.attempt import stitch_plan, stitch_whole
from compactor.rewrite.general_merge import (
    read_for_sort,
    rewrite_bag,
    rewrite_in_memory,
    write_sorted,
)
from compactor.rewrite.kernel import reader
from compactor.rewrite.merge.driver import merge_large_job
from compactor.rewrite.outputs import TaskResult
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from compactor.rewrite.verify import verify
from tests.support.fast_and_slow import first_fast
from tests.support.tables_on_disk import assignment_over, bag_table, keyed_table, settings

ROWS = 3000
FLIPS = range(10), range(10, 40)
"""Seeds of flipped bits in footers: those of every run, and those of `make long`."""
FILES = ("a.parquet", "b.parquet")
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("v", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("text", pa.string()),
    ]
)
Way = Callable[[RewritePlan, Assignment], TaskResult]


def here(calls: Sequence[Any]) -> list[Any]:
    return [call() for call in pickle.loads(pickle.dumps(calls))]


def ranges(plan: RewritePlan, _: Assignment) -> TaskResult:
    return merge_large_job(plan, here, 3)


def pieces(plan: RewritePlan, _: Assignment) -> TaskResult:
    """Row groups too large to be held are read piece by piece, and only the pages of each."""
    memory = replace(plan.memory, held_bytes=40_000)
    plan = replace(plan, inputs=replace(plan.inputs, small={}), memory=memory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "EXCERPT_BYTES_MIN", 0)
        return merge_large_job(plan, here, 3)


def memory(plan: RewritePlan, _: Assignment) -> TaskResult:
    return rewrite_in_memory(plan)


def bag(plan: RewritePlan, _: Assignment) -> TaskResult:
    return rewrite_bag(plan)


def sql(plan: RewritePlan, _: Assignment) -> TaskResult:
    """What Spark's tasks do, and its sort by the encoded key."""
    rows = pa.Table.from_batches(list(read_for_sort(plan, range(len(plan.inputs.paths)))))
    return write_sorted(plan, iter(rows.sort_by("key").combine_chunks().to_batches()))


def stitched(plan: RewritePlan, assignment: Assignment) -> TaskResult:
    stitching = stitch_plan(plan, assignment)
    # What cannot be stitched as it is, an attempt merges.
    return ranges(plan, assignment) if stitching is None else stitch_whole(stitching, plan)


WAYS: dict[str, Way] = {
    "merge": ranges,
    "small": ranges,
    "pieces": pieces,
    "memory": memory,
    "sql": sql,
    "bag": bag,
    "stitch": stitched,
}
READING = ("merge", "small", "pieces", "memory", "sql", "bag")


class Site:
    """A table of two files with page checksums, and what comes of a job over both."""

    def __init__(
        self, folder: Path, way: str, codec: str = "zstd", *, required: str | None = None
    ) -> None:
        self.folder = folder / "table"
        self.progress = folder / "progress"
        self.way = way
        for made in (self.folder, self.progress):
            made.mkdir()
        chance = np.random.default_rng(3)
        for at, path in enumerate(FILES):
            numbers = np.sort(chance.choice(10 * ROWS, ROWS, replace=False))
            keys = numbers + at * 100_000 if way == "stitch" else numbers
            versions = pa.array(np.full(ROWS, at), mask=numbers == numbers[-1])
            rows = pa.table(
                {
                    "k": keys,
                    "v": versions if at and required else np.full(ROWS, at),
                    "x": chance.random(ROWS),
                    "text": [f"row {number} of {at}" for number in numbers],
                },
                schema=SCHEMA,
            )
            pq.write_table(
                rows,
                self.folder / path,
                compression=codec,
                row_group_size=ROWS if way in ("small", "pieces") else 1000,
                write_page_checksum=True,
                use_dictionary=["text"],
                data_page_size=4096,
            )
        plain = {"tombstone_column": None, "time_column": None}
        chosen = settings(codec=codec, row_group_bytes=1 << 16)
        schema = pa.schema([field.with_nullable(field.name != required) for field in SCHEMA])
        self.table: Table = (
            bag_table(self.folder, schema, time_column=None, settings=chosen)
            if way == "bag"
            else keyed_table(self.folder, schema, key=("k",), settings=chosen, **plain)
        )
        self.assignment = assignment_over(self.table, FILES)
        self.whole = {path: (self.folder / path).read_bytes() for path in FILES}

    @property
    def table_location(self) -> Location:
        return open_location(self.table.location)

    def run(self) -> TaskResult:
        """Do the job and verify it, as an attempt does."""
        plan = make_plan(self.assignment, str(self.progress))
        result = WAYS[self.way](plan, self.assignment)
        verify(plan, result, lambda: False)
        return result

    def rows(self) -> list[Any]:
        outputs = sorted(self.folder.rglob("_neve/**/*.parquet"))
        tables = [
            pq.read_table(path).sort_by([("k", "ascending"), ("x", "ascending")])
            for path in outputs
        ]
        return [row for table in tables for row in table.to_pylist()]

    def clean(self) -> None:
        for path in [*self.folder.rglob("_neve/**/*.parquet"), *self.progress.iterdir()]:
            path.unlink()

    @contextmanager
    def changed(self, path: str, data: bytes) -> Iterator[None]:
        """Let a file have other bytes for a while."""
        (self.folder / path).write_bytes(data)
        yield
        (self.folder / path).write_bytes(self.whole[path])

    def heard_of(
        self, path: str, end: int, begin: int, chance: random.Random, wanted: list[Any]
    ) -> bool:
        """Flip a bit between two places; return whether the job failed. If not, rows are right."""
        self.clean()
        data, place = bytearray(self.whole[path]), chance.randrange(begin, end)
        data[place] ^= 1 << chance.randrange(8)
        with self.changed(path, bytes(data)):
            error = self.error()
        if error is None:
            assert self.rows() == wanted, (path, place)
            return False
        assert any(name in str(error) for name in (*FILES, "output")), error
        return True

    def error(self) -> CompactionError | None:
        """Do the job; return why it failed."""
        try:
            self.run()
        except CompactionError as error:
            return error
        return None

    def require_nothing_left(self) -> None:
        """The attempt's own outputs are deleted by the engine; parts are in its folder."""
        assert {path: (self.folder / path).read_bytes() for path in FILES} == self.whole


def footer_start(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


@pytest.mark.parametrize("codec", first_fast(1, ["zstd", "none"], slow=1))
@pytest.mark.parametrize("way", READING)
def test_a_flipped_bit_in_a_page_never_becomes_another_row(
    tmp_path: Path, way: str, codec: str
) -> None:
    site, chance = Site(tmp_path, way, codec), random.Random(f"{way} {codec}")
    site.run()
    wanted = site.rows()
    assert len(wanted) > ROWS
    refused = [
        site.heard_of(path, footer_start(site.whole[path]), 4, chance, wanted)
        for path in chance.choices(FILES, k=25)
    ]
    # What was hit in the others is read by nobody: an index, or room between pages.
    assert sum(refused) >= 20
    site.require_nothing_left()


@pytest.mark.parametrize("seeds", first_fast(1, FLIPS, slow=1))
@pytest.mark.parametrize("way", first_fast(1, list(WAYS)))
def test_a_flipped_bit_in_a_footer_never_becomes_another_row(
    tmp_path: Path, way: str, seeds: range
) -> None:
    done = tmp_path / "done"
    done.touch()
    # Children are forked from one process that has imported all this, and has no threads.
    context, turn = multiprocessing.get_context("forkserver"), 0
    context.set_forkserver_preload([__name__])
    while left := seeds[len(done.read_text()) :]:
        (tmp_path / str(turn)).mkdir()
        child = context.Process(target=flip_footers, args=(tmp_path / str(turn), way, left, done))
        child.start()
        child.join()
        # Some footers make Arrow end its process: of an attempt, the driver's. That is loud, too.
        assert child.exitcode in (0, -signal.SIGABRT), child.exitcode
        if child.exitcode:
            with done.open("a") as file:
                file.write("x")
        turn += 1
    assert done.read_text().count("x") <= len(seeds) // 5


def flip_footers(folder: Path, way: str, seeds: range, done: Path) -> None:
    """Flip a bit of a footer, again and again, and note each time that it went well."""
    site = Site(folder, way)
    site.run()
    wanted = site.rows()
    for number in seeds:
        chance = random.Random(f"{way} {number}")
        path = chance.choice(FILES)
        data = site.whole[path]
        site.heard_of(path, len(data), footer_start(data), chance, wanted)
        with done.open("a") as file:
            file.write(".")
    site.require_nothing_left()


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_ends_early_or_was_replaced_is_named(tmp_path: Path, way: str) -> None:
    site = Site(tmp_path, way)
    whole = site.whole["b.parquet"]
    for data in (b"", whole[:3], whole[: len(whole) // 2], whole[:-1], site.whole["a.parquet"]):
        with (
            site.changed("b.parquet", data),
            pytest.raises(InputError, match=r"b\.parquet.*(replaced|Parquet)"),
        ):
            site.run()
    (site.folder / "b.parquet").unlink()
    with pytest.raises(InputError, match=r"b\.parquet does not exist"):
        site.run()


@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_is_said_and_nothing_counts(tmp_path: Path, way: str) -> None:
    site = Site(tmp_path, way)
    for size_bytes in (0, 100, 5000, 20_000):
        with full_at(size_bytes), pytest.raises(RewriteError, match=r"cannot be written|too large"):
            site.run()
        left = list(site.folder.rglob("_neve/**/*.parquet"))
        assert not left, (size_bytes, left)
        for path in site.progress.iterdir():
            path.unlink()
    site.run()
    site.require_nothing_left()


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
def test_a_file_that_has_other_rows_than_it_was_added_with_is_named(
    tmp_path: Path, rows: int
) -> None:
    site = Site(tmp_path, "merge")
    first, second = site.assignment.inputs
    site.assignment = replace(site.assignment, inputs=(first, replace(second, rows=rows)))
    with pytest.raises(InputError, match=r"b\.parquet has 3000 rows, but"):
        site.run()


@pytest.mark.parametrize("way", WAYS)
def test_a_null_that_came_in_before_it_was_refused_is_kept(tmp_path: Path, way: str) -> None:
    """Rows that are in the table stay what they are; only new ones are refused."""
    site = Site(tmp_path, way, required="v")
    site.run()
    (null,) = [row for row in site.rows() if row["v"] is None]
    assert null["text"].endswith("of 1")
    rows = stream_rows(site.table_location, FILES[1], RowRules.of(site.table))
    assert [row for part in rows for row in part.to_pylist() if row["v"] is None] == [null]


@contextmanager
def full_at(size_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
