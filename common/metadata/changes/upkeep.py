"""Upkeep: analyses, garbage, pins, manifests, generations; limits, scales, series, who leads."""

from dataclasses import dataclass, replace
from math import inf

from common.metadata.changes.protocol import (
    Applied,
    Change,
    Decision,
    Guarded,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
    buffer_segments,
    chunk_head,
    claim_seen,
    refused_by_table,
    segments_closed,
    table_changed,
    table_seen,
    table_state,
    tablet_gone,
    transaction_of,
    whole_table,
)
from common.metadata.changes.tables import TRIGGER_STEP_S, may_fill
from common.metadata.codec import table as codec_table
from common.metadata.codec.layout import pack, whole_number
from common.metadata.codec.table import GARBAGE, LOSS, MANIFEST, PIN
from common.metadata.codec.tablet import (
    ANALYSIS,
    ANALYSIS_GROUP,
    ANSWERED,
    CHUNK_HEAD,
    SELECTOR,
    SELECTOR_DUE,
    SETTLED,
    TABLET_TRIGGERED,
    VERSION,
    pack_chunk_head,
    pack_chunk_note,
    unpack_chunk_head,
)
from common.metadata.keys import (
    COORDINATOR,
    LIMITS,
    SCALES,
    SERIES,
    STORE,
    TableKeys,
    TabletKeys,
    retired_name,
)
from common.metadata.keyspace import (
    Command,
    Word,
    delete,
    get,
    hdel,
    hget,
    hgetall,
    hlen,
    hmget,
    hset,
    incr,
    set_string,
)
from common.metadata.store_values import AcceptedLoss, CoordinatorClaim, Manifest, PinEntry
from common.model.group import LimitScope
from common.model.location_identity import is_service_path
from common.model.outcome import Refusal, RefusalCode
from common.model.tablet import Analysis, ChunkNotes, TabletId

# ----------------------------------------------------------------------------------------- Analyses


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnalysis(Change):
    """Store the planner's verdict on a tablet, if the tablet has not changed since.

    It watches nothing and leaves the record's version: it is a note, not a decision.
    """

    tablet: TabletId
    analysis: Analysis
    version: int
    """The record's version that was planned; -1: keep the analysis, store only the rest."""
    settings_version: int
    due_at_s: float | None = None
    """When to plan again even if nothing changes; stored with the analysis."""
    settled: tuple[tuple[float, bytes], ...] | None = None
    """New marks of settled versions; None: keep them."""
    selector_hash: str | None = None
    """Files and settings of the selector's last call; None: keep them."""
    selector_due_s: float | None = None
    """When to call the selector again even if nothing changes; stored with `selector_hash`."""
    answered_s: float | None = None
    """The trigger that the tablet has fully answered (`Table.triggered_at_s`); None: keep it.
    Stored with the analysis."""
    analysis_group: str | None = None
    """Group whose compactors should count the tablet's live bytes; None: keep it."""
    triggers: bool = False
    """Whether to open a trigger for the tablet alone, later than all that it has answered."""
    chunks: ChunkNotes | None = None
    """New notes on chunks, stored even if the tablet has changed since; None: keep them."""


@transaction_of.register
def write_analysis(change: WriteAnalysis) -> Transaction:
    """Return the transaction that notes an analysis, without a change entry or a new version.

    Table and bounds are watched only so that no key remains in a dropped table.
    """
    table = TableKeys(change.tablet.table)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen) or _refused_note(change, seen):
            return refusal
        effects = _note_effects(change, seen)
        return Write(effects, durable=_is_wish(change)) if effects else NoWrite()

    return Transaction(table_state(table) | _note_needs(change), decide)


def _is_wish(change: WriteAnalysis) -> bool:
    """Return whether other work depends on a note; other notes only save a later read."""
    return change.triggers or change.analysis_group is not None


