"""A table at a place where another one was: drop, create, import, sweep; over a real Redis."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import UnavailableError
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.settings import StoreSettings
from common.storage_threads import StorageThreads
from coordinator.context import ArrowStorage, Generations
from coordinator.core.scans import GarbageRules
from coordinator.storage.garbage_collector import GarbageCollector
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NeveError,
    RefusedError,
)
from neve.recovery.gc import collect_orphans
from neve.recovery.scope import TableScope
from tests.support.gateway import Gateway, serving
from tests.support.redis_server import RedisServer, empty, executable, running

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
LONG_S = 100_000.0
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(executable() is None, reason="no redis-server on this machine"),
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running() as server:
        yield server


def connected(redis: RedisServer) -> TabletStore:
    """Return a client for one gateway: connections belong to the loop that uses them."""
    return connect(StoreSettings(url=redis.url, timeout_s=5.0))


@pytest.fixture
def gateway(redis: RedisServer) -> Iterator[Gateway]:
    with serving(connected(redis)) as served:
        served.ask(empty(redis))
        yield served


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "events"


def create(client: Client, name: str, location: Path) -> None:
    client.create_table(name, str(location), schema=SCHEMA, key=["id"], version_column="v")


def contents(location: Path) -> dict[str, bytes]:
    paths = (path for path in location.rglob("*") if path.is_file())
    return {path.relative_to(location).as_posix(): path.read_bytes() for path in paths}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [1] * len(ids)}, SCHEMA)


def used_and_dropped(gateway: Gateway, client: Client, location: Path) -> dict[str, bytes]:
    """Return the files of a table that was appended to, looked after, and dropped."""
    create(client, "old", location)
    client.append("old", rows(1, 2))
    pq.write_table(rows(3), location / "mine.parquet")
    client.add_files("old", ["mine.parquet"])
    coordinated(gateway, "old")
    client.drop("old")
    return contents(location)


def coordinated(gateway: Gateway, name: str, times: int = 5) -> None:
    """Let a coordinator count a table's generation up, as it does each minute."""

    async def count_up() -> None:
        generations = Generations(gateway.store, lambda *_args, **_fields: None)
        for _ in range(times):
            table = await gateway.store.table_named(name)
            assert table is not None
            await generations.count_up(table)

    gateway.ask(count_up())


def age(location: Path, *, by_s: float = LONG_S) -> None:
    for path in location.rglob("*"):
        os.utime(path, (time.time() - by_s, time.time() - by_s))


def swept_and_collected(gateway: Gateway, name: str) -> int:
    """Run the listing sweep with no grace, and the collector; return what was given to it."""

    async def sweep() -> int:
        table = await gateway.store.table_named(name)
        assert table is not None
        scope = TableScope(
            store=gateway.store, table=table, threads=StorageThreads(2), grace_s=-LONG_S
        )
        given = (await collect_orphans(scope, delete=True)).given
        rules = GarbageRules(grace_s=-LONG_S, clock_skew_max_s=0.0)
        collector = GarbageCollector(
            gateway.store, ArrowStorage(), rules, lambda *_args, **_fields: None
        )
        for _ in range(2):
            await collector.collect(table)
        return given

    return int(gateway.ask(sweep()))  # type: ignore[call-overload]  # whatever it returns


def test_a_new_table_is_writable_at_once_where_an_old_one_was(
    gateway: Gateway, client: Client, location: Path
) -> None:
    used_and_dropped(gateway, client, location)
    create(client, "new", location)
    with gateway.client() as other:
        other.append("new", rows(7))
    coordinated(gateway, "new")
    assert client.fsck("new").findings, "what lies there is told"
    assert client.fsck("new").sound
    assert client.count("new") == 1


