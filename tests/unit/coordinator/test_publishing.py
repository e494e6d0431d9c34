"""When manifests are published, what they cover, and which files need a merge."""

from __future__ import annotations

import random

import pytest

from common.metadata.store_values import Manifest
from common.model.file import DataFile
from common.model.table import Column, Table
from common.parquet.location import open_location
from common.parquet.manifest import (
    absolute_name,
    begun_of,
    delete_folder,
    files_to_merge,
    manifest_folder_name,
)
from coordinator.core.scans import PublishRules, is_publish_due

pytestmark = pytest.mark.unit
RULES = PublishRules(interval_s=60.0, grace_s=900.0)
KEYED = Table(
    id="t", name="t", location="file:///t", schema=(Column("k", "int64"),), key=("k",),
    version_column="k",
)  # fmt: skip


def published(at_s: float) -> Manifest:
    return Manifest(number=2, path="m", begun_s=at_s - 1, published_s=at_s)


@pytest.mark.parametrize(
    ("age_s", "changed", "awaited", "due"),
    [
        (59.0, True, True, False),
        (60.0, True, False, True),
        (60.0, False, True, True),
        (10_000.0, False, False, False),
    ],
)
def test_a_manifest_is_due_when_the_table_changed_or_it_is_awaited(
    age_s: float, changed: bool, awaited: bool, due: bool
) -> None:
    assert (
        is_publish_due(published(100.0), 100.0 + age_s, RULES, changed=changed, awaited=awaited)
        is due
    )
    assert is_publish_due(None, 0.0, RULES, changed=changed, awaited=awaited)


def test_no_interval_is_shorter_than_a_part_of_the_grace_nor_delays_deletions_for_long() -> None:
    often = PublishRules(interval_s=1.0, grace_s=900.0)
    assert not is_publish_due(published(0), often.gap_s - 1, often, changed=True, awaited=True)
    assert is_publish_due(published(0), often.gap_s, often, changed=True, awaited=False)
    seldom = PublishRules(interval_s=86_400.0, grace_s=900.0)
    assert not is_publish_due(published(0), 86_399, seldom, changed=True, awaited=False)
    assert is_publish_due(published(0), 900.0, seldom, changed=False, awaited=True)


def test_deletions_are_covered_by_what_has_been_out_for_the_grace() -> None:
    manifest = Manifest(
        number=3, path="m/3", begun_s=300, published_s=310,
        earlier=((2, "m/2", 200, 210), (1, "m/1", 100, 110)),
    )  # fmt: skip
    told = {now_s: manifest.covered_s(now_s, 50) for now_s in (150, 160, 260, 359, 360)}
    assert told == {150: None, 160: 100, 260: 200, 359: 200, 360: 300}
    assert manifest.outdated(259, 50) == ()
    assert manifest.outdated(260, 50) == ("m/1",)
    assert manifest.outdated(360, 50) == ("m/2", "m/1")
    assert Manifest(number=1, path="m", begun_s=1.0).covered_s(1e9, 1) is None, "never noted"


def file(path: str, low: int, high: int, *, clean: bool = True, rows: int = 1) -> DataFile:
    bounds = {"key_min": bytes([low]), "key_max": bytes([high])} if rows else {}
    return DataFile(path=path, size_bytes=1, rows=rows, clean=clean, **bounds)


@pytest.mark.parametrize("seed", range(20))
def test_files_are_merged_that_are_not_clean_or_overlap(seed: int) -> None:
    chance = random.Random(seed)
    files = []
    for number in range(chance.randrange(12)):
        low = chance.randrange(200)
        clean, rows = chance.random() < 0.8, chance.choice([0, 1, 1, 1])
        high = min(255, low + chance.choice([0, 3, 90]))
        files.append(file(f"f{number}", low, high, clean=clean, rows=rows))

    def overlaps(a: DataFile, b: DataFile) -> bool:
        if not a.rows or not b.rows or a is b:
            return False
        return a.key_min <= b.key_max and b.key_min <= a.key_max  # type: ignore[operator]  # both have rows

    expected = {
        a.path for a in files if (a.rows and not a.clean) or any(overlaps(a, b) for b in files)
    }
    assert files_to_merge(KEYED, files) == expected
    bag = Table(id="t", name="t", location="file:///t", schema=KEYED.schema)
    assert files_to_merge(bag, files) == frozenset()


def test_manifest_names_are_absolute_and_carry_version_and_time() -> None:
    local = open_location("file:///data/my%20table")
    assert absolute_name(local, "day=a%2Fb/x.parquet") == "/data/my table/day=a%2Fb/x.parquet"
    folder = manifest_folder_name(12, 1700000000.9, "m-0a1b")
    assert folder == "_neve/manifest/0000000012-1700000000-m-0a1b"
    assert begun_of(folder) == 1700000000.0
    assert begun_of("_neve/manifest/latest.json") is None
    with pytest.raises(Exception, match="not one of manifests"):
        delete_folder(local, "_neve")
