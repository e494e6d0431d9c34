"""What a commit leaves besides files: the watermark, and the selection of its request."""

from dataclasses import replace

from common.metadata.codec_tablet import DONE, PURGED, SELECTED, SELECTION
from common.metadata.commands import Command, delete, hincrby, hset, sadd, set_string
from common.metadata.keys import TabletKeys
from common.model.tablet import Selection, Tablet, TabletId


def purge_raised(tablet: TabletId, present: bytes | None, dropped: bytes) -> tuple[Command, ...]:
    """Raise the watermark to the highest version dropped; it never goes down."""
    if present is not None and present >= dropped:
        return ()
    keys = TabletKeys.of(tablet)
    return set_string(keys.purge, dropped), hset(keys.record, {PURGED: 1})


def selection_moved(
    tablet: Tablet, selection: Selection, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> tuple[Command, ...]:
    """Replace inputs by outputs in the selection; clear it if the request is done here.

    Done: nothing is left, or one file which is a result. That outputs are more than one
    and no further job is wanted, only the planner can tell (change *complete*).
    """
    keys = TabletKeys.of(tablet.id)
    gone = {*inputs}
    files = (*(path for path in selection.files if path not in gone), *outputs)
    results = (*(path for path in selection.results if path not in gone), *outputs)
    if not files or (len(files) == 1 and files[0] in results):
        return (
            delete(keys.selection),
            sadd(keys.done, selection.request),
            hset(keys.record, {SELECTED: 0}),
            hincrby(keys.record, DONE, 1),
        )
    moved = replace(
        selection, files=files, results=results, completed_jobs=selection.completed_jobs + 1
    )
    return (set_string(keys.selection, SELECTION.pack(moved)),)