@pytest.mark.parametrize("says", [True, False], ids=["footers tell", "only times tell"])
def test_a_sweep_leaves_the_only_copies_of_a_dropped_table(
    gateway: Gateway, client: Client, location: Path, says: bool
) -> None:
    kept = used_and_dropped(gateway, client, location)
    if not says:
        for path in (location / "_neve/append").glob("*.parquet"):
            pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
        kept = contents(location)
    data = {path: content for path, content in kept.items() if path.endswith(".parquet")}
    assert len(data) == 2
    age(location)
    create(client, "new", location)
    orphan = location / "_neve/append/orphan.parquet"
    own = {"neve.table": next(each.id for each in gateway.ask(gateway.store.tables()))}  # type: ignore[attr-defined]  # tables
    pq.write_table(rows(9).replace_schema_metadata(own), orphan)

    assert swept_and_collected(gateway, "new") == 1

    assert not orphan.exists()
    assert data.items() <= contents(location).items()
    found = {finding.code: finding.path for finding in client.fsck("new").findings}
    assert set(found) == {"foreign", "unknown"}
    assert found["unknown"] == "mine.parquet"
    client.drop("new")
    assert client.rebuild(str(location), "old").lost == {}
    assert client.count("old") == 3


def test_an_output_of_a_dropped_table_is_left_by_its_footer(
    gateway: Gateway, client: Client, location: Path
) -> None:
    create(client, "new", location)
    output = location / "_neve/last/job-1-att-1-0.parquet"
    output.parent.mkdir(parents=True)
    footer = {"table": "t-of-before", "tablet": "last", "job": "j", "attempt": "a", "inputs": "[]"}
    said = {f"neve.{name}": value for name, value in (footer | {"format": "1"}).items()}
    pq.write_table(rows(5).replace_schema_metadata(said), output)
    assert swept_and_collected(gateway, "new") == 0
    assert output.exists()
    age(location)
    [finding] = client.fsck("new").findings
    assert (finding.code, finding.path) == ("foreign", "_neve/last/job-1-att-1-0.parquet")
    assert "written for table t-of-before" in finding.sentence


def test_files_of_a_rebuilt_table_s_former_ids_are_its_own(
    gateway: Gateway, client: Client, location: Path
) -> None:
    used_and_dropped(gateway, client, location)
    client.rebuild(str(location), "again")
    # Until a rebuilt table has published its first manifest, nothing of it is swept.
    client.set("again", {"manifest_interval_s": None})
    [described] = gateway.ask(gateway.store.tables())  # type: ignore[misc]  # a list
    (former,) = described.former_ids
    orphan = location / "_neve/append/orphan.parquet"
    pq.write_table(rows(9).replace_schema_metadata({"neve.table": former}), orphan)
    assert swept_and_collected(gateway, "again") == 1
    assert not orphan.exists()
    assert client.count("again") == 3


def test_an_import_is_all_or_nothing_where_outputs_of_a_dropped_table_lie(
    gateway: Gateway, client: Client, location: Path
) -> None:
    before = used_and_dropped(gateway, client, location)
    options = {"key": ["id"], "version_column": "v"}

    dry = client.import_table(str(location), "new", dry_run=True, **options)
    [misfit] = dry.misfit_files
    assert misfit.path.startswith("_neve/append/")
    assert "was written for a table that is gone" in misfit.why
    with pytest.raises(RefusedError, match="neve rebuild"):
        client.import_table(str(location), "new", **options)
    assert contents(location) == before
    assert client.tables() == []

    done = client.import_table(str(location), "new", leave_misfits=True, **options)
    assert (done.added, client.count("new")) == (1, 1)
    assert client.import_table(str(location), "new", **options).already == 1


class Failing:
    """Lets so many changes through, and is away then."""

    def __init__(self, store: TabletStore, passes: int) -> None:
        self.passes = passes
        self._store = store

    async def apply(self, change: object) -> object:
        self.passes -= 1
        if self.passes < 0:
            raise UnavailableError("the store is away")
        return await self._store.apply(change)  # type: ignore[arg-type]  # a change

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_an_import_that_breaks_off_anywhere_goes_on(
    gateway: Gateway, client: Client, location: Path, redis: RedisServer
) -> None:
    """Where a dropped table was: its generation and mark are there, its files too."""
    create(client, "old", location)
    coordinated(gateway, "old")
    client.drop("old")
    for number in range(6):
        pq.write_table(rows(number), location / f"{number}.parquet")
    options = {"key": ["id"], "version_column": "v"}
    for passes in range(4):
        failing = Failing(connected(redis), passes)
        with serving(failing) as other, other.client() as weak:  # type: ignore[arg-type]  # a store
            try:
                weak.import_table(str(location), "lake", **options)
            except NeveError:
                assert failing.passes < 0
    done = client.import_table(str(location), "lake", readers_use_manifest=True, **options)
    assert (done.added + done.already, done.state) == (6, "live")
    assert client.count("lake") == 6
    client.append("lake", rows(7))
    assert client.fsck("lake").sound