def _note_needs(change: WriteAnalysis) -> Needs:
    keys, text = TabletKeys.of(change.tablet), change.tablet.text
    reads = {f"bounds {text}": get(keys.bounds), f"version {text}": hget(keys.record, VERSION)}
    if change.triggers:
        reads[f"answered {text}"] = hget(keys.record, ANSWERED)
    if change.chunks is not None:
        reads |= chunk_head(keys, f"chunks {text}").reads
    return Needs((keys.bounds,), reads)


def _refused_note(change: WriteAnalysis, seen: Seen) -> Refusal | None:
    if seen[f"bounds {change.tablet.text}"] is None:
        return tablet_gone(change.tablet)
    version = _version_seen(change, seen)
    if change.version not in {version, -1} and change.chunks is None:
        return Refusal(RefusalCode.VERSION, f"tablet {change.tablet} is now at version {version}")
    return None


def _version_seen(change: WriteAnalysis, seen: Seen) -> int:
    stored = seen[f"version {change.tablet.text}"]
    return whole_number(TabletKeys.of(change.tablet).record, stored)


def _chunk_effects(change: WriteAnalysis, seen: Seen) -> tuple[Command, ...]:
    """Return the effects that store notes on chunks; notes of another epoch or policy are left."""
    if change.chunks is None:
        return ()
    key, head, notes = TabletKeys.of(change.tablet).chunks, change.chunks.head, change.chunks.notes
    stored = unpack_chunk_head(key, seen[f"chunks {change.tablet.text}"])
    begins_at = change.chunks.begins_at
    if begins_at is not None:
        if _version_seen(change, seen) != begins_at:
            head, notes = replace(head, files=None), {}
    elif stored is None or (stored.epoch, stored.policy) != (head.epoch, head.policy):
        return ()
    fields: list[tuple[Word, Word]] = [
        (str(number), pack_chunk_note(note)) for number, note in notes.items()
    ]
    if head != stored:
        fields.append((CHUNK_HEAD, pack_chunk_head(head)))
    return (
        *(() if begins_at is None else (delete(key),)),
        *(
            hset(key, dict(fields[first : first + CHUNKS_PER_WRITE]))
            for first in range(0, len(fields), CHUNKS_PER_WRITE)
        ),
    )


CHUNKS_PER_WRITE = 10_000
"""Notes in one command of a change."""


def _note_effects(change: WriteAnalysis, seen: Seen) -> tuple[Command, ...]:
    is_current = change.version in {_version_seen(change, seen), -1}
    record = _record_effects(change, seen) if is_current else ()
    return (*record, *_chunk_effects(change, seen))


def _record_effects(change: WriteAnalysis, seen: Seen) -> tuple[Command, ...]:
    fields = _notes(change)
    if change.triggers:
        answered = seen[f"answered {change.tablet.text}"]
        answered_s = 0.0 if answered is None else float(answered)
        fields[TABLET_TRIGGERED] = repr(max(seen.now_s, answered_s + TRIGGER_STEP_S))
    return (hset(TabletKeys.of(change.tablet).record, fields),) if fields else ()


def _notes(change: WriteAnalysis) -> dict[str, Word]:
    fields: dict[str, Word] = {}
    if change.version >= 0:
        verdict = [change.analysis.value, change.version, change.settings_version]
        fields[ANALYSIS] = pack(verdict if change.due_at_s is None else [*verdict, change.due_at_s])
        if change.answered_s is not None:
            fields[ANSWERED] = repr(change.answered_s)
    if change.settled is not None:
        fields[SETTLED] = pack([[at_s, version] for at_s, version in change.settled])
    if change.analysis_group is not None:
        fields[ANALYSIS_GROUP] = change.analysis_group
    if change.selector_hash is not None:
        due_s = change.selector_due_s
        fields[SELECTOR], fields[SELECTOR_DUE] = (
            change.selector_hash,
            "" if due_s is None else due_s,
        )
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnalyses(Change):
    """Store notes of many tablets of one table; refused notes are skipped."""

    table: str
    notes: tuple[WriteAnalysis, ...]


