"""What collectors and readers write: stamps of garbage, and pins.

Only a collector that saw an entry stamps it, with a time read afterwards: a time taken
by the committer before its `EXEC` could be older than a pin whose listing still shows
the file.
"""

from dataclasses import replace

from common.metadata.codec_table import GARBAGE, PIN
from common.metadata.commands import Command, Word, hdel, hget, hmget, hset, set_string
from common.metadata.keys import TableKeys
from common.metadata.mutation.requirements import refused_by_table, table_state
from common.metadata.mutation.transaction import Decision, Done, Needs, Seen, Transaction, Write
from common.metadata.readings import PinEntry
from common.metadata.upkeep_changes import ForgetGarbage, KeepGarbage, Pin, StampGarbage, Unpin
from common.model.outcome import Refusal, RefusalCode
from common.model.own_paths import is_own


def stamp_garbage(change: StampGarbage) -> Transaction:
    """Return the transaction that stamps entries. Mark: they are stamped."""
    keys = TableKeys(change.table)
    assert change.paths, change.table

    def decide(seen: Seen) -> Decision:
        fields: dict[Word, Word] = {}
        for path, stored in zip(change.paths, seen["entries"], strict=True):
            if stored is None:
                continue
            entry = GARBAGE.unpack(f"{keys.garbage} {path}", stored, path=path)
            if not entry.stamped_s:
                fields[path] = GARBAGE.pack(replace(entry, stamped_s=seen.now_s))
        effects: tuple[Command, ...] = (hset(keys.garbage, fields),) if fields else ()
        if change.settled:
            effects += (hdel(keys.uncommitted, *change.settled),)
        return Write(effects) if effects else Done()

    needs = Needs((keys.garbage,), {"entries": hmget(keys.garbage, change.paths)})
    return Transaction(needs, decide)


def keep_garbage(change: KeepGarbage) -> Transaction:
    """Return the transaction that stamps an entry back to 0. Mark: it is 0, or gone."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if seen["entry"] is None:
            return Done()
        entry = GARBAGE.unpack(f"{keys.garbage} {change.path}", seen["entry"], path=change.path)
        if not entry.stamped_s:
            return Done()
        fields = {change.path: GARBAGE.pack(replace(entry, stamped_s=0))}
        return Write((hset(keys.garbage, fields),))

    needs = Needs((keys.garbage,), {"entry": hget(keys.garbage, change.path)})
    return Transaction(needs, decide)


def forget_garbage(change: ForgetGarbage) -> Transaction:
    """Return the transaction that removes entries. Mark: they are gone.

    Nothing is watched: only collectors remove entries, and until one does no file of
    that path can be added, so the entry cannot have become another's meanwhile. For a
    while nobody may add a file of that name afterwards, either: another collector that
    stood still between its look and its deletion would delete it.
    """
    keys = TableKeys(change.table)
    assert change.paths, change.table

    def decide(seen: Seen) -> Decision:
        known = zip(change.paths, seen["entries"], strict=True)
        gone = [path for path, entry in known if entry is not None]
        if not gone:
            return Done()
        names = [path for path in gone if change.retired_s > 0 and not is_own(path)]
        retired = (set_string(keys.retired(path), 1, change.retired_s) for path in names)
        return Write((hdel(keys.garbage, *gone), *retired))

    return Transaction(Needs((), {"entries": hmget(keys.garbage, change.paths)}), decide)


def pin(change: Pin) -> Transaction:
    """Return the transaction that begins or renews a pin. Mark: the pin, with this lease.

    A pin whose lease has run out may have been ignored already: renewing it would
    promise files that are gone, so it is refused.
    """
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(keys, seen):
            return refusal
        until_s = seen.now_s + change.lease_s
        entry = PinEntry(pin=change.pin, since_s=seen.now_s, until_s=until_s)
        if seen["pin"] is not None:
            present = PIN.unpack(f"{keys.pins} {change.pin}", seen["pin"], pin=change.pin)
            if present.until_s < seen.now_s:
                return Refusal(RefusalCode.PIN, f"pin {change.pin} has run out, begin a new one")
            entry = replace(present, until_s=until_s)
        elif change.renews:
            # The files that were listed under it may have been deleted since.
            return Refusal(RefusalCode.PIN, f"pin {change.pin} is not known any more")
        # A fail-over must not forget it: the reader goes on to list files.
        return Write((hset(keys.pins, {change.pin: PIN.pack(entry)}),), durable=True)

    needs = table_state(keys) | Needs((keys.pins,), {"pin": hget(keys.pins, change.pin)})
    return Transaction(needs, decide)


def unpin(change: Unpin) -> Transaction:
    """Return the transaction that ends a pin. Mark: it is gone."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        return Write((hdel(keys.pins, change.pin),)) if seen["pin"] is not None else Done()

    return Transaction(Needs((keys.pins,), {"pin": hget(keys.pins, change.pin)}), decide)
