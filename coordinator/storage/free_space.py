"""Free space of tables' locations, for tables whose setting `keep_free_bytes` asks for it.

A plan must not wait for a storage, so it uses what was measured last, and each reading of a tablet
has an old figure measured anew beside it. A tablet is planned again when its first figure is there.
"""

import asyncio
import shutil
from collections.abc import Callable
from urllib.parse import urlsplit
from urllib.request import url2pathname

from common.bounded_map import BoundedMap
from common.clock import Clock
from common.errors import UnavailableError
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.storage_threads import StorageThreads

FRESH_S = 10.0
"""A figure is measured anew when it is older."""
LOCATIONS_MAX = 10_000


def measured_free_bytes(location: str) -> int | None:
    """Return the free space of a location; None: its storage has no end that it tells, as S3.

    Raises:
        OSError: The folder is not there, or cannot be looked at.
    """
    parts = urlsplit(location)
    return shutil.disk_usage(url2pathname(parts.path)).free if parts.scheme == "file" else None


class FreeSpace:
    """What was measured last, by location."""

    def __init__(
        self, clock: Clock, threads: StorageThreads, ask: Callable[[TabletId], None]
    ) -> None:
        """Know nothing yet; `ask` has a tablet planned again."""
        self._clock = clock
        self._threads = threads
        self._ask = ask
        self._known: BoundedMap[str, tuple[float, int | None]] = BoundedMap(LOCATIONS_MAX)
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def of(self, table: Table) -> int | None:
        """Return the free space of a table's location; None: unknown, or not asked for."""
        known = self._known.get(table.location) if table.settings.keep_free_bytes else None
        return None if known is None else known[1]

    def tablet_read(self, tablet: Tablet, table: Table) -> None:
        """Measure what is old, in a thread. Does not wait."""
        location = table.location
        if not table.settings.keep_free_bytes or location in self._under_way:
            return
        known = self._known.get(location)
        if known is None or self._clock.now_s() - known[0] >= FRESH_S:
            task = asyncio.get_running_loop().create_task(self._measure(location, tablet.id))
            self._under_way[location] = task

    async def _measure(self, location: str, tablet: TabletId) -> None:
        first = self._known.get(location) is None
        try:
            free = await self._threads.run(location, measured_free_bytes, location)
        except (OSError, UnavailableError):
            return  # Whoever rewrites there says what is wrong with it.
        finally:
            self._under_way.pop(location, None)
        self._known.put(location, (self._clock.now_s(), free))
        if first:
            self._ask(tablet)
