"""Tablets of a rebuilt table: as the definition has them, and in n log n steps."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest

from common.model.file import DataFile
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId
from common.rows.key_encoding import Partition
from neve.recovery.archive import TabletDump
from neve.recovery.rebuild.live_files import (
    PublishedManifest,
    attempts_of,
    trace_lineage,
    trace_since_manifest,
)
from neve.recovery.rebuild.table_rebuild import partition_tablets, range_tablets
from neve.recovery.scope import SORTED_AT_ONCE, CallerLeftError, Steps, in_thread
from neve.recovery.stored_files import OutputFooter, StoredFile
from tests.support.fast_and_slow import first_fast


def footer(number: int, end: bytes, purge: bytes | None, **more: Any) -> OutputFooter:
    plain: dict[str, Any] = {
        "path": f"o{number}",
        "table": "t",
        "tablet": TabletId("", end).text,
        "job": "j",
        "attempt": f"x{number}",
        "inputs": (),
        "request": None,
        "purge": purge,
        "outputs": (f"o{number}",),
        "rows": 1,
    }
    return OutputFooter(**plain | more)


def data_file(number: int, low: bytes | None, high: bytes | None) -> DataFile:
    return DataFile(path=f"f{number}", size_bytes=1, rows=1, key_min=low, key_max=high)


# ------------------------------------------------ The definition, file by file and tablet by tablet


def ends_by_definition(files: Sequence[DataFile], known: Collection[bytes]) -> list[bytes]:
    whole = [
        end
        for end in sorted({*known} - {PLUS_INFINITY})
        if not any(
            file.key_min is not None
            and file.key_max is not None
            and file.key_min <= end < file.key_max
            for file in files
        )
    ]
    return [*whole, PLUS_INFINITY]


def end_by_definition(ends: Sequence[bytes], file: DataFile) -> bytes:
    return next(end for end in ends if file.key_min is None or file.key_min <= end)


def watermark_by_definition(footers: Iterable[OutputFooter], start: bytes | None) -> bytes | None:
    known = []
    for each in footers:
        of = TabletId.parse("", each.tablet).end
        # It may have begun anywhere, and reached as far as the end that is in its name.
        if each.purge is not None and (start is None or of > start):
            known.append(each.purge)
    return max(known, default=None)


def tablets_by_definition(
    files: Sequence[DataFile], known: Collection[bytes], footers: Sequence[OutputFooter]
) -> list[TabletDump]:
    ends = ends_by_definition(files, known)
    return [
        TabletDump(
            bounds=Bounds(start, end),
            purge=watermark_by_definition(footers, start),
            files=tuple(file for file in files if end_by_definition(ends, file) == end),
        )
        for start, end in zip([None, *ends[:-1]], ends, strict=True)
    ]


def partitions_by_definition(
    files: Sequence[DataFile], homes: Sequence[Partition], footers: Sequence[OutputFooter]
) -> list[TabletDump]:
    return [
        TabletDump(
            bounds=Bounds(None, home.end, home.text),
            purge=max(
                (
                    each.purge
                    for each in footers
                    if each.purge is not None and TabletId.parse("", each.tablet).end == home.end
                ),
                default=None,
            ),
            files=tuple(
                file for file, its in zip(files, homes, strict=True) if its.end == home.end
            ),
        )
        for home in sorted({*homes}, key=lambda each: each.end)
    ]


@pytest.mark.parametrize("seed", first_fast(60, range(300), slow=60))
def test_tablets_ends_and_watermarks_are_those_of_the_definition(seed: int) -> None:
    draw = random.Random(seed)
    keys = [bytes([draw.randrange(1, 40)]) for _ in range(draw.randint(1, 12))] + [b"\x01\x02"]

    def file_of(number: int) -> DataFile:
        if draw.random() < 0.1:
            return data_file(number, None, None)
        low, high = sorted((draw.choice(keys), draw.choice(keys)))
        return data_file(number, low, low if draw.random() < 0.5 else high)

    files = [file_of(number) for number in range(draw.randint(0, 15))]
    ends = [*keys, PLUS_INFINITY]
    purges = [None, b"\x01", b"\x02", b"\x02\x00", b"\x03"]
    footers = [
        footer(number, draw.choice(ends), draw.choice(purges))
        for number in range(draw.randint(0, 8))
    ]
    known = {*draw.sample(ends, draw.randint(0, len(ends)))}

    found = range_tablets(files, known, footers, Steps())

    assert found == tablets_by_definition(files, known, footers)
    homes = [Partition(text=f"d={key.hex()}", end=key) for key in keys]
    homes_of = [draw.choice(homes) for _ in files]
    found = partition_tablets(files, homes_of, footers, Steps())
    assert found == partitions_by_definition(files, homes_of, footers)


def test_a_watermark_counts_for_all_parts_of_a_tablet_that_was_split() -> None:
    """Else rows older than a dropped tombstone are taken in the part without a later output."""
    files = [data_file(1, b"\x01", b"\x09"), data_file(2, b"\x12", b"\x18")]
    before_split = footer(1, b"\x20", b"\x07")

    found = range_tablets(files, {b"\x10", b"\x20"}, [before_split], Steps())

    assert [(each.bounds.end, each.purge) for each in found] == [
        (b"\x10", b"\x07"),
        (b"\x20", b"\x07"),
        (PLUS_INFINITY, None),
    ]


# ------------------------------------------------------------------------------------------- Growth


class CountedKey(bytes):
    """A key that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: bytes) -> bool:
        CountedKey.compared += 1
        return bytes.__lt__(self, other)

    def __le__(self, other: bytes) -> bool:
        CountedKey.compared += 1
        return bytes.__le__(self, other)

    def __gt__(self, other: bytes) -> bool:
        CountedKey.compared += 1
        return bytes.__gt__(self, other)

    def __hash__(self) -> int:
        return bytes.__hash__(self)


