"""Service-wide records: the leading coordinator, limits, analyses, generation, manifest."""

from common.metadata.changes import (
    Applied,
    BumpGeneration,
    ClaimCoordination,
    PublishManifest,
    SetLimit,
    SetScale,
    WriteAnalyses,
    WriteAnalysis,
)
from common.metadata.codec import table as codec_table
from common.metadata.codec.layout import pack, whole_number
from common.metadata.codec.tablet import (
    ANALYSIS,
    ANALYSIS_GROUP,
    ANSWERED,
    SELECTOR,
    SELECTOR_DUE,
    SETTLED,
    VERSION,
)
from common.metadata.commands import (
    Command,
    Word,
    get,
    hdel,
    hget,
    hgetall,
    hset,
    incr,
    set_string,
)
from common.metadata.keys import COORDINATOR, LIMITS, SCALES, STORE, TableKeys, TabletKeys
from common.metadata.mutation.needs import (
    claim_seen,
    refused_by_table,
    table_state,
    tablet_gone,
)
from common.metadata.mutation.transaction import (
    Decision,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
)
from common.metadata.store_values import CoordinatorClaim, Manifest
from common.model.outcome import Refusal, RefusalCode

LIMITS_MAX = 1000
"""Largest number of groups and volumes with their own limit."""
SCALES_MAX = 1000
"""Largest number of groups with a number of compactors set by an operator."""
MANIFESTS_MAX = 64
"""Largest number of earlier manifests stored for a table."""
CLAIM_STEP_S = 0.001
FORMAT = 1
"""Version of keys and values in the store; a store with another version is refused."""


def write_analysis(change: WriteAnalysis) -> Transaction:
    """Return the transaction that notes an analysis, without a change entry or a new version.

    Table and bounds are watched only so that no key remains in a dropped table.
    """
    table = TableKeys(change.tablet.table)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen) or _refused_note(change, seen):
            return refusal
        effects = _note_effects(change)
        return Write(effects, durable=_is_wish(change)) if effects else NoWrite()

    return Transaction(table_state(table) | _note_needs(change), decide)


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
            for effect in _note_effects(note)
        )
        return Write(effects, durable=any(map(_is_wish, change.notes))) if effects else NoWrite()

    needed = [_note_needs(note) for note in change.notes]
    watch = tuple(key for needs in needed for key in needs.watch)
    reads = {name: read for needs in needed for name, read in needs.reads.items()}
    return Transaction(table_state(table) | Needs(watch, reads), decide)


def _is_wish(change: WriteAnalysis) -> bool:
    """Return whether other work depends on a note; other notes only save a later read."""
    return change.analysis_group is not None


def _note_needs(change: WriteAnalysis) -> Needs:
    keys, text = TabletKeys.of(change.tablet), change.tablet.text
    reads = {f"bounds {text}": get(keys.bounds), f"version {text}": hget(keys.record, VERSION)}
    return Needs((keys.bounds,), reads)


def _refused_note(change: WriteAnalysis, seen: Seen) -> Refusal | None:
    text = change.tablet.text
    if seen[f"bounds {text}"] is None:
        return tablet_gone(change.tablet)
    present = whole_number(TabletKeys.of(change.tablet).record, seen[f"version {text}"])
    if change.version not in {present, -1}:
        return Refusal(RefusalCode.VERSION, f"tablet {change.tablet} is now at version {present}")
    return None


def _note_effects(change: WriteAnalysis) -> tuple[Command, ...]:
    fields = _notes(change)
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


def set_limit(change: SetLimit) -> Transaction:
    """Return the transaction that writes a limit; the last write wins."""
    return _set_by_operator(LIMITS, change.scope.text, change.bytes_s, LIMITS_MAX, "limits are set")


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
            present = codec_table.MANIFEST.unpack(keys.manifest, seen["manifest"])
            if (present.number, present.path, present.begun_s) == named:
                return NoWrite()
            if present.number >= change.number:
                return Refusal(
                    RefusalCode.VERSION, f"manifest {present.number} is published already"
                )
            last = (present.number, present.path, present.begun_s, present.published_s)
            earlier = tuple(
                entry for entry in (last, *present.earlier) if entry[1] not in change.deleted
            )
        if len(earlier) > MANIFESTS_MAX:
            return Refusal(
                RefusalCode.MANIFESTS, f"{len(earlier)} manifests are stored; delete old ones"
            )
        number, path, begun_s = named
        wanted = Manifest(
            number=number,
            path=path,
            begun_s=begun_s,
            published_s=seen.now_s,
            earlier=earlier,
        )
        return Write((set_string(keys.manifest, codec_table.MANIFEST.pack(wanted)),))

    needs = Needs((keys.manifest,), {"manifest": get(keys.manifest)})
    return Transaction(table_state(keys) | needs, decide)


def found_store(store: str) -> Transaction:
    """Return the transaction that gives the store an id, unless it has one."""

    def decide(seen: Seen) -> Decision:
        if seen["store"]:
            return NoWrite()
        return Write((hset(STORE, {"id": store, "format": FORMAT}),))

    return Transaction(Needs((STORE,), {"store": hgetall(STORE)}), decide)
