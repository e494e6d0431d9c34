"""A table with a key that publishes a log: other engines read it as of when it was at rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

import pytest

from common.lake.delta import publication
from common.metadata.store import TabletStore, walk_tiles
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.foreign_formats import LOG_FOLDER, own_log, read_note
from coordinator.storage import manifests
from coordinator.storage.manifests import LogPublication
from tests.support.manifest_site import GRACE_S
from tests.support.published_site import (
    PublishedSite,
    Publisher,
    Row,
    published_site,
    read_as_iceberg,
    read_by_deltalake,
    read_by_polars,
)

pytestmark = [
    pytest.mark.unit,
    pytest.mark.usefixtures("publish"),
    pytest.mark.parametrize(
        "publish", ["delta", pytest.param("iceberg", marks=pytest.mark.long)], indirect=True
    ),
]
FORMAT = ContextVar("FORMAT", default="delta")


@pytest.fixture
def publish(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the tables of a test publish themselves in a format."""
    token = FORMAT.set(request.param)
    yield
    FORMAT.reset(token)


def story(folder: Path, tell: Callable[[PublishedSite], Awaitable[None]]) -> None:
    async def run() -> None:
        path = folder / "people"
        path.mkdir()
        await tell(await published_site(path.as_uri(), key=("id",), publish=FORMAT.get()))

    asyncio.run(run())


def rows_read(site: PublishedSite) -> list[Row]:
    root = site.location.root
    if site.log.format == "iceberg":
        return read_as_iceberg(root)
    by_polars = read_by_polars(root)
    assert read_by_deltalake(root) == by_polars
    return by_polars


def is_stored(site: PublishedSite, path: str) -> bool:
    return Path(site.location.root, path).exists()


async def collect(site: PublishedSite, by: Publisher | None = None) -> int:
    return (await (by or site.here).collector.collect(site.table)).deleted


async def read_files(site: PublishedSite, by: Publisher) -> LogPublication:
    """Let a coordinator begin a publication, and read all files."""
    late = await by.logs.begin(site.table)
    assert late is not None
    async for page in walk_tiles(site.store, site.table):
        for tablet in page:
            late.add(tablet)
    return late


def test_nothing_is_published_before_the_table_is_at_rest(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 2, 1)
        assert await site.publish(), "the manifest does not wait"
        assert own_log(site.location) is None
        problem = read_note(site.location).problem
        assert "1 of 1 tablet not at rest, such as day=7" in problem
        assert "neve compact events" in problem
        assert site.here.logs.problems == {}, "it is no failure"
        await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        assert rows_read(site) == site.model == [(1, 7), (2, 7)]
        assert (site.log.version, site.log.rows, site.log.lag) == (0, 2, "")
        assert read_note(site.location).problem == ""

    story(tmp_path, tell)


def test_the_published_state_stays_until_the_table_is_at_rest_again(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1, 2)
        first = await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        as_of_s, before = site.log.as_of_s, site.model
        await site.add("day=7/b.parquet", 2, 3)
        assert await site.publish()
        assert (site.log.version, site.log.as_of_s, site.log.rows) == (1, as_of_s, 2)
        assert "not at rest" in site.log.lag
        await site.compact(7, first, "day=7/b.parquet")
        await site.add("day=7/c.parquet", 3, 4)
        for number in range(8):
            await site.change(ratio=4.0 + number)
            assert await site.publish(), "manifests are recorded"
            await collect(site)
            site.clock.advance(GRACE_S)
        assert not is_stored(site, "day=7/b.parquet"), "no version has named it"
        assert is_stored(site, first), "the newest version names it"
        assert rows_read(site) == before
        other = site.coordinator("b")
        assert await collect(site, other) == 0, "a coordinator that knows nothing reads the log"

    story(tmp_path, tell)


def test_a_published_file_stays_for_the_grace_after_the_next_version(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1, 2)
        first = await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        await site.add("day=7/b.parquet", 2, 3)
        for number in range(3):
            await site.change(ratio=5.0 + number)
            assert await site.publish()
            await collect(site)
            site.clock.advance(GRACE_S)
        await site.compact(7, first, "day=7/b.parquet")
        assert await site.publish()
        assert (site.log.rows, site.log.lag, site.log.as_of_s) == (3, "", site.clock.now_s())
        assert rows_read(site) == site.model
        await collect(site)
        site.clock.advance(GRACE_S - 1)
        await collect(site)
        assert is_stored(site, first), "readers may have read the version before"
        await site.change(ratio=4.0)
        assert await site.publish()
        site.clock.advance(GRACE_S)
        await collect(site)
        assert not is_stored(site, first)
        assert rows_read(site) == site.model

    story(tmp_path, tell)


