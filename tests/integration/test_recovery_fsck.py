"""fsck over a real Redis and real files: each damage is found, mended, and nothing else is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from common.metadata.changes import AddFiles
from common.metadata.changes.protocol import into_garbage
from common.metadata.codec.table import PIN
from common.metadata.codec.tablet import BOUNDS, FILE, SELECTION
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import delete, hset, sadd, set_string
from common.metadata.store_values import PinEntry
from common.model.location_identity import GENERATION_PATH
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, Bounds, Selection, TabletId
from common.parquet.file_inspection import inspect_file
from common.parquet.service_files import OWNER_PATH, written_generation
from common.rows.rules import RowRules
from common.runtime import call_id
from neve.gateway.recovery import fsck_view
from neve.recovery.repair import (
    RepairOptions,
    RepairReport,
    check_and_repair,
)
from neve.recovery.scope import FindingCode
from tests.support.misordered import last_first, told_otherwise, write_misordered
from tests.support.recovery import Ground, key, rows
from tests.support.store_harness import applied

pytestmark = [pytest.mark.anyio, pytest.mark.integration]
EVERYTHING = RepairOptions(repair=True, adopt=True, accept=True, forget_missing=True)


@dataclass(frozen=True)
class Site:
    """A table of two tablets, with two files in the first and an output in the second."""

    ground: Ground
    table: Table
    first: TabletId
    last: TabletId
    output: str

    async def write(self, *effects: tuple[object, ...]) -> None:
        await self.ground.harness.write(*effects)  # type: ignore[arg-type]  # commands

    @property
    def keys(self) -> TabletKeys:
        return TabletKeys.of(self.first)

    @property
    def of_table(self) -> TableKeys:
        return TableKeys(self.table.id)

    def place(self, path: str) -> Path:
        return self.ground.place(self.table, path)


@pytest.fixture
async def site(ground: Ground) -> Site:
    table = await ground.table()
    first = await ground.add(table, "a.parquet", 1, 2)
    await ground.add(table, "b.parquet", 2, 50, v=2)
    last = await ground.add(table, "c.parquet", 150)
    await ground.add(table, "d.parquet", 150, 200, v=2)
    (output,) = await ground.compact(table, last, "c.parquet", "d.parquet")
    return Site(ground, table, first, last, output)


async def missing(site: Site) -> None:
    site.place("a.parquet").unlink()


async def orphaned_output(site: Site) -> None:
    assignment = await site.ground.reserve(site.table, site.first, "a.parquet", "b.parquet")
    site.ground.rewrite(assignment)
    attempt = assignment.reservation.attempt
    await site.write(("HDEL", site.keys.running, attempt), hset(site.keys.record, {"r": 0}))


async def orphaned_append(site: Site) -> None:
    site.ground.write(site.table, "_neve/append/x.parquet", rows(7))


async def orphaned_part(site: Site) -> None:
    site.place("_neve/append").mkdir(parents=True)
    site.place("_neve/append/x.parquet.part-1").write_bytes(b"half")


async def unreadable(site: Site) -> None:
    full = site.place("a.parquet")
    full.write_bytes(full.read_bytes()[:-20])


async def overwritten(site: Site) -> None:
    site.ground.write(site.table, "a.parquet", rows(1, 2, 3))


async def outside(site: Site) -> None:
    wrong = site.ground.write(site.table, "e.parquet", rows(300))
    counts = hset(site.keys.record, {"f": 3}), ("HINCRBY", site.keys.record, "b", wrong.size_bytes)
    await site.write(hset(site.keys.files, {"e.parquet": FILE.pack(wrong)}), *counts)


async def hole(site: Site) -> None:
    await site.write(delete(*site.keys.every), ("ZREM", site.of_table.index, site.first.end))


async def overlapping(site: Site) -> None:
    bounds = BOUNDS.pack(Bounds(key(40), PLUS_INFINITY))
    await site.write(set_string(TabletKeys.of(site.last).bounds, bounds))


async def lost_bounds(site: Site) -> None:
    await site.write(delete(site.keys.bounds))


async def counts(site: Site) -> None:
    await site.write(hset(site.keys.record, {"f": 7, "b": 1, "w": 2}))


async def stale_reservation(site: Site) -> None:
    assignment = await site.ground.reserve(site.table, site.first, "a.parquet", "b.parquet")
    attempt = assignment.reservation.attempt
    stored = await site.ground.harness.read(("HGET", site.keys.running, attempt))
    await site.ground.store.apply(site.ground.rewrite(assignment))
    await site.write(hset(site.keys.running, {attempt: stored}), hset(site.keys.record, {"r": 1}))


async def stale_marks(site: Site) -> None:
    selection = SELECTION.pack(Selection(request="r0", files=("a.parquet",)))
    await site.write(
        set_string(site.keys.selection, selection),
        sadd(site.keys.done, "r1"),
        hset(site.keys.record, {"s": 1, "d": 1}),
    )


async def stale_garbage(site: Site) -> None:
    await site.write(*into_garbage(site.of_table, site.first.end, {"a.parquet": b"x"}))


async def stale_pin(site: Site) -> None:
    entry = PinEntry(pin="p1", since_s=1.0, until_s=2.0)
    await site.write(hset(site.of_table.pins, {"p1": PIN.pack(entry)}))


async def foreign(site: Site) -> None:
    site.place(OWNER_PATH).write_text("store-of-another\n")


async def unowned(site: Site) -> None:
    site.place(OWNER_PATH).unlink()


async def rolled_back(site: Site) -> None:
    site.place(GENERATION_PATH).write_text("12\n")


async def scribbled(site: Site) -> None:
    site.place(GENERATION_PATH).write_text("twelve\n")


Damage = Callable[[Site], Awaitable[None]]
DAMAGES: dict[Damage, FindingCode] = {
    missing: FindingCode.MISSING,
    orphaned_output: FindingCode.ORPHANED,
    orphaned_append: FindingCode.ORPHANED,
    orphaned_part: FindingCode.ORPHANED,
    overwritten: FindingCode.DIFFERENT,
    outside: FindingCode.OUTSIDE,
    hole: FindingCode.HOLE,
    lost_bounds: FindingCode.HOLE,
    overlapping: FindingCode.OVERLAP,
    counts: FindingCode.COUNTS,
    stale_reservation: FindingCode.STALE_RESERVATION,
    stale_marks: FindingCode.STALE_MARKS,
    stale_garbage: FindingCode.STALE_GARBAGE,
    stale_pin: FindingCode.STALE_PIN,
    foreign: FindingCode.OWNER,
    unowned: FindingCode.OWNER,
    rolled_back: FindingCode.GENERATION,
    scribbled: FindingCode.GENERATION,
}


async def run(site: Site, options: RepairOptions | None = None) -> RepairReport:
    return await check_and_repair(site.ground.scope(site.table), options or RepairOptions())


def codes(report: RepairReport) -> list[FindingCode]:
    """Return what was found, notes about files of users aside."""
    return [
        finding.code
        for finding in report.checked.findings
        if finding.code is not FindingCode.UNKNOWN
    ]


async def test_a_sound_table_has_nothing_to_mend(site: Site) -> None:
    report = await run(site, replace(EVERYTHING, deep=True))

    assert report.checked.findings == []
    assert (report.checked.tablets, report.checked.files) == (2, 3)
    assert report.settled == ()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
async def test_each_damage_is_found_repaired_and_then_gone(site: Site, damage: Damage) -> None:
    await damage(site)
    before, files = await site.ground.dump(), site.ground.files()

    found = await run(site)

    assert codes(found) == [DAMAGES[damage]]
    assert await site.ground.dump() == before, "a dry run writes no key"
    assert site.ground.files() == files, "a dry run writes no file"
    assert found.checked.findings[0].repair
    mended = await run(site, EVERYTHING)
    assert [(each.done, each.outcome) for each in mended.settled] == [(True, "")] * len(
        mended.settled
    )
    assert codes(await run(site)) == []


@pytest.mark.parametrize(
    ("damage", "option"),
    [(missing, "forget_missing"), (foreign, "adopt"), (rolled_back, "accept")],
    ids=lambda each: getattr(each, "__name__", each),
)
async def test_a_repair_with_an_option_of_its_own_needs_that_option(
    site: Site, damage: Damage, option: str
) -> None:
    await damage(site)
    before = await site.ground.dump()

    await run(site, RepairOptions(repair=True))

    assert await site.ground.dump() == before
    await run(site, RepairOptions(**{option: True}))  # type: ignore[arg-type]  # by name
    assert codes(await run(site)) == []


async def test_a_missing_file_takes_its_own_row_only(site: Site) -> None:
    await missing(site)

    await run(site, RepairOptions(forget_missing=True))

    assert await site.ground.paths(site.table) == sorted(["b.parquet", site.output])


async def test_an_unreadable_file_is_told_and_left(site: Site) -> None:
    await unreadable(site)

    report = await run(site, EVERYTHING)

    assert codes(report) == [FindingCode.CORRUPT]
    assert "a.parquet" in await site.ground.paths(site.table)


async def test_a_flipped_byte_is_found_by_decoding(site: Site) -> None:
    full = site.place(site.output)
    column = pq.read_metadata(full).row_group(0).column(2)
    content = bytearray(full.read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    content[begin + column.total_compressed_size - 1] ^= 0xFF
    full.write_bytes(content)

    assert codes(await run(site)) == []
    assert codes(await run(site, RepairOptions(deep=True))) == [FindingCode.CORRUPT]


async def test_entries_that_are_too_narrow_are_found_by_decoding(site: Site) -> None:
    tablet = await site.ground.store.tablet(site.first)
    narrow = replace(tablet.files["b.parquet"], key_max=key(3), version_max=b"\x01")
    await site.write(hset(site.keys.files, {"b.parquet": FILE.pack(narrow)}))

    found = await run(site, RepairOptions(repair=True, deep=True))

    assert codes(found) == [FindingCode.DIFFERENT]
    assert "keys outside" in found.checked.findings[0].sentence
    assert codes(await run(site, RepairOptions(deep=True))) == []


async def misordered_file(site: Site, path: str = "m.parquet") -> None:
    """Add a file as earlier releases wrote some, and forget what adding has seen of it."""
    write_misordered(site.place(path), rows(*range(10, 40)), order=last_first, row_group_size=10)
    facts = inspect_file(site.ground.location(site.table), path, RowRules.of(site.table))
    file = replace(facts.data_file(added_at_s=1000.0), tags=(("late", "true"),))
    change = AddFiles(table=site.table.id, call=call_id(), files={site.first.end: (file,)})
    applied(await site.ground.store.apply(change))


@pytest.mark.parametrize("deep", [False, True])
async def test_files_of_which_spark_misses_rows_are_found_and_tagged(
    site: Site, deep: bool
) -> None:
    await misordered_file(site)
    before = await site.ground.dump()

    found = await run(site, RepairOptions(deep=deep))

    (finding,) = found.checked.findings
    assert (finding.code, finding.path) == (FindingCode.LAYOUT, "m.parquet")
    assert "such as Spark, may miss rows of the file: column 1 of row group 0" in finding.sentence
    wanted = "`neve compact events --selector layout` rewrites it"
    assert finding.repair == f"tag the file; then {wanted}"
    assert await site.ground.dump() == before, "a dry run writes no key"
    assert not fsck_view(site.table, found).sound

    tagged = await run(site, RepairOptions(deep=deep, repair=True))

    assert [(each.done, each.outcome) for each in tagged.settled] == [(True, "")]
    assert not fsck_view(site.table, tagged).sound, "it is rewritten by a compaction, not yet"
    file = (await site.ground.store.tablet(site.first)).files["m.parquet"]
    assert file.tags == (("late", "true"), ("layout", "faulty"))
    again = await run(site, RepairOptions(deep=deep, repair=True))
    assert [(each.code, each.repair) for each in again.checked.findings] == [
        (FindingCode.LAYOUT, wanted)
    ]
    assert again.settled == ()

    await site.ground.compact(site.table, site.first, "a.parquet", "m.parquet")
    assert (await run(site, RepairOptions(deep=deep))).checked.findings == []


async def test_wrong_offsets_of_row_groups_are_found_by_decoding(site: Site) -> None:
    """Arrow does not show it: the row group is said to begin where its second column does."""
    site.ground.write(site.table, "w.parquet", rows(10, 20))
    content = site.place("w.parquet").read_bytes()
    site.place("w.parquet").write_bytes(told_otherwise(content))
    facts = inspect_file(site.ground.location(site.table), "w.parquet", RowRules.of(site.table))
    file = facts.data_file(added_at_s=1000.0)
    change = AddFiles(table=site.table.id, call=call_id(), files={site.first.end: (file,)})
    applied(await site.ground.store.apply(change))

    assert codes(await run(site)) == []
    found = await run(site, RepairOptions(deep=True, repair=True))

    assert codes(found) == [FindingCode.LAYOUT]
    assert "row group 0 claims to begin at byte" in found.checked.findings[0].sentence
    file = (await site.ground.store.tablet(site.first)).files["w.parquet"]
    assert file.has_faulty_layout


async def test_a_file_that_changed_keeps_its_tags_when_its_entry_is_written_anew(
    site: Site,
) -> None:
    await misordered_file(site)
    write_misordered(site.place("m.parquet"), rows(12, 13), order=last_first)

    report = await run(site, RepairOptions(repair=True))

    assert codes(report) == [FindingCode.DIFFERENT]
    file = (await site.ground.store.tablet(site.first)).files["m.parquet"]
    assert file.rows == 2
    assert file.tags == (("late", "true"), ("layout", "faulty"))


async def test_files_of_users_are_told_and_left(site: Site) -> None:
    site.ground.write(site.table, "other.parquet", rows(5))
    site.place("notes.txt").write_text("hello")
    before = await site.ground.dump()

    report = await run(site, EVERYTHING)

    found = [(finding.code, finding.path) for finding in report.checked.findings]
    # c and d were replaced: they wait for the collector and are known.
    assert found == [(FindingCode.UNKNOWN, "other.parquet")]
    assert await site.ground.dump() == before
    assert site.place("other.parquet").exists()


async def test_a_table_of_another_store_is_mended_only_after_adoption(site: Site) -> None:
    await foreign(site)
    await orphaned_append(site)

    report = await run(site, RepairOptions(repair=True))

    assert [each.done for each in report.settled] == [False]
    assert "--adopt" in report.settled[0].outcome
    assert "_neve/append/x.parquet" not in {
        each.path for each in await site.ground.store.garbage(site.table.id)
    }


async def test_work_that_goes_on_is_no_damage(site: Site) -> None:
    assignment = await site.ground.reserve(site.table, site.first, "a.parquet", "b.parquet")
    site.ground.rewrite(assignment)
    site.ground.write(site.table, "_neve/append/young.parquet", rows(7))
    old = site.ground.scope(site.table, grace_s=3600)

    assert (await check_and_repair(old, EVERYTHING)).checked.findings == []


async def test_an_undecodable_entry_is_a_finding(site: Site) -> None:
    await site.write(hset(site.keys.files, {"a.parquet": b"\x09"}))

    assert FindingCode.UNDECODABLE in codes(await run(site, EVERYTHING))


async def test_a_selection_of_files_that_are_gone_is_told(site: Site) -> None:
    selection = SELECTION.pack(Selection(request="r0", files=("gone.parquet",)))
    request = hset(site.of_table.request("r0"), {"state": "active"})
    flags = hset(site.keys.record, {"s": 1})
    await site.write(set_string(site.keys.selection, selection), request, flags)

    assert codes(await run(site, EVERYTHING)) == [FindingCode.STALE_SELECTION]


async def test_accepting_lets_the_coordinator_count_on(site: Site) -> None:
    await rolled_back(site)
    await run(site, RepairOptions(accept=True))

    assert await site.ground.store.generation(site.table.id) == 13
    assert written_generation(site.ground.location(site.table)) == 12