@transaction_of.register
def write_analyses(change: WriteAnalyses) -> Transaction:
    """Return the transaction that notes many analyses of one table.

    Each note follows the rules of `write_analysis`; refused notes are skipped.
    """
    table = TableKeys(change.table)
    assert all(note.tablet.table == change.table for note in change.notes), change.table

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        effects = tuple(
            effect
            for note in change.notes
            if _refused_note(note, seen) is None
            for effect in _note_effects(note, seen)
        )
        return Write(effects, durable=any(map(_is_wish, change.notes))) if effects else NoWrite()

    needed = [_note_needs(note) for note in change.notes]
    watch = tuple(key for needs in needed for key in needs.watch)
    reads = {name: read for needs in needed for name, read in needs.reads.items()}
    return Transaction(table_state(table) | Needs(watch, reads), decide)


# ---- Garbage and pins
#
# Only a collector that has seen an entry stamps it, with a time that it reads afterwards. A time
# read by the committer before its `EXEC` could be older than a pin whose listing includes the file.


@dataclass(frozen=True, slots=True, kw_only=True)
class StampGarbage(Guarded):
    """Stamp entries with Redis `TIME` when a collector first sees them."""

    table: str
    paths: tuple[str, ...]
    settled: tuple[str, ...] = ()
    """Uncommitted attempts whose inputs are in storage: their outputs may be deleted."""


@transaction_of.register
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
        return Write(effects) if effects else NoWrite()

    needs = Needs((keys.garbage,), {"entries": hmget(keys.garbage, change.paths)})
    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepGarbage(Change):
    """Reset the stamp of an entry to 0, because the file is still in use."""

    table: str
    path: str


@transaction_of.register
def keep_garbage(change: KeepGarbage) -> Transaction:
    """Return the transaction that resets an entry's stamp to 0. Mark: it is 0, or gone."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if seen["entry"] is None:
            return NoWrite()
        entry = GARBAGE.unpack(f"{keys.garbage} {change.path}", seen["entry"], path=change.path)
        if not entry.stamped_s:
            return NoWrite()
        fields = {change.path: GARBAGE.pack(replace(entry, stamped_s=0))}
        return Write((hset(keys.garbage, fields),))

    needs = Needs((keys.garbage,), {"entry": hget(keys.garbage, change.path)})
    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetGarbage(Change):
    """Remove entries after their files were deleted."""

    table: str
    paths: tuple[str, ...]
    location: str = ""
    """Location of the table; required to retire names."""
    retired_s: float = 0.0
    """Time for which no table may add a user's file under one of these names; 0: none."""


@transaction_of.register
def forget_garbage(change: ForgetGarbage) -> Transaction:
    """Return the first transaction that removes entries. Mark: they are gone.

    Nothing is watched. Only collectors remove entries, and until then no file with that path can
    be added, so the entry cannot belong to another file. For a while afterwards no table may add
    a file with that name either: a stalled collector would delete it. Names have a slot of their
    own, so they are retired first, and replicas have the mark before the entry is removed.
    """
    keys = TableKeys(change.table)
    assert change.paths, change.table
    assert change.location or not change.retired_s, change.table
    entries = Needs((), {"entries": hmget(keys.garbage, change.paths)})

    def present(seen: Seen) -> list[str]:
        entries_of_paths = zip(change.paths, seen["entries"], strict=True)
        return [path for path, entry in entries_of_paths if entry is not None]

    def forget(seen: Seen) -> Decision:
        gone = present(seen)
        return Write((hdel(keys.garbage, *gone),)) if gone else NoWrite()

    def retire(seen: Seen) -> Decision:
        names = [path for path in present(seen) if not is_service_path(path)]
        if not names:
            return NoWrite(then=Transaction(entries, forget))
        marks = [retired_name(change.location, path) for path in names]
        effects = tuple(set_string(mark, 1, change.retired_s) for mark in marks)
        return Write(effects, then=Transaction(entries, forget), durable=True)

    return Transaction(entries, retire if change.retired_s > 0 else forget)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinFiles(Change):
    """Begin or renew a reader's pin."""

    table: str
    pin: str
    lease_s: float
    renews: bool = False
    """Refuse the change if the pin is gone, because its files may have been deleted."""


