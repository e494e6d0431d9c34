"""A store that has gone back in time: its tables are read-only until somebody accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from common.errors import RequestError
from common.metadata.changes import (
    AcceptGeneration,
    Applied,
    BeginOperation,
    Change,
    CreateTable,
    Outcome,
    Refused,
    ReleaseAttempt,
)
from common.metadata.keys import TableKeys
from common.metadata.keyspace import set_string
from common.model.location_identity import DESCRIPTION_PATH, GENERATION_PATH
from common.model.outcome import AttemptEnd
from common.model.table import Table, TableState
from common.model.tablet import OperationKind
from common.parquet.location import open_location
from common.parquet.service_files import (
    LocationOwner,
    read_description,
    read_owner,
    write_description,
    write_generation,
    write_owner,
    written_generation,
)
from common.storage_threads import StorageThreads
from coordinator.context import LOOK_LASTS_S, Generations, ShellContext
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.service import StoreActions
from tests.support.assignments import an_assignment
from tests.support.memory_store import MemoryStore
from tests.support.patience import PATIENCE_S
from tests.support.predictable import CountedIds, ManualClock
from tests.support.tables_on_disk import keyed_table, settings

pytestmark = pytest.mark.anyio
P, T = ParamSpec("P"), TypeVar("T")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Place:
    """A table in a memory store and a folder, and the one who counts its generation up."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.table: Table = keyed_table(folder)
        self.log: list[str] = []
        self.generations = self.another()

    def another(self) -> Generations:
        return Generations(self.store, lambda event, **_: self.log.append(event))

    async def roll_back(self, generation: int) -> None:
        key = TableKeys(self.table.id).generation
        async with self.store.keyspace.session() as session:
            await session.execute([set_string(key, generation)])

    @property
    def written(self) -> int:
        return written_generation(open_location(self.table.location))


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    made = Place(tmp_path / "events")
    await made.store.apply(CreateTable(table=made.table))
    return made


async def test_the_generation_is_counted_up_in_store_and_location(place: Place) -> None:
    for number in (1, 2, 3):
        await place.generations.count_up(place.table)
        assert (place.written, await place.store.generation(place.table.id)) == (number, number)
    assert await place.generations.refusal(place.table.id) is None
    assert place.generations.may_change(place.table.id)
    assert place.generations.known(place.table.id) == 3


async def test_a_store_behind_its_location_is_not_counted_up(place: Place) -> None:
    for _ in range(3):
        await place.generations.count_up(place.table)
    await place.roll_back(1)

    await place.generations.count_up(place.table)

    assert (place.written, await place.store.generation(place.table.id)) == (3, 1)
    assert not place.generations.may_change(place.table.id)
    assert "--accept" in (await place.generations.refusal(place.table.id) or "")
    assert place.log == ["table is read-only"]
    await place.store.apply(AcceptGeneration(table=place.table.id, generation=4))
    await place.generations.count_up(place.table)
    assert place.written == 5
    assert place.generations.may_change(place.table.id)


async def test_who_stood_still_after_the_look_counts_nothing_up(place: Place) -> None:
    """An older state would be counted up to the number that its location has from another."""
    await place.generations.count_up(place.table)

    class StandsStill(StorageThreads):
        async def run(
            self, location: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
        ) -> T:
            found = await super().run(location, work, *args, **kwargs)
            if work is read_owner:  # The last thing of a look.
                await place.generations.count_up(place.table)
                await place.roll_back(1)
                place.clock.advance(LOOK_LASTS_S + 0.1)
            return found

    await Generations(place.store, lambda *_, **__: None, threads=StandsStill()).count_up(
        place.table
    )

    assert (place.written, await place.store.generation(place.table.id)) == (2, 1)
    assert await place.generations.look(place.table) is not None


async def test_a_coordinator_that_starts_looks_before_the_first_job(place: Place) -> None:
    for _ in range(3):
        await place.generations.count_up(place.table)
    await place.roll_back(1)

    assert await place.another().refusal(place.table.id) is not None
    assert await place.another().refusal("none") is None


async def test_nothing_is_written_before_the_first_look(place: Place) -> None:
    """A manifest of a store that went back would take the place of the newest one."""
    another = place.another()
    assert not another.may_change(place.table.id)
    await another.look(place.table)
    assert another.may_change(place.table.id)
    assert not another.may_change("none")


async def test_a_store_that_goes_back_before_its_location_was_told_is_noticed(
    place: Place,
) -> None:
    for _ in range(2):
        await place.generations.count_up(place.table)
    # As if the storage had refused to take the second one.
    write_generation(open_location(place.table.location), 1)
    await place.roll_back(1)

    assert "has 2" in (await place.generations.look(place.table) or "")

    assert place.written == 2, "the gateway and `neve fsck` see it, too"
    assert await place.another().look(place.table) is not None
    accept = AcceptGeneration(table=place.table.id, generation=3)
    assert isinstance(await place.store.apply(accept), Applied)
    assert await place.generations.look(place.table) is None
    assert place.generations.known(place.table.id) == 3


async def test_a_store_that_goes_back_between_look_and_count_is_not_counted_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await place.generations.count_up(place.table)
    read = place.store.generation

    async def read_and_go_back(table: str) -> int:
        found = await read(table)
        await place.roll_back(1)
        return found

    with monkeypatch.context() as between:
        between.setattr(place.store, "generation", read_and_go_back)
        await place.generations.count_up(place.table)

    assert (place.written, await place.store.generation(place.table.id)) == (3, 1)
    assert "--accept" in (await place.generations.look(place.table) or "")


