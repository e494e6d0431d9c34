"""Retries of an add, by the code of the store's refusal.

bounds, tablet   a split or merge has ended since the tablets were read: route again
crosses          a split has begun: cut the rows there as well; a user's file is rejected
operation        a split or merge is about to end: wait a moment, then route again
look-too-old     a collector may have deleted a file since its inspection: inspect again
replaced         a sweep has discarded the file of an append as an orphan: write it again
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from common.metadata.changes import Outcome, Refused
from common.model.outcome import RefusalCode
from common.model.table import Table
from common.model.tablet import OperationKind, TabletId
from neve.gateway.ingest.routing import no_tablets_error
from neve.gateway.services import Services

TRIES_MAX = 4
AGAIN = frozenset({RefusalCode.BOUNDS, RefusalCode.TABLET, RefusalCode.LOOK_TOO_OLD})
"""A tablet was split or merged between routing and writing, or too much time has passed."""
ENDS = RefusalCode.OPERATION
WRITTEN_AGAIN = frozenset({RefusalCode.CROSSES, RefusalCode.REPLACED})
SLOW = frozenset({RefusalCode.LOOK_TOO_OLD, RefusalCode.REPLACED})
KEEPS_CHANGING = "its tablets keep changing"
TOO_SLOW = "its storage takes longer than files that nobody knows are kept"
WAITS_MAX = 40
WAIT_S = 0.05
"""Pause for the end of a split or merge, which follows its last step at once."""


@dataclass(frozen=True, slots=True)
class AppendTarget:
    """The target of rows with keys in `(after, up_to]`: the tablet with end `end`."""

    after: bytes | None
    up_to: bytes
    end: bytes


class AddRetry:
    """Counts the retries of one add, and limits them."""

    def __init__(self) -> None:
        """Start without tries."""
        self._tries = 0
        self._waits = 0
        self.reason = KEEPS_CHANGING
        """Reason of the last retry, for the final error message."""

    async def may_retry(self, outcome: Outcome, *, writes: bool) -> bool:
        """Return whether to route the files again, after a wait if that helps.

        Args:
            outcome: Outcome of the add.
            writes: Whether this call writes its files, so that it can write new ones.
        """
        if not isinstance(outcome, Refused):
            return False
        if outcome.code == ENDS:
            self._waits += 1
            await asyncio.sleep(WAIT_S)
            return self._waits <= WAITS_MAX
        self._tries += 1
        self.reason = TOO_SLOW if outcome.code in SLOW else KEEPS_CHANGING
        return outcome.code in AGAIN or (writes and outcome.code in WRITTEN_AGAIN)

    def count(self) -> None:
        """Count a try that was given up before its change, because it took too long."""
        self._tries += 1
        self.reason = TOO_SLOW

    @property
    def exhausted(self) -> bool:
        """Whether all tries are used up."""
        return self._tries >= TRIES_MAX


async def append_targets(
    services: Services, table: Table, beside: Iterable[bytes]
) -> list[AppendTarget]:
    """Return the targets of the rows of an unpartitioned table, ascending.

    Args:
        services: Ports and settings.
        table: A table without partitions.
        beside: Ends of further tablets that may be being split. Rows are cut at the split key of
            these tablets and of those that were recently being split.

    Raises:
        UnknownTableError: The table was dropped in the meantime.
    """
    ids = await _every_id(services, table)
    inner: dict[bytes, bytes] = {}
    looked = tuple(dict.fromkeys((*beside, *services.split_hints.of(table.id))))
    for tablet in await services.store.tablets([TabletId(table.id, end) for end in looked]):
        operation = None if tablet is None else tablet.operation
        if tablet is None or operation is None or operation.kind is OperationKind.MERGE:
            continue
        if operation.at is not None:
            inner[tablet.id.end] = operation.at
    services.split_hints.seen(table.id, looked, inner)
    places: list[AppendTarget] = []
    for tablet_id in ids:
        for up_to in (inner.get(tablet_id.end), tablet_id.end):
            after = places[-1].up_to if places else None
            if up_to is not None and (after is None or after < up_to):
                places.append(AppendTarget(after, up_to, tablet_id.end))
    return places


async def _every_id(services: Services, table: Table) -> list[TabletId]:
    ids: list[TabletId] = []
    while page := await services.store.tablet_ids(table.id, ids[-1].end if ids else None):
        ids += page
    if not ids:
        raise no_tablets_error(table)
    return ids
