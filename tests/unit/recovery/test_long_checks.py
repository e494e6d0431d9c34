"""Checks of large tables: as the definition has it, in n log n steps, off the event loop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import Bounds, Tablet, TabletId
from common.parquet.location import open_location
from common.storage_threads import StorageThreads
from neve.gateway.recovery import fsck_view
from neve.recovery.fsck import TableCheck, TabletIndex, check_bounds
from neve.recovery.gc import OnlyCopies
from neve.recovery.repair import RepairReport
from neve.recovery.scope import Finding, FindingCode, RepairedFinding
from neve.recovery.stored_files import OutputFooter, StoredFile
from neve.recovery.table_creation import absent
from tests.support.fast_and_slow import first_fast

pytestmark = pytest.mark.unit


class Counted:
    """Comparisons, look-ups and hashes of counted keys and paths."""

    count = 0


class CountedKey(bytes):
    """A key that counts how often it is compared."""

    def __lt__(self, other: bytes) -> bool:
        Counted.count += 1
        return bytes.__lt__(self, other)

    def __le__(self, other: bytes) -> bool:
        Counted.count += 1
        return bytes.__le__(self, other)

    def __gt__(self, other: bytes) -> bool:
        Counted.count += 1
        return bytes.__gt__(self, other)

    def __ge__(self, other: bytes) -> bool:
        Counted.count += 1
        return bytes.__ge__(self, other)


class CountedPath(str):
    """A path that counts how often it is hashed or compared."""

    def __hash__(self) -> int:
        Counted.count += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        Counted.count += 1
        return str.__eq__(self, other)


def data_file(path: str, low: bytes, high: bytes) -> DataFile:
    return DataFile(path=path, size_bytes=1, rows=1, key_min=low, key_max=high)


@pytest.mark.parametrize("seed", first_fast(40, range(200), slow=40))
def test_the_home_of_a_file_is_the_first_tablet_that_holds_it(seed: int) -> None:
    draw = random.Random(seed)
    ends = sorted(draw.sample(range(1, 40), draw.randint(1, 12)))
    # Starts as they may be where tablets overlap or leave holes.
    bounds = [
        Bounds(None if draw.random() < 0.2 else bytes([draw.randrange(end)]), bytes([end]))
        for end in ends
    ]
    index = TabletIndex(bounds)
    for number in range(30):
        low, high = sorted((bytes([draw.randrange(1, 45)]), bytes([draw.randrange(1, 45)])))
        first = next((each for each in bounds if each.holds(low, high)), None)
        assert index.home(data_file(f"f{number}", low, high)) == first
    start, end = bytes([draw.randrange(40)]), bytes([draw.randrange(40)])
    within = [each.end for each in bounds if start < each.end <= end]
    assert [*index.ends_within(start, end)] == within


def misplaced_steps(count: int) -> int:
    """Return the comparisons for so many tablets, each with a file of another one."""
    keys = [CountedKey(number.to_bytes(4, "big")) for number in range(count)]
    bounds = [Bounds(*each) for each in zip([None, *keys[:-1]], keys, strict=True)]
    Counted.count = 0
    index = TabletIndex(bounds)
    for number, each in enumerate(bounds):
        key = keys[number - 1]
        tablet = Tablet(
            id=TabletId("t", each.end), bounds=each, files={"f": data_file("f", key, key)}
        )
        (found,) = check_bounds(tablet, index)
        assert found.changes
    return Counted.count


def crossing_steps(count: int) -> int:
    """Return the comparisons for so many files that no tablet holds."""
    keys = [CountedKey(number.to_bytes(4, "big")) for number in range(count + 1)]
    bounds = [Bounds(*each) for each in zip([None, *keys[:-1]], keys, strict=True)]
    Counted.count = 0
    index = TabletIndex(bounds)
    homes = [index.home(data_file("f", *pair)) for pair in pairwise(keys)]
    assert not any(homes)
    return Counted.count


def orphan_steps(count: int) -> int:
    """Return the look-ups for a chain of so many orphans, each replaced by the one after it."""
    paths = [CountedPath(f"_neve/last/job-{number}.parquet") for number in range(count + 1)]
    orphans = [
        (StoredFile(paths[number], 1, 1.0), footer(paths[number], paths[number - 1]))
        for number in range(1, count)
    ]
    Counted.count = 0
    judge = OnlyCopies(held=frozenset(), garbage=frozenset(), lost_s=None)
    judge.committed([("last", paths[-2:-1])])
    assert judge.among(orphans) == {}
    return Counted.count


def footer(path: str, replaced: str) -> OutputFooter:
    return OutputFooter(
        path=path,
        table="t",
        tablet="last",
        job="j",
        attempt=f"a-{path}",
        inputs=(replaced,),
        request=None,
        purge=None,
        outputs=(path,),
        rows=1,
    )


def finding(path: str) -> Finding:
    return Finding(code=FindingCode.OUTSIDE, path=path, sentence="keys lie outside", repair="move")


def report_steps(count: int) -> int:
    """Return the comparisons for the report of so many findings, all repaired."""
    checked = TableCheck(findings=[finding(CountedPath(f"f{n}")) for n in range(count)])
    settled = [
        RepairedFinding(finding=finding(CountedPath(f"f{n}")), done=True) for n in range(count)
    ]
    Counted.count = 0
    report = fsck_view(
        Table(id="t", name="t", location="file:///t", schema=(), key=("k",)),
        RepairReport(checked=checked, settled=tuple(settled)),
    )
    assert (len(report.findings), report.sound) == (count, True)
    return Counted.count


@pytest.mark.parametrize("steps", [misplaced_steps, crossing_steps, orphan_steps, report_steps])
def test_twice_as_much_takes_hardly_more_than_twice_the_steps(steps: Callable[[int], int]) -> None:
    small, large = steps(300), steps(600)

    assert 0 < large < 2.5 * small


class Watched(Sequence[DataFile]):
    """Files that note which threads go over them."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self._files = [*files]
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: object) -> DataFile:  # type: ignore[override]  # never sliced
        raise NotImplementedError

    def __iter__(self) -> Iterator[DataFile]:
        self.threads.add(threading.get_ident())
        return iter(self._files)


@pytest.mark.anyio
async def test_missing_files_are_found_off_the_event_loop(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x")
    files = Watched(data_file(path, b"a", b"a") for path in ("there", "listed", "gone"))
    stored = {"listed": StoredFile("listed", 1, 1.0)}
    threads = StorageThreads(1)

    assert await absent(threads, open_location(tmp_path.as_uri()), files, stored) == ("gone",)
    threads.close()
    assert threading.get_ident() not in files.threads
    assert files.threads
