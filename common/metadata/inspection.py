"""Reads of `neve fsck`: all keys of a tablet, also those that its record says are empty."""

from collections.abc import Sequence

from common.errors import MetadataError
from common.metadata.codec_tablet import (
    BYTES,
    DONE,
    FILES,
    OPERATION_FLAG,
    PURGED,
    RUNNING,
    SELECTED,
    WAITING,
)
from common.metadata.commands import Command, Reply, get, hget
from common.metadata.inspected import Inspected
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation.repair_marks import true_counts
from common.metadata.mutation.request_parts import has_ended
from common.metadata.mutation.requirements import tablet_seen, whole_tablet
from common.metadata.mutation.transaction import Seen
from common.metadata.reading import Fetch
from common.model.tablet import Tablet, TabletId

TABLETS_PER_TRIP = 64
_WORDS = {
    FILES: "files",
    BYTES: "bytes",
    RUNNING: "running attempts",
    WAITING: "waiting requests",
    SELECTED: "selections",
    OPERATION_FLAG: "operations",
    DONE: "requests done",
    PURGED: "watermarks",
}


async def inspect_tablets(fetch: Fetch, tablets: Sequence[TabletId]) -> list[Inspected]:
    """Return what is found under the keys of tablets, each at one moment."""
    found: list[Inspected] = []
    for first in range(0, len(tablets), TABLETS_PER_TRIP):
        some = tablets[first : first + TABLETS_PER_TRIP]
        needs = [whole_tablet(TabletKeys.of(tablet), ()) for tablet in some]
        replies = await fetch([[*need.reads.values()] for need in needs])
        for tablet, need, reply in zip(some, needs, replies, strict=True):
            seen = Seen(dict(zip(need.reads, reply, strict=True)), 0.0)
            found.append(await _inspected(fetch, tablet, seen))
    return found


async def _inspected(fetch: Fetch, id_: TabletId, seen: Seen) -> Inspected:
    keys = TabletKeys.of(id_)
    try:
        tablet = tablet_seen(id_, keys, seen)
        counts = true_counts(keys, seen)
    except (MetadataError, ValueError, UnicodeDecodeError) as error:
        return Inspected(id=id_, broken=str(error))
    if tablet is None:
        return Inspected(id=id_)
    record = seen["record"]
    wrong = {
        _WORDS[name]: (int(record.get(name.encode(), b"0")), count)
        for name, count in counts.items()
        if record.get(name.encode(), b"0") != b"%d" % count
    }
    outcomes, ended = await _behind(fetch, tablet)
    return Inspected(id=id_, tablet=tablet, miscounted=wrong, outcomes=outcomes, ended=ended)


async def _behind(fetch: Fetch, tablet: Tablet) -> tuple[frozenset[str], frozenset[str]]:
    """Return which attempts have an outcome, and which requests have ended."""
    keys = TableKeys(tablet.id.table)
    attempts = sorted(tablet.running)
    requests = {*tablet.waiting, *tablet.done}
    if tablet.selection is not None:
        requests.add(tablet.selection.request)
    names = sorted(requests)
    commands: list[Command] = [get(keys.outcome(attempt)) for attempt in attempts]
    commands += [hget(keys.request(request), "state") for request in names]
    if not commands:
        return frozenset(), frozenset()
    replies: list[Reply] = [each[0] for each in await fetch([[each] for each in commands])]
    ends, states = replies[: len(attempts)], replies[len(attempts) :]
    return (
        frozenset(a for a, end in zip(attempts, ends, strict=True) if end is not None),
        frozenset(r for r, state in zip(names, states, strict=True) if has_ended(state)),
    )