def test_a_location_is_signed_by_its_table(
    gateway: Gateway, client: Client, location: Path, redis: RedisServer
) -> None:
    create(client, "one", location)
    [table] = gateway.ask(gateway.store.tables())  # type: ignore[misc]  # a list
    store = gateway.ask(gateway.store.store_id())
    mark = location / "_neve/store"
    assert mark.read_text() == f"{store} {table.id}\n"
    mark.write_text(f"{store} another-table\n")
    with serving(connected(redis)) as fresh, fresh.client() as other:
        with pytest.raises(RefusedError, match="belongs to another table of this service"):
            other.append("one", rows(1))
        report = other.fsck("one", repair=True)
        assert [finding.code for finding in report.findings] == ["owner"]
        described = json.loads((location / "_neve/table.json").read_text())
        described["table"]["id"] = "another-table"
        (location / "_neve/table.json").write_text(json.dumps(described))
        assert other.fsck("one", adopt=True).sound
    described = json.loads((location / "_neve/table.json").read_text())
    assert described["table"]["id"] == table.id, "a rebuild would leave out what this one wrote"
    assert mark.read_text() == f"{store} {table.id}\n"
    mark.write_text(f"{store}\n")
    assert client.fsck("one").sound, "as an earlier release has left it"


def test_storages_that_only_look_different_are_found_out_by_the_mark(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    create(client, "one", tmp_path / "one")
    (tmp_path / "two/_neve").mkdir(parents=True)
    mark = (tmp_path / "one/_neve/store").read_text()
    (tmp_path / "two/_neve/store").write_text(mark)
    for place in ("two", "two/below"):
        with pytest.raises(RefusedError, match=r"two tables may not share files"):
            create(client, "two", tmp_path / place)
    client.drop("one")
    create(client, "two", tmp_path / "two")


def test_tables_that_came_to_share_files_are_told_by_a_check(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    create(client, "one", tmp_path / "one")
    create(client, "two", tmp_path / "two")
    (tmp_path / "two").rename(tmp_path / "gone")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    codes = {finding.code for finding in client.fsck("one").findings}
    assert codes == {"shared"}
    assert {finding.code for finding in client.fsck("two").findings} >= {"owner", "shared"}
    with pytest.raises(RefusedError, match="two tables may not share files"):
        client.gc("one", delete=True)


def test_other_names_of_a_used_location_are_refused(client: Client, tmp_path: Path) -> None:
    create(client, "one", tmp_path / "real/one")
    (tmp_path / "link").symlink_to("real")
    for place in (
        "link/one",
        "link/one/below",
        "link",
        f"/proc/self/root{tmp_path}/real/one",
        "link//one/./",
    ):
        with pytest.raises((RefusedError, CallerError), match=r"share files|is in or around /proc"):
            create(client, "two", tmp_path / place)
    create(client, "two", tmp_path / "link/two")
    assert client.describe("two").location == (tmp_path / "real/two").as_uri()
    pq.write_table(rows(1), tmp_path / "real/two/a.parquet")
    pq.write_table(rows(2), tmp_path / "real/two/b.parquet")
    linked, real = (tmp_path / name for name in ("link/two/a.parquet", "real/two/b.parquet"))
    client.add_files("two", [str(linked), real.as_uri()])
    assert client.count("two") == 2
    with pytest.raises(CallerError, match="not in the table's location"):
        client.add_files("two", [str(tmp_path / "link/one/a.parquet")])


def test_a_name_that_no_url_holds_can_be_dropped_by_its_id(
    gateway: Gateway, client: Client, redis: RedisServer, location: Path
) -> None:
    create(client, "one", location)
    [table] = gateway.ask(gateway.store.tables())  # type: ignore[misc]  # a list

    async def rename() -> None:
        keyspace = RedisKeyspace(StoreSettings(url=redis.url, timeout_s=5.0))
        [[entry]] = await keyspace.fetch([[("HGET", "neve:tables", "one")]])
        await keyspace.fetch([[("HDEL", "neve:tables", "one")]])
        await keyspace.fetch([[("HSET", "neve:tables", "../a b", entry)]])
        await keyspace.close()

    gateway.ask(rename())
    client.drop(table.id)
    assert client.tables() == []