def test_several_tablets_are_published_as_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(site: PublishedSite) -> None:
        outputs = {}
        for day in (7, 8):
            await site.add(f"day={day}/a.parquet", day)
            outputs[day] = await site.compact(day, f"day={day}/a.parquet")
        assert await site.publish()
        before = site.model

        async def walk_with_changes(
            store: TabletStore, table: Table
        ) -> AsyncIterator[Sequence[Tablet]]:
            async for page in walk_tiles(store, table):
                yield page[:1]
                for day, path in outputs.items():  # All tablets are at rest again at the end.
                    await site.add(f"day={day}/b.parquet", day, 10 * day)
                    await site.compact(day, path, f"day={day}/b.parquet")
                for tablet in page[1:]:
                    again = await store.tablet(tablet.id)
                    assert again is not None
                    yield [again]

        await site.change(ratio=4.0)
        with monkeypatch.context() as patch:
            patch.setattr(manifests, "walk_tiles", walk_with_changes)
            assert await site.publish()
        assert site.log.lag == "the table has changed while its tablets were read"
        assert rows_read(site) == before
        assert await site.publish()
        assert rows_read(site) == site.model
        assert len(site.model) == 4

    story(tmp_path, tell)


def test_a_late_version_does_not_follow_one_that_changes_nothing(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        first = await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        await site.add("day=7/b.parquet", 1, 2)
        second = await site.compact(7, first, "day=7/b.parquet")
        late = await read_files(site, site.here)
        await site.add("day=7/c.parquet", 2, 3)
        other = site.coordinator("b")
        assert await site.publish(other)
        assert not await late.publish(site.clock.now_s()), "its files may be deleted"
        assert (site.log.version, site.log.rows) == (1, 1)
        await site.compact(7, second, "day=7/c.parquet")
        assert await site.publish()
        assert rows_read(site) == site.model

    story(tmp_path, tell)


def test_a_file_that_was_replaced_during_the_publication_stays(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        first = await site.compact(7, "day=7/a.parquet")
        late = await read_files(site, site.here)
        begun_s = site.clock.now_s()
        await site.add("day=7/b.parquet", 1, 2)
        second = await site.compact(7, first, "day=7/b.parquet")
        await site.add("day=7/c.parquet", 2, 3)
        await collect(site)
        assert await late.publish(begun_s)
        before = [(1, 7)]
        for number in range(3):
            await site.change(ratio=5.0 + number)
            assert await site.publish()
            site.clock.advance(GRACE_S)
            await collect(site)
        assert rows_read(site) == before
        await site.compact(7, second, "day=7/c.parquet")
        assert await site.publish()
        await collect(site)
        assert is_stored(site, first), "it was stamped before the version that names it"
        assert rows_read(site) == site.model

    story(tmp_path, tell)


def test_a_log_that_another_writer_changed_keeps_every_file(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        first = await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        await site.add("day=7/b.parquet", 1, 2)
        await site.compact(7, first, "day=7/b.parquet")
        names = {"delta": f"{LOG_FOLDER}/{1:020}.json", "iceberg": "metadata/v1.metadata.json"}
        Path(site.location.root, names[FORMAT.get()]).write_text('{"commitInfo":{}}\n')
        other = site.coordinator("b")
        garbage = {entry.path for entry in await site.store.garbage(site.table.id)}
        assert await other.manifests.published(site.table, garbage) == garbage

    story(tmp_path, tell)


def test_switched_off_the_files_of_the_log_go_after_the_grace(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        first = await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        await site.add("day=7/b.parquet", 1, 2)
        await site.compact(7, first, "day=7/b.parquet")
        await site.add("day=7/c.parquet", 2, 3)
        await site.change(publish="off")
        site.clock.advance(10 * GRACE_S)
        await collect(site)
        assert is_stored(site, first), "the log is still there"
        assert await site.publish()
        assert own_log(site.location) is None
        await collect(site)
        assert is_stored(site, first)
        await site.change(ratio=4.0)
        assert await site.publish()
        site.clock.advance(GRACE_S)
        await collect(site)
        assert not is_stored(site, first)

    story(tmp_path, tell)


def test_a_recovered_table_continues_its_log_only_at_rest(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        uri, key = site.table.location, ("id",)
        recovered = await published_site(uri, "t2", ("t1",), key=key, publish=FORMAT.get())
        await recovered.add("day=7/b.parquet", 2, 1)
        assert await recovered.publish()
        assert own_log(site.location) is None, "files of the earlier state may be gone"
        await recovered.compact(7, "day=7/b.parquet")
        assert await recovered.publish()
        assert (recovered.log.table, recovered.log.version) == ("t2", 0)
        assert rows_read(recovered) == recovered.model

    story(tmp_path, tell)


def test_a_log_that_stays_is_bounded(tmp_path: Path) -> None:
    async def tell(site: PublishedSite) -> None:
        await site.add("day=7/a.parquet", 1)
        await site.compact(7, "day=7/a.parquet")
        assert await site.publish()
        before = site.model
        await site.add("day=7/b.parquet", 1, 2)
        for number in range(2 * publication.CHECKPOINT_VERSIONS + 2):
            await site.change(ratio=4.0 + number)
            assert await site.publish()
        if FORMAT.get() == "delta":
            names = [path.name for path in Path(site.location.root, LOG_FOLDER).iterdir()]
            assert sum(name.endswith(".checkpoint.parquet") for name in names) == 2
        else:
            lists = list(Path(site.location.root, "metadata").glob("*-list.avro"))
            assert len(lists) == 1, "all versions have one snapshot"
        assert rows_read(site) == before
        other = site.coordinator("b")
        await site.change(ratio=9.0)
        assert await site.publish(other)
        assert (site.log.rows, site.log.files) == (1, 1)
        assert rows_read(site) == before

    story(tmp_path, tell)