class CountedPath(str):
    """A path that counts how often it is looked up."""

    looked_up = 0

    def __hash__(self) -> int:
        CountedPath.looked_up += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountedPath.looked_up += 1
        return str.__eq__(self, other)


def range_steps(count: int) -> int:
    """Return the comparisons and steps for a table of so many tablets, with two files each."""
    keys = [CountedKey(number.to_bytes(4, "big")) for number in range(2 * count)]
    files = [data_file(number, key, key) for number, key in enumerate(keys)]
    random.Random(1).shuffle(files)
    footers = [footer(number, key, b"\x01") for number, key in enumerate(keys[::2])]
    steps, CountedKey.compared = Steps(), 0
    assert len(range_tablets(files, keys[::2], footers, steps)) == count + 1
    return steps.count + CountedKey.compared


def lineage_steps(count: int) -> int:
    """Return the look-ups and steps for a chain of so many attempts, one over the other."""
    paths = [CountedPath(f"o{number}") for number in range(count + 1)]
    footers = [
        footer(number, PLUS_INFINITY, None, path=paths[number], inputs=(paths[number - 1],))
        for number in range(1, count + 1)
    ]
    steps, CountedPath.looked_up = Steps(), 0
    found = trace_lineage(paths[:1], attempts_of(footers, ["t"], steps), steps)
    assert found.files == (paths[-1],)
    return steps.count + CountedPath.looked_up


def steps_since_manifest(count: int) -> int:
    """Return the same for a chain over an input that the table did not hold."""
    paths = [CountedPath(f"o{number}") for number in range(count + 1)]
    footers = [
        footer(number, PLUS_INFINITY, None, path=paths[number], inputs=(paths[number - 1],))
        for number in range(1, count + 1)
    ]
    stored: dict[str, StoredFile] = {path: StoredFile(path, 1, 2000.0) for path in paths[1:]}
    published = PublishedManifest(number=1, begun_s=1000.0, table="t", files={})
    steps, CountedPath.looked_up = Steps(), 0
    attempts = attempts_of(footers, ["t"], steps)
    assert trace_since_manifest(published, stored, [], attempts, [], steps=steps).files == ()
    return steps.count + CountedPath.looked_up


@pytest.mark.parametrize("work", [range_steps, lineage_steps, steps_since_manifest])
def test_twice_as_many_files_take_hardly_more_than_twice_the_steps(work: Any) -> None:
    small, large = work(500), work(1000)

    assert large < 2.5 * small


def test_the_work_ends_when_its_caller_has_left() -> None:
    steps = Steps()
    files = [data_file(number, b"a", b"a") for number in range(10)]

    def interrupted() -> Iterable[OutputFooter]:
        for number in range(10):
            if number == 3:
                steps.leave()
            yield footer(number, b"a", None)

    before = len(files) + len(files) + 1  # Of the ends, and of the files.
    with pytest.raises(CallerLeftError):
        range_tablets(files, {b"a"}, interrupted(), steps)
    assert steps.count == before + 4


@pytest.mark.anyio
async def test_a_thread_ends_when_its_task_is_cancelled() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(steps: Steps) -> None:
        begun.set()
        try:
            deque(steps.over(itertools.repeat(1)), maxlen=0)
        finally:
            ended.set()

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, 60.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await asyncio.to_thread(ended.wait, 60.0)


def test_sorting_in_pieces_gives_what_sorting_gives() -> None:
    items = [random.Random(1).randrange(50) for _ in range(2 * SORTED_AT_ONCE + 3)]

    for count in (0, 1, SORTED_AT_ONCE, len(items)):
        assert Steps().in_order(items[:count]) == sorted(items[:count])