def context_of(place: Place, generations: Generations) -> ShellContext:
    return ShellContext(
        store=place.store,
        clock=ManualClock(),
        ids=CountedIds("a"),
        log=lambda *_args, **_fields: None,
        coordinator="coord-1",
        generations=generations,
    )


async def test_changes_require_the_generation_that_was_read(place: Place) -> None:
    """Between two looks a store that goes back refuses by itself."""
    for _ in range(3):
        await place.generations.count_up(place.table)
    context = context_of(place, place.generations)
    tablet = (await place.store.tablet_ids(place.table.id))[0]
    release = ReleaseAttempt(tablet=tablet, attempt="att-1", end=AttemptEnd.LOST, cause="silence")
    begin = BeginOperation(
        kind=OperationKind.SPLIT, tablets=(tablet,), operation="op", at=b"\x01\x80"
    )
    assert isinstance(await context.apply(release), Refused)
    await place.roll_back(2)
    refused = await context.apply(begin)
    assert isinstance(refused, Refused)
    assert refused.code == "generation"
    await place.generations.look(place.table)
    refused = await context.apply(begin)
    assert isinstance(refused, Refused)
    assert "--accept" in refused.reason


async def test_no_job_of_a_table_behind_is_reserved(place: Place) -> None:
    for _ in range(2):
        await place.generations.count_up(place.table)
    await place.roll_back(1)
    heard: list[on.Event] = []
    context = context_of(place, place.another())
    before = await place.store.tablet_ids(place.table.id)
    job = an_assignment(table=place.table).job

    await StoreActions(context, heard.append, {}).perform(
        do.Reserve(take="take-1", job=job, compactor="c-1")
    )

    (refused,) = heard
    assert isinstance(refused, on.JobRefused)
    assert refused.code == "generation"
    assert [tablet.running for tablet in await place.store.tablets(before)] == [{}]


async def test_a_location_that_has_become_another_table_s_is_not_written(place: Place) -> None:
    location = open_location(place.table.location)
    for table, barred in (("", False), (place.table.id, False), ("t-other", True)):
        write_owner(location, LocationOwner("store-1", table))
        await place.generations.count_up(place.table)
        assert place.generations.may_change(place.table.id) is not barred
    reason = await place.another().refusal(place.table.id)
    assert "belongs to the table with id t-other" in (reason or "")
    write_owner(location, LocationOwner("store-1", place.table.id))
    await place.generations.count_up(place.table)
    assert place.generations.may_change(place.table.id)


async def test_a_scribble_bars_the_table(place: Place) -> None:
    folder = Path(place.table.location.removeprefix("file://"))
    (folder / "_neve").mkdir(parents=True)
    (folder / GENERATION_PATH).write_text("what?")

    assert "no number" in (await place.generations.refusal(place.table.id) or "")


async def test_a_change_of_settings_rewrites_the_description(place: Place) -> None:
    location = open_location(place.table.location)
    await place.generations.count_up(place.table)
    assert read_description(location) == place.table

    changed = replace(place.table, settings=settings(ratio=7.0, ttl_s=5.0), settings_version=2)
    await place.generations.count_up(changed)

    assert read_description(location) == changed


async def test_the_loop_looks_at_new_tables_and_forgets_old_ones(place: Place) -> None:
    tables = [place.table, replace(place.table, id="t2", state=TableState.GOING)]
    loop = asyncio.create_task(place.generations.run_forever(lambda: tables))
    async with asyncio.timeout(PATIENCE_S):
        while not place.written:
            await asyncio.sleep(0.01)
    loop.cancel()

    broken = replace(place.table, id="t3", location="nowhere")
    loop = asyncio.create_task(place.generations.run_forever(lambda: [broken]))
    async with asyncio.timeout(PATIENCE_S):
        while "generation not counted up" not in place.log:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.02)
    loop.cancel()
    assert place.table.id not in place.generations._reasons


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format": "neve-table", "version": 9}', '{"format": "other"}', "TABLE"],
)
async def test_a_description_of_another_release_is_refused(tmp_path: Path, content: str) -> None:
    table = keyed_table(tmp_path)
    location = open_location(table.location)
    assert read_description(location) is None
    write_description(location, table)
    path = tmp_path / DESCRIPTION_PATH
    if content == "TABLE":
        content = path.read_text().replace('"ratio"', '"rati"')
    path.write_text(content)
    with pytest.raises(RequestError, match=r"table\.json"):
        read_description(location)


async def test_a_store_that_goes_back_between_look_and_change_is_not_counted_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await place.generations.count_up(place.table)
    look = place.generations.look

    async def look_too_soon(table: Table) -> str | None:
        reason = await look(table)
        await place.roll_back(1)
        return reason

    monkeypatch.setattr(place.generations, "look", look_too_soon)
    await place.generations.count_up(place.table)

    assert (place.written, await place.store.generation(place.table.id)) == (3, 1)
    assert await place.another().look(place.table) is not None


async def test_a_paused_coordinator_writes_no_lower_generation(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = place.store.apply

    async def stand_still(change: Change) -> Outcome:
        outcome = await apply(change)
        write_generation(open_location(place.table.location), 9)  # By another coordinator.
        return outcome

    monkeypatch.setattr(place.store, "apply", stand_still)
    await place.generations.count_up(place.table)

    assert place.written == 9
