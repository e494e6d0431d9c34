"""What repairs of files share: who holds them, and how they leave a tablet.

A file leaves a tablet here without a commit, so `running` is touched: a reservation that
read the file before, and watches `running` but not `files`, is refused then.
"""

from common.metadata.codec_file import unpack_file
from common.metadata.codec_tablet import unpack_running
from common.metadata.commands import Command, get, hdel, hgetall, hset
from common.metadata.keys import TabletKeys
from common.metadata.mutation import requirements as need
from common.metadata.mutation.transaction import Needs, Seen
from common.model.file import DataFile
from common.model.outcome import Refusal
from common.model.tablet import TabletId

_TOUCH = "touched by a repair"


def held(keys: TabletKeys) -> Needs:
    """Need what may hold files, watched, and `files`."""
    reads = {"running": hgetall(keys.running), "selection": get(keys.selection)}
    return Needs((keys.running, keys.selection, keys.files), reads)


def refused_held(
    tablet: TabletId, keys: TabletKeys, paths: list[str], seen: Seen
) -> Refusal | None:
    """Return why files may not be touched: reserved or selected."""
    selection = need.selection_seen(keys, seen["selection"])
    for attempt, entry in unpack_running(keys.running, seen["running"]).items():
        if taken := sorted(set(paths).intersection(entry.inputs)):
            return Refusal(
                "reserved", f"tablet {tablet}: file {taken[0]} is reserved by attempt {attempt}"
            )
    if selection is not None and (taken := sorted(set(paths).intersection(selection.files))):
        return Refusal(
            "selected",
            f"tablet {tablet}: file {taken[0]} is selected by request {selection.request}",
        )
    return None


def stored_file(keys: TabletKeys, path: str, data: bytes) -> DataFile:
    """Return a file of a `files` hash."""
    return unpack_file(f"{keys.files} {path}", path.encode(), data)


def disturbed(key: str) -> tuple[Command, ...]:
    """Disturb whoever watches a hash, and leave it as it is."""
    return hset(key, {_TOUCH: ""}), hdel(key, _TOUCH)


def touched(keys: TabletKeys) -> tuple[Command, ...]:
    """Disturb whoever watches `running`."""
    return disturbed(keys.running)


def taken_out(keys: TabletKeys, paths: list[str]) -> tuple[Command, ...]:
    """Take files out of a tablet."""
    return (hdel(keys.files, *paths), *touched(keys))