@transaction_of.register
def pin_files(change: PinFiles) -> Transaction:
    """Return the transaction that begins or renews a pin. Mark: the pin, with this lease.

    A pin with an expired lease may have been ignored already. Renewing it would promise files
    that are gone, so it is refused.
    """
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(keys, seen):
            return refusal
        until_s = seen.now_s + change.lease_s
        entry = PinEntry(pin=change.pin, since_s=seen.now_s, until_s=until_s)
        if seen["pin"] is not None:
            pin = PIN.unpack(f"{keys.pins} {change.pin}", seen["pin"], pin=change.pin)
            if pin.until_s < seen.now_s:
                return Refusal(RefusalCode.PIN, f"pin {change.pin} has expired, begin a new one")
            entry = replace(pin, until_s=until_s)
        elif change.renews:
            # The files that were listed under it may have been deleted.
            return Refusal(RefusalCode.PIN, f"pin {change.pin} does not exist any more")
        # A fail-over must not lose it, because the reader lists files next.
        return Write((hset(keys.pins, {change.pin: PIN.pack(entry)}),), durable=True)

    needs = table_state(keys) | Needs((keys.pins,), {"pin": hget(keys.pins, change.pin)})
    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinFiles(Change):
    """End a reader's pin."""

    table: str
    pin: str


