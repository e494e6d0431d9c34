"""Every transaction has one slot, so that tables may lie on the nodes of a Redis Cluster.

A table's keys have one slot, each key of the whole store another one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import pytest

from common.metadata.changes import ClaimCoordination, DropTable, RestoreName
from common.metadata.keys import COORDINATOR, FULL, TABLES, TableKeys
from common.metadata.keyspace import Command, KeyspaceSession, Reply, delete, hdel
from common.metadata.store import TabletStore
from common.model.outcome import AttemptEnd
from tests.support.store_harness import Harness, applied, commit, file, release, reserve

pytestmark = pytest.mark.anyio

TABLE = "table"
KEY = re.compile(r"neve:(\{)?[^ ]+")
Slots = frozenset[str]


def slots(words: Iterable[object]) -> Slots:
    """Return what the keys among some words belong to: a table, or the store by their name."""
    found = (KEY.fullmatch(word) for word in words if isinstance(word, str))
    return frozenset(TABLE if key[1] else key[0] for key in found if key is not None)


class SlotsSession:
    """A session that notes which slots it touches."""

    def __init__(self, inner: KeyspaceSession, seen: dict[str, set[Slots]]) -> None:
        self._inner = inner
        self._seen = seen
        self._read: Slots = frozenset()
        self._watched: Slots = frozenset()

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        self._watched |= slots(watch)
        self._read |= slots(word for command in reads for word in command) - {FULL}
        self._seen["watched"].add(self._watched)
        self._seen["read"].add(self._watched | self._read)
        return await self._inner.look(watch, reads)

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        written = slots(word for command in effects for word in command)
        self._seen["written"].add(written)
        self._seen["watched and written"].add(written | self._watched)
        return await self._inner.execute(effects, durable=durable)


class SlotsKeyspace:
    """A keyspace whose sessions note their slots; all else is the keyspace's own."""

    def __init__(self, harness: Harness) -> None:
        self.seen: dict[str, set[Slots]] = defaultdict(set)
        self._inner = harness.keyspace

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[SlotsSession]:
        async with self._inner.session() as session:
            yield SlotsSession(session, self.seen)


async def life_of_a_table(harness: Harness, store: TabletStore) -> None:
    """Make every kind of change that a note about slots names."""
    harness.store = store
    applied(await store.apply(ClaimCoordination(coordinator="c1")))
    tablet = await harness.tablet_with("a", "b")
    applied(await store.apply(reserve(tablet, "t1", "a")))
    lost = release(tablet, "t1", AttemptEnd.LOST, coordinator="c1")
    applied(await store.apply(lost))
    applied(await store.apply(reserve(tablet, "t2", "a", "b")))
    applied(await store.apply(commit(tablet, "t2")))
    applied(await harness.add(tablet, file("c")))
    # It has garbage, so that its drop ends later; that of an empty table ends at once.
    for table in (tablet.table, (await harness.table()).id):
        applied(await store.apply(DropTable(table=table)))
    # One loses its name, another one its keys.
    nameless, keyless = await harness.table(), await harness.table()
    await harness.write(hdel(TABLES, nameless.name))
    applied(await store.apply(RestoreName(table=nameless.id)))
    await harness.write(delete(*TableKeys(keyless.id).every))
    applied(await store.apply(DropTable(table=keyless.id, unfinished=True)))


async def test_no_transaction_watches_or_writes_two_slots(harness: Harness) -> None:
    keyspace = SlotsKeyspace(harness)
    store = harness.another(keyspace)  # type: ignore[arg-type]  # the rest is the keyspace's own
    await life_of_a_table(harness, store)

    seen = {
        kind: {each for each in found if len(each) > 1} for kind, found in keyspace.seen.items()
    }
    assert seen == {
        "written": set(),
        "watched": set(),
        "watched and written": set(),
        # A creation glances at the names; a release for silence asks who leads.
        "read": {frozenset({TABLE, TABLES}), frozenset({TABLE, COORDINATOR})},
    }
