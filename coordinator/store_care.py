"""Looks at the store itself every few seconds: keeps its reserve, knows what is wrong with it."""

import asyncio

from common.errors import MetadataError, UnavailableError
from common.metadata.ports import TabletStore
from common.metadata.store_values import StoreHealth
from coordinator.ports import Log

INTERVAL_S = 5.0


class StoreCare:
    """What the store said of itself last; nothing is wrong with it before the first look."""

    def __init__(self, store: TabletStore, log: Log) -> None:
        """Look at `store`; `log` hears each warning when it comes up."""
        self.health = StoreHealth()
        self._store = store
        self._log = log

    async def look(self) -> None:
        """Keep the reserve, then ask once."""
        try:
            await self._store.keep_reserve()
            health = await self._store.health()
        except (MetadataError, UnavailableError) as error:
            self._log("store not looked at", cause=str(error))
            return
        if health.warnings and not self.health.warnings:
            self._log("store needs care", warnings=[*health.warnings])
        self.health = health

    async def run_forever(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)