@transaction_of.register
def unpin_files(change: UnpinFiles) -> Transaction:
    """Return the transaction that ends a pin. Mark: it is gone."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        return Write((hdel(keys.pins, change.pin),)) if seen["pin"] is not None else NoWrite()

    return Transaction(Needs((keys.pins,), {"pin": hget(keys.pins, change.pin)}), decide)


# ------------------------------------------------------------------------ Generations and manifests


@dataclass(frozen=True, slots=True, kw_only=True)
class BumpGeneration(Guarded):
    """Increment the table's generation, so that a fail-over to an older state is detected.

    Guarded: otherwise, a store that loses changes between look and change would be incremented
    as usual, and the lower number would be written to the location.
    """

    table: str
    until_s: float = inf
    """Until when the look counts: then another may have counted before the store went back."""


@transaction_of.register
def bump_generation(change: BumpGeneration) -> Transaction:
    """Return the transaction that increments the generation; a repetition is harmless."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(keys, seen):
            return refusal
        if seen.now_s > change.until_s:
            reason = f"the generation of table {change.table} was read too long ago, read it again"
            return Refusal(RefusalCode.GENERATION, reason)
        generation = whole_number(keys.generation, seen["generation"]) + 1
        # The location is written next, so a replica that takes over must have the generation, too.
        return Write((incr(keys.generation),), Applied(generation=generation), durable=True)

    needs = Needs((keys.generation,), {"generation": get(keys.generation)})
    return Transaction(table_state(keys) | needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptGeneration(Change):
    """Raise the table's generation to that of its location."""

    table: str
    generation: int
    lost: bool = False
    """Whether changes were lost: unknown files may then hold rows of users."""
    run: str = ""
    """The run that fills the table, if it is being filled."""


@transaction_of.register
def accept_generation(change: AcceptGeneration) -> Transaction:
    """Return the transaction that raises the generation. Mark: it is that high.

    The period in which changes were lost is stored: a listing sweep keeps unknown files of that
    period, and a rebuild adds them. A table has one such period, from the first loss to the
    last.
    """
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := may_fill(change.table, table_seen(keys, seen), change.run):
            return refusal
        if whole_number(keys.generation, seen["generation"]) >= change.generation:
            return NoWrite()
        effects: tuple[Command, ...] = (set_string(keys.generation, change.generation),)
        if change.lost:
            loss = AcceptedLoss(since_s=_lost_since_s(keys, seen), until_s=seen.now_s)
            effects += (set_string(keys.loss, LOSS.pack(loss)),)
            # Its first tries of a flush may hold rows that the store has forgotten.
            segments = codec_table.unpack_segments(keys.rows, seen["segments"])
            effects += segments_closed(keys, segments, seen.now_s)
        return Write((*effects, table_changed(change.table, "accept")), durable=True)

    reads = {
        "generation": get(keys.generation),
        "manifest": get(keys.manifest),
        "loss": get(keys.loss),
    }
    needs = Needs((keys.generation, keys.manifest, keys.loss), reads)
    return Transaction(whole_table(keys) | needs | buffer_segments(keys), decide)


def _lost_since_s(keys: TableKeys, seen: Seen) -> float:
    """Return a time before which nothing was lost.

    The store has gone back to a moment after the last manifest that it has.
    """
    if seen["loss"] is not None:
        return LOSS.unpack(keys.loss, seen["loss"]).since_s
    if seen["manifest"] is not None:
        return MANIFEST.unpack(keys.manifest, seen["manifest"]).begun_s
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishManifest(Guarded):
    """Record that a manifest is published; its pointer is already written."""

    table: str
    number: int
    path: str
    begun_s: float
    """Redis `TIME` before its reads."""
    deleted: tuple[str, ...] = ()
    """Paths of earlier manifests that were deleted."""


MANIFESTS_MAX = 64
"""Largest number of earlier manifests stored for a table."""


@transaction_of.register
def publish_manifest(change: PublishManifest) -> Transaction:
    """Return the transaction that records a manifest. Mark: it is the last one.

    Its pointer is written before. In the other order, a publisher that dies in between would
    cause the deletion of files that the old pointer still refers to.
    """
    keys = TableKeys(change.table)
    named = (change.number, change.path, change.begun_s)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(keys, seen):
            return refusal
        earlier: tuple[tuple[int, str, float, float], ...] = ()
        if seen["manifest"] is not None:
            manifest = codec_table.MANIFEST.unpack(keys.manifest, seen["manifest"])
            if (manifest.number, manifest.path, manifest.begun_s) == named:
                return NoWrite()
            if manifest.number >= change.number:
                return Refusal(
                    RefusalCode.VERSION, f"manifest {manifest.number} is published already"
                )
            last = (manifest.number, manifest.path, manifest.begun_s, manifest.published_s)
            earlier = tuple(
                entry for entry in (last, *manifest.earlier) if entry[1] not in change.deleted
            )
        if len(earlier) > MANIFESTS_MAX:
            return Refusal(
                RefusalCode.MANIFESTS, f"{len(earlier)} manifests are stored; delete old ones"
            )
        number, path, begun_s = named
        published = Manifest(
            number=number,
            path=path,
            begun_s=begun_s,
            published_s=seen.now_s,
            earlier=earlier,
        )
        return Write((set_string(keys.manifest, codec_table.MANIFEST.pack(published)),))

    needs = Needs((keys.manifest,), {"manifest": get(keys.manifest)})
    return Transaction(table_state(keys) | needs, decide)


# ------------------------------------------------------- The whole store: who leads, limits, its id


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCoordination(Change):
    """Store the id of the coordinator that leads from now on (`neve:coordinator`)."""

    coordinator: str


CLAIM_STEP_S = 0.001


@transaction_of.register
def claim_coordination(change: ClaimCoordination) -> Transaction:
    """Return the transaction that makes a coordinator the leader. Mark: its id is there.

    Replicas must have the claim before it is acknowledged, so a repetition writes it again. A
    claim is later than the one that it replaces, whatever the clock reads. Of two coordinators
    the one with the later claim leads.
    """

    def decide(seen: Seen) -> Decision:
        since_s = seen.now_s
        if (present := claim_seen(seen["coordinator"])) is not None:
            since_s = max(since_s, present.since_s + CLAIM_STEP_S)
        claim = CoordinatorClaim(coordinator=change.coordinator, since_s=since_s)
        return Write((set_string(COORDINATOR, codec_table.CLAIM.pack(claim)),), durable=True)

    return Transaction(Needs((COORDINATOR,), {"coordinator": get(COORDINATOR)}), decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimit(Change):
    """Limit the bytes per second of a group or volume (`neve:limits`)."""

    scope: LimitScope
    bytes_s: int | None
    """0: no limit; None: the limit of the settings."""


LIMITS_MAX = 1000
"""Largest number of groups and volumes with their own limit."""


@transaction_of.register
def set_limit(change: SetLimit) -> Transaction:
    """Return the transaction that writes a limit; the last write wins."""
    return _set_by_operator(LIMITS, change.scope.text, change.bytes_s, LIMITS_MAX, "limits are set")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScale(Change):
    """Set the number of compactors of a group (`neve:scales`)."""

    group: str
    count: int | None
    """None: decided by the settings and the amount of work."""


SCALES_MAX = 1000
"""Largest number of groups with a number of compactors set by an operator."""


@transaction_of.register
def set_scale(change: SetScale) -> Transaction:
    """Return the transaction that sets a group's compactors; the last write wins."""
    what = "groups are scaled manually"
    return _set_by_operator(SCALES, change.group, change.count, SCALES_MAX, what)


def _set_by_operator(
    key: str, name: str, value: int | None, count_max: int, what: str
) -> Transaction:
    """Return the transaction that sets a field of a hash of the whole store.

    Args:
        key: Key of the hash.
        name: Name of the field.
        value: None: remove the field.
        count_max: Largest number of fields.
        what: Noun and verb after the number of fields, for the message.
    """

    def decide(seen: Seen) -> Decision:
        present = seen["known"]
        if value is None:
            return Write((hdel(key, name),), durable=True)
        if name.encode() not in present and len(present) >= count_max:
            return Refusal(RefusalCode.LIMITS, f"{len(present)} {what}; remove others first")
        return Write((hset(key, {name: value}),), durable=True)

    return Transaction(Needs((key,), {"known": hgetall(key)}), decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSeries(Change):
    """Store a part of the recorded values (`neve:series`); the last write wins."""

    part: str
    values: bytes


SERIES_PARTS_MAX = 100
"""Largest number of parts."""
SERIES_PART_BYTES_MAX = 1024**2
"""Largest size of a part."""


@transaction_of.register
def save_series(change: SaveSeries) -> Transaction:
    """Return the transaction that stores a part of the recorded values.

    No decision depends on these values, so a lost write is not repeated.
    """

    def decide(seen: Seen) -> Decision:
        if seen["count"] > SERIES_PARTS_MAX:
            return Refusal(RefusalCode.LIMITS, f"{seen['count']} parts of series are stored")
        if len(change.values) > SERIES_PART_BYTES_MAX:
            return Refusal(RefusalCode.LIMITS, f"part {change.part} of series is too large")
        return Write((hset(SERIES, {change.part: change.values}),))

    return Transaction(Needs((), {"count": hlen(SERIES)}), decide)


FORMAT = 1
"""Version of keys and values in the store; a store with another version is refused."""


def found_store(store: str) -> Transaction:
    """Return the transaction that gives the store an id, unless it has one."""

    def decide(seen: Seen) -> Decision:
        if seen["store"]:
            return NoWrite()
        return Write((hset(STORE, {"id": store, "format": FORMAT}),))

    return Transaction(Needs((STORE,), {"store": hgetall(STORE)}), decide)
