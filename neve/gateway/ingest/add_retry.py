"""What an add does while tablets are split and merged: routes again, cuts anew, waits.

bounds, tablet   a split or merge has ended since the tablets were read: route again
crosses          a split has begun: rows are cut there, too; a user's file is refused
operation        a split or merge is just ending: wait a moment, then route again
look-too-old     a collector may have deleted a file since it was seen: look again
replaced         of an append: a sweep took its file for one that nobody adds: write anew
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
"""The end of a split or merge follows its last step at once, if its driver lives."""


@dataclass(frozen=True, slots=True)
class AppendTarget:
    """Where rows with keys in `(after, up_to]` go: `end` names the tablet."""

    after: bytes | None
    up_to: bytes
    end: bytes


class AddRetry:
    """How often one add may begin anew."""

    def __init__(self) -> None:
        """Begin."""
        self._tries = 0
        self._waits = 0
        self.reason = KEEPS_CHANGING
        """Why it begins anew, for whoever is told in the end."""

    async def may_retry(self, outcome: Outcome, *, writes: bool) -> bool:
        """Return whether to route the files again, after a wait if that helps.

        Args:
            outcome: Of the add.
            writes: Whether the files are written for this call, so that it can write others.
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
        """Count a try that was not even made: it took too long."""
        self._tries += 1
        self.reason = TOO_SLOW

    @property
    def exhausted(self) -> bool:
        """Whether the tries are used up: the caller must be told."""
        return self._tries >= TRIES_MAX


async def append_targets(
    services: Services, table: Table, beside: Iterable[bytes]
) -> list[AppendTarget]:
    """Return where the rows of a table with ranges go, ascending.

    Args:
        services: Ports.
        table: Without partitions.
        beside: Ends of tablets that may be about to be split: rows are cut there, too, as
            in those that were seen being split a moment ago.

    Raises:
        UnknownTableError: The table was dropped meanwhile.
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
