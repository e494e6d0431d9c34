"""Notes of many tablets in one change: each by its own rules, and none in another's way."""

from __future__ import annotations

import pytest

from common.metadata.changes import DropTable, WriteAnalyses, WriteAnalysis
from common.model.tablet import Analysis, TabletId
from tests.support.store_harness import Harness, applied, file, refused

pytestmark = pytest.mark.anyio
ENDS = tuple(bytes([number]) for number in range(1, 9))


def note(tablet: TabletId, version: int, **fields: object) -> WriteAnalysis:
    plain: dict[str, object] = {"analysis": Analysis.STABLE, "settings_version": 1}
    return WriteAnalysis(tablet=tablet, version=version, **(plain | fields))  # type: ignore[arg-type]  # any field


async def test_each_note_counts_if_its_tablet_is_as_it_was(harness: Harness) -> None:
    table = await harness.table(splits=ENDS)
    ids = [TabletId(table.id, end) for end in ENDS]
    applied(await harness.add(ids[1], file("f", ENDS[1], ENDS[1])))
    gone = TabletId(table.id, b"\x01\x01")
    before = await harness.store.records(ids)
    versions = [0 if each is None else each.version for each in before]
    notes = (
        note(ids[0], versions[0], due_at_s=77.5),
        note(ids[1], versions[1] - 1),
        note(gone, 0),
        note(ids[3], -1, settled=((5.0, b"v"),), selector_hash="h", selector_due_s=9.25),
    )
    applied(await harness.apply(WriteAnalyses(table=table.id, notes=notes)))
    first, second, third, fourth = (await harness.store.records(ids))[:4]
    assert first is not None
    assert (first.analysis, first.due_at_s, first.version) == (Analysis.STABLE, 77.5, versions[0])
    assert second == before[1]
    assert third == before[2]
    assert fourth is not None
    assert (fourth.analysis, fourth.settled) == (Analysis.UNKNOWN, ((5.0, b"v"),))
    assert (fourth.selector_hash, fourth.selector_due_s) == ("h", 9.25)
    assert (await harness.store.records([gone])) == [None]
    again = (note(ids[0], versions[0]), note(ids[3], -1, selector_hash="h"))
    applied(await harness.apply(WriteAnalyses(table=table.id, notes=again)))
    first, *_, fourth = (await harness.store.records(ids))[:4]
    assert first is not None
    assert first.due_at_s is None
    assert fourth is not None
    assert fourth.selector_due_s is None


async def test_notes_of_nothing_and_of_a_dropped_table_write_nothing(harness: Harness) -> None:
    table = await harness.table(splits=ENDS)
    applied(await harness.apply(WriteAnalyses(table=table.id, notes=())))
    applied(await harness.apply(DropTable(table=table.id)))
    notes = (note(TabletId(table.id, ENDS[0]), 0),)
    refused(await harness.apply(WriteAnalyses(table=table.id, notes=notes)), "table")
    assert await harness.keys(table.id) == []
