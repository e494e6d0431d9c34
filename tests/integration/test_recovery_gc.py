"""The listing sweep over a real Redis: what no key knows goes, all else stays."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import RefusedError
from common.metadata.changes import AddFiles
from common.model.location_identity import GENERATION_PATH
from common.model.outcome import RowCounts
from common.runtime import call_id
from neve.recovery.gc import collect_orphans, find_orphans
from neve.recovery.scope import FindingCode
from tests.support.recovery import Ground, go_back, moment, rows
from tests.support.store_harness import applied, refused

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def test_orphans_go_to_the_collector_and_nothing_else(ground: Ground) -> None:
    table = await ground.table()
    tablet = await ground.add(table, "a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    await ground.compact(table, tablet, "a.parquet", "b.parquet")
    await ground.add(table, "_neve/append/used.parquet", 3)
    running = await ground.reserve(table, tablet, "_neve/append/used.parquet")
    ground.rewrite(running)
    orphan = ground.write(table, "_neve/append/lost.parquet", rows(160))
    ground.write(table, "users.parquet", rows(4))
    before, files = await ground.dump(), ground.files()

    seen = await find_orphans(ground.scope(table))
    dry = await collect_orphans(ground.scope(table), delete=False)

    assert await ground.dump() == before
    assert [finding.path for finding in seen.findings if finding.code is FindingCode.ORPHANED] == [
        orphan.path
    ]
    assert (dry.orphans, dry.orphan_bytes, dry.given) == (1, orphan.size_bytes, 0)
    done = await collect_orphans(ground.scope(table), delete=True)
    assert done.given == 1
    assert ground.files() == files, "the collector deletes, not the sweep"
    entries = {each.path: each for each in await ground.store.garbage(table.id)}
    assert entries.keys() == {"a.parquet", "b.parquet", orphan.path}
    assert entries[orphan.path].key_min == orphan.key_min
    assert (await collect_orphans(ground.scope(table), delete=True)).orphans == 0


async def test_a_young_file_waits(ground: Ground) -> None:
    table = await ground.table()
    ground.write(table, "_neve/append/young.parquet", rows(1))

    done = await collect_orphans(ground.scope(table, grace_s=3600), delete=True)

    assert (done.orphans, done.young) == (0, 1)


async def test_an_output_goes_with_the_lost_append_that_it_was_made_of(ground: Ground) -> None:
    """A fail-over has forgotten an add without an answer, and the commit that followed it."""
    table = await ground.table()
    tablet = await ground.add(table, "a.parquet", 1)
    before = await moment(ground)
    appended = "_neve/append/lost.parquet"
    await ground.add(table, appended, 2)
    (output,) = await ground.compact(table, tablet, "a.parquet", appended)
    await go_back(ground, before)

    # Without its input, the output would be in doubt for ever: the input waits for it.
    os.utime(ground.place(table, appended), (1_000_000_000, 1_000_000_000))
    done = await collect_orphans(ground.scope(table, grace_s=3600), delete=True)
    assert (done.orphans, done.young) == (0, 2)

    done = await collect_orphans(ground.scope(table), delete=True)
    assert {finding.path for finding in done.found} == {appended, output}
    assert (done.given, done.evidence) == (2, 0)


async def test_the_mark_of_an_empty_commit_stays_while_its_inputs_lie_there(
    ground: Ground,
) -> None:
    table = await ground.table()
    tablet = await ground.add(table, "a.parquet", 1)
    assignment = await ground.reserve(table, tablet, "a.parquet")
    commit = ground.rewrite(assignment)
    mark = ground.place(table, assignment.reservation.output_path(0))
    emptied(mark)
    counts = RowCounts(rows_in=1, rows_out=0)
    applied(await ground.store.apply(replace(commit, outputs=(), counts=counts)))

    assert (await find_orphans(ground.scope(table))).marks == 1
    ground.place(table, "a.parquet").unlink()
    found = await find_orphans(ground.scope(table))
    assert [finding.path for finding in found.findings] == [assignment.reservation.output_path(0)]


def emptied(path: Path) -> None:
    """Take the rows out of a file and leave its footer."""
    named = pq.read_metadata(path).metadata
    schema = pq.read_schema(path).with_metadata(named)
    pq.write_table(schema.empty_table(), path)


async def test_an_add_that_comes_late_keeps_its_file(ground: Ground) -> None:
    table = await ground.table()
    file = ground.write(table, "_neve/append/slow.parquet", rows(1))
    seen = await find_orphans(ground.scope(table))
    tablet = await ground.store.locate(table.id, file.key_min)
    add = AddFiles(table=table.id, call=call_id(), files={tablet.end: (file,)})
    applied(await ground.store.apply(add))

    (change,) = seen.findings[0].changes
    refused(await ground.store.apply(change), "used")


async def test_an_orphan_in_a_partition_belongs_to_it(ground: Ground) -> None:
    table = await ground.table(splits=(), key=("id",), partition_by=("name",), version_column="v")
    ground.write(table, "_neve/append/p.parquet", pa.table(rows(1)))

    (found,) = (await find_orphans(ground.scope(table))).findings

    assert found.tablet is not None
    assert found.tablet.end == b"\x01n1\x00\x01"


async def test_a_table_behind_is_not_swept(ground: Ground) -> None:
    table = await ground.table()
    ground.write(table, "_neve/append/forgotten.parquet", rows(1))
    ground.place(table, GENERATION_PATH).write_text("9\n")

    with pytest.raises(RefusedError, match="is read-only: its store is at generation"):
        await collect_orphans(ground.scope(table), delete=True)
    told = await collect_orphans(ground.scope(table), delete=False)
    assert (told.orphans, told.evidence) == (0, 1), "it may be rows that the store has forgotten"
    ground.place(table, "_neve/store").write_text("another\n")
    with pytest.raises(RefusedError, match="another"):
        await collect_orphans(ground.scope(table), delete=True)
