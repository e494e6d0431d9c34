"""Repairs of files: orphans to garbage, lost ones and doubles out of a tablet, used ones kept."""

from common.metadata.codec_tablet import unpack_running
from common.metadata.commands import get, hdel, hgetall, hmget
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation import requirements as need
from common.metadata.mutation.effects import changed, file_counts, into_garbage
from common.metadata.mutation.repair_parts import (
    disturbed,
    held,
    refused_held,
    stored_file,
    taken_out,
)
from common.metadata.mutation.transaction import Decision, Done, Needs, Seen, Transaction, Write
from common.metadata.repair_changes import DiscardFiles, DropDouble, ForgetFiles, RescueFile
from common.model.outcome import Refusal
from common.model.tablet import Bounds


def discard_files(change: DiscardFiles) -> Transaction:
    """Return the transaction that hands orphans to the collector. Mark: the entries."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    paths = [*change.files]
    assert paths, change.tablet
    reads = {
        "bounds": get(keys.bounds),
        "running": hgetall(keys.running),
        "files": hmget(keys.files, paths),
        "garbage": hmget(table.garbage, paths),
    }
    needs = need.table_state(table) | Needs((keys.bounds, keys.files, keys.running), reads)

    def decide(seen: Seen) -> Decision:
        bounds = need.bounds_seen(keys, seen["bounds"])
        if refusal := need.refused_by_table(table, seen):
            return refusal
        if bounds is None:
            return need.gone(change.tablet)
        if refusal := _refused_orphans(change, bounds, keys, seen):
            return refusal
        known = zip(paths, seen["garbage"], strict=True)
        fresh = {path: change.files[path] for path, entry in known if entry is None}
        if not fresh:
            return Done()
        # Whoever is about to add one of them watches `files`, not `garbage`, which never rests.
        return Write((*into_garbage(table, change.tablet.end, fresh), *disturbed(keys.files)))

    return Transaction(needs, decide)


def _refused_orphans(
    change: DiscardFiles, bounds: Bounds, keys: TabletKeys, seen: Seen
) -> Refusal | None:
    running = unpack_running(keys.running, seen["running"]).values()
    taken = {path for entry in running for path in (*entry.inputs, *entry.output_paths)}
    for (path, key), stored in zip(change.files.items(), seen["files"], strict=True):
        if stored is not None or path in taken:
            return Refusal("used", f"tablet {change.tablet}: file {path} is in use")
        if key is not None and bounds.partition is None and not bounds.holds(key, key):
            return Refusal("bounds", f"tablet {change.tablet}: file {path} belongs elsewhere")
    return None


def forget_files(change: ForgetFiles) -> Transaction:
    """Return the transaction that takes lost files out. Mark: they are not in files."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    needs = need.table_state(table) | held(keys) | need.some_files(keys, change.paths)

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        stored = zip(change.paths, seen["some"], strict=True)
        went = [stored_file(keys, path, data) for path, data in stored if data is not None]
        if not went:
            return Done()
        paths = [file.path for file in went]
        if refusal := refused_held(change.tablet, keys, paths, seen):
            return refusal
        counts = file_counts((), went)
        return Write((*taken_out(keys, paths), *changed(change.tablet, "forget", counts=counts)))

    return Transaction(needs, decide)


def drop_double(change: DropDouble) -> Transaction:
    """Return the transaction that takes a file out of one of two tablets. Mark: it is not there."""
    keys, holder = TabletKeys.of(change.tablet), TabletKeys.of(change.holder)
    assert change.tablet != change.holder, change
    table = TableKeys(change.tablet.table)
    reads = {
        "holder/bounds": get(holder.bounds),
        "holder/files": hmget(holder.files, [change.path]),
    }
    needs = need.table_state(table) | held(keys) | need.some_files(keys, (change.path,))
    needs |= Needs((holder.bounds, holder.files), reads)

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        if seen["some"][0] is None:
            return Done()
        file = stored_file(keys, change.path, seen["some"][0])
        bounds = need.bounds_seen(holder, seen["holder/bounds"])
        if bounds is None or seen["holder/files"][0] is None:
            return Refusal("gone", f"tablet {change.holder} does not hold file {change.path}")
        low, high = file.key_min, file.key_max
        if low is None or high is None or not bounds.holds(low, high):
            return Refusal("bounds", f"tablet {change.holder}: {change.path} has keys outside it")
        if refusal := refused_held(change.tablet, keys, [change.path], seen):
            return refusal
        counts = file_counts((), [file])
        effects = changed(change.tablet, "double", counts=counts)
        return Write((*taken_out(keys, [change.path]), *effects))

    return Transaction(needs, decide)


def rescue_file(change: RescueFile) -> Transaction:
    """Return the transaction that takes a file in use out of garbage. Mark: no entry."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"entry": hmget(table.garbage, [change.path])}
    needs = Needs((keys.files, table.garbage), reads) | need.some_files(keys, (change.path,))

    def decide(seen: Seen) -> Decision:
        if seen["entry"][0] is None:
            return Done()
        if seen["some"][0] is None:
            return Refusal("gone", f"tablet {change.tablet}: file {change.path} is not in use")
        return Write((hdel(table.garbage, change.path),))

    return Transaction(needs, decide)
