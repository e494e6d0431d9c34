"""What an attempt may commit to a lake table, and the steps of publishing it. Pure.

Other writers append, delete, restore and compact while an attempt works. These rules keep their
changes: without any one of them rows are lost, doubled or come back, as `tests/sim` shows for each.
The numbers are those of `docs/lake-tables.md`.

A compactor publishes with `next_step`: it performs the step, and gives back what came of it as an
event. One try is: load the head, look for the attempt itself unless nothing was sent so far,
validate, mark the reservation, send. Nothing repeats a request in between.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

import numpy as np

from common.lake.source import (
    Answer,
    LakeFile,
    LakeOutput,
    Look,
    Planned,
    Positions,
    Sighting,
    Snapshot,
)
from common.primitives import PUBLISH_LIFE_S

TRIES_MAX = 20
MOVED_MAX = 1_000_000
"""Most rows deleted since the plan that one output carries over; above, it is dropped."""

# --------------------------------------------------------------------------------------- Validation
# What of an attempt may be committed at a head (rule 4).


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an attempt may commit at one head."""

    outputs: tuple[LakeOutput, ...] = ()
    removed: tuple[LakeFile, ...] = ()
    """Inputs of these outputs, and inputs without a live row, as the head has them (rule 6)."""
    deletes: Mapping[str, Positions] = field(default_factory=dict)
    """Rows of outputs that were deleted since the plan, by path."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Why an output, or an input without a live row, is left out, by path."""
    ended: str = ""
    """Why no later try can commit anything; empty: one may."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be committed."""
        return not self.removed


def changed_deletes(planned: Planned, head: Snapshot) -> tuple[LakeFile, ...]:
    """Return the live inputs with other deletes by position: `validate` needs their positions."""
    live = (head.files.get(path) for path in planned.deletes)
    return tuple(
        file for file in live if file is not None and file.deletes != planned.deletes[file.path]
    )


def validate(
    planned: Planned,
    outputs: Sequence[LakeOutput],
    head: Snapshot,
    positions: Mapping[str, Positions],
) -> Verdict:
    """Return what an attempt may commit as the version after `head`.

    Args:
        planned: What the attempt read.
        outputs: Everything that it wrote.
        head: The version that was just loaded.
        positions: Deleted positions at the head of the files of `changed_deletes`.
    """
    if reason := why_ended(planned, head):
        return Verdict(dropped={output.path: reason for output in outputs}, ended=reason)
    dropped: dict[str, str] = {}
    deletes: dict[str, Positions] = {}
    kept: list[LakeOutput] = []
    for group in output_groups(outputs):
        later = _later_deletes(planned, group, head, positions)
        moved = later if isinstance(later, str) else _moved_deletes(planned, group, later)
        if isinstance(moved, str):
            dropped |= {output.path: moved for output in group}
        else:
            kept += group
            deletes |= moved
    used = {path for output in outputs for path in output.inputs}
    emptied = {}
    for path in sorted(planned.deletes.keys() - used):
        if reason := why_not_empty(planned, path, head, positions):
            dropped[path] = reason
        else:
            emptied[path] = head.files[path]
    removed = {path: head.files[path] for output in kept for path in output.inputs} | emptied
    return Verdict(tuple(kept), tuple(removed.values()), deletes, dropped)


def why_ended(planned: Planned, head: Snapshot) -> str:
    """Return why nothing that was planned can be committed any more, or an empty text (rule 6)."""
    if head.table_id != planned.table_id:
        return f"another table with the id {head.table_id} lies at this location now"
    if head.refusal:
        return head.refusal
    if head.version < planned.version:
        return f"the table went back from version {planned.version} to {head.version}"
    if head.steady_since > planned.version:
        return (
            f"schema, properties or features may have changed up to version {head.steady_since}, "
            f"after version {planned.version} was planned"
        )
    return ""


def output_groups(outputs: Iterable[LakeOutput]) -> list[list[LakeOutput]]:
    """Return outputs that share inputs, directly or through others, as one group each."""
    groups: list[tuple[set[str], list[LakeOutput]]] = []
    for output in outputs:
        paths, members = set(output.inputs), [output]
        apart = []
        for other_paths, others in groups:
            if paths.isdisjoint(other_paths):
                apart.append((other_paths, others))
            else:
                paths |= other_paths
                members = others + members
        groups = [*apart, (paths, members)]
    return [members for _, members in groups]


def why_unusable(
    planned: Planned, path: str, head: Snapshot, positions: Mapping[str, Positions]
) -> str:
    """Return why the planned rows of an input are not those of the head, or an empty text.

    Rows deleted since the plan are no reason: positions are carried over, and equality deletes
    with a sequence number above that of the outputs, which is the planned version, apply to them.
    """
    file = head.files.get(path)
    if file is None:
        return f"input {path} left the table"
    if file.sequence != planned.sequences.get(path, 0):
        return f"input {path} left the table, and was added to it again"
    applied, equality = set(planned.equality.get(path, ())), set(file.equality)
    if not applied <= equality:
        return f"input {path} has lost equality deletes that were applied to it"
    if any(sequence <= planned.version for sequence, _ in equality - applied):
        return f"input {path} has other equality deletes of versions up to the planned one"
    if file.deletes == planned.deletes[path]:
        return ""
    before = _planned_positions(planned, path)
    if not np.isin(before, positions[path], assume_unique=True).all():
        return f"input {path} has rows again that were deleted when it was planned"
    return ""


def why_not_empty(
    planned: Planned, path: str, head: Snapshot, positions: Mapping[str, Positions]
) -> str:
    """Return why an input that no output has rows of cannot be removed, or an empty text."""
    if reason := why_unusable(planned, path, head, positions):
        return reason
    if _left_out(planned, path).size != head.files[path].rows:
        return f"input {path} has live rows, but no output has them"
    return ""


def _later_deletes(
    planned: Planned,
    group: Sequence[LakeOutput],
    head: Snapshot,
    positions: Mapping[str, Positions],
) -> dict[str, Positions] | str:
    """Return the positions of inputs that were deleted since the plan, or why there is no way."""
    later: dict[str, Positions] = {}
    for path in sorted({path for output in group for path in output.inputs}):
        if reason := why_unusable(planned, path, head, positions):
            return reason
        if path in positions and head.files[path].deletes != planned.deletes[path]:
            before = _left_out(planned, path)
            later[path] = np.setdiff1d(positions[path], before, assume_unique=True)
    return {path: rows for path, rows in later.items() if rows.size}


def _moved_deletes(
    planned: Planned, group: Sequence[LakeOutput], later: Mapping[str, Positions]
) -> dict[str, Positions] | str:
    """Return positions of outputs for positions of inputs, or why there is no way."""
    moved: dict[str, list[Positions]] = {}
    for path, rows in later.items():
        left = rows.size
        for output in group:
            for part in _positions_in_output(planned, output, path, rows):
                left -= part.size
                moved.setdefault(output.path, []).append(part)
        if left:
            return f"rows of input {path} were deleted, and their positions in outputs are unknown"
    deletes = {path: np.sort(np.concatenate(parts)) for path, parts in moved.items()}
    if any(rows.size > MOVED_MAX for rows in deletes.values()):
        return f"more than {MOVED_MAX} rows of one output were deleted since it was planned"
    return {path: rows for path, rows in deletes.items() if rows.size}


def _positions_in_output(
    planned: Planned, output: LakeOutput, path: str, rows: Positions
) -> Iterable[Positions]:
    """Yield where rows of an input lie in an output, run by run."""
    before = _left_out(planned, path)
    for run in output.offsets:
        if run.path == path:
            inside = rows[(rows >= run.first) & (rows < run.end)]
            skipped = np.searchsorted(before, inside) - np.searchsorted(
                before, np.uint64(run.first)
            )
            yield inside - np.uint64(run.first) - skipped.astype(np.uint64) + np.uint64(run.start)


def _planned_positions(planned: Planned, path: str) -> Positions:
    return planned.positions.get(path, np.empty(0, np.uint64))


def _left_out(planned: Planned, path: str) -> Positions:
    """Return the positions of rows that no output has."""
    before = _planned_positions(planned, path)
    matched = planned.matched.get(path)
    return before if matched is None else np.union1d(before, matched)


# --------------------------------------------------------------------------------------- Publishing
# Steps of a compactor, and what comes of them.


@dataclass(frozen=True, slots=True)
class LoadHead:
    """Load the head. Comes back as `HeadLoaded`."""


@dataclass(frozen=True, slots=True)
class LookForAttempt:
    """Look for the attempt in all versions above one (rule 7). Comes back as `Looked`.

    Attributes:
        since: The last version before the last send; none above it may be missing. The look before
            that send saw all versions up to this one.
    """

    since: int


@dataclass(frozen=True, slots=True)
class ReadDeletes:
    """Read the deleted positions of files. Comes back as `DeletesRead`."""

    files: tuple[LakeFile, ...]


@dataclass(frozen=True, slots=True)
class MarkReservation:
    """Mark the reservation as publishing, if it is still held. Comes back as `Marked`."""


@dataclass(frozen=True, slots=True)
class SendVersion:
    """Send the verdict as the version after the head, once. Comes back as `SendAnswered`."""

    head: Snapshot
    verdict: Verdict


class PublishEnd(StrEnum):
    """How publishing ended."""

    COMMITTED = "committed"
    REFUSED = "refused"
    """Nothing of the attempt fits the head; the inputs are planned again."""
    CONFLICTED = "conflicted"
    """Other writers were faster at every try."""
    RELEASED = "released"
    """The attempt does not hold its reservation any more."""
    TOO_OLD = "too-old"
    FAILED = "failed"
    """The table could not be read; nothing was sent."""
    CANNOT_TELL = "cannot-tell"
    """Something was sent, and whether it arrived cannot be found out here."""


@dataclass(frozen=True, slots=True)
class EndPublishing:
    """Report the end of the attempt (rule 8).

    Attributes:
        ending: How it ended.
        reason: One sentence, or empty.
        version: The version that has the attempt; -1: none is known.
        committed: Paths of the outputs that this version adds.
        was_sent: Something was sent. If not, the compactor deletes its outputs itself (rule 10);
            if so, outputs that were not committed are garbage with the mark (rule 9).
    """

    ending: PublishEnd
    reason: str = ""
    version: int = -1
    committed: frozenset[str] = frozenset()
    was_sent: bool = False


PublishStep = (
    LoadHead | LookForAttempt | ReadDeletes | MarkReservation | SendVersion | EndPublishing
)


@dataclass(frozen=True, slots=True)
class HeadLoaded:
    """The head, as the source returned it."""

    head: Snapshot


@dataclass(frozen=True, slots=True)
class Looked:
    """Result of a look."""

    sighting: Sighting


@dataclass(frozen=True, slots=True)
class DeletesRead:
    """Deleted positions by path."""

    positions: Mapping[str, Positions]


@dataclass(frozen=True, slots=True)
class Marked:
    """Whether the attempt holds its reservation, which now bears the mark."""

    is_held: bool


@dataclass(frozen=True, slots=True)
class SendAnswered:
    """What the log or catalog answered."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The step could not be performed, or the store did not answer; it may be repeated before."""

    reason: str


PublishEvent = HeadLoaded | Looked | DeletesRead | Marked | SendAnswered | StepFailed


@dataclass(frozen=True, slots=True)
class Publishing:
    """An attempt that publishes. `head` is the one of this try; None: to be loaded."""

    planned: Planned
    outputs: tuple[LakeOutput, ...]
    started_at_s: float
    """When the attempt started, in seconds since the epoch."""
    tries_max: int = TRIES_MAX
    tries: int = 0
    """Sends so far."""
    head: Snapshot | None = None
    verdict: Verdict = Verdict()
    base: int = -1
    """Last version before the last send."""

    @property
    def was_sent(self) -> bool:
        """Whether a request may have reached the log or catalog."""
        return self.tries > 0


def next_step(
    state: Publishing, event: PublishEvent, now_s: float
) -> tuple[Publishing, PublishStep]:
    """Return the state after an event, and what to do next. It begins with the step `LoadHead`.

    Args:
        state: The attempt before the event.
        event: What came of the last step.
        now_s: Time in seconds since the epoch.
    """
    match event:
        case HeadLoaded(head):
            state = replace(state, head=head)
            return (state, LookForAttempt(state.base)) if state.was_sent else _compare(state)
        case Looked(sighting):
            return _after_look(state, sighting)
        case DeletesRead(positions):
            return _decide(state, positions)
        case Marked(is_held):
            return _after_mark(state, is_held, now_s)
        case SendAnswered(answer):
            return _after_send(state, answer)
        case StepFailed(reason):
            ending = PublishEnd.CANNOT_TELL if state.was_sent else PublishEnd.FAILED
            return state, _end(state, ending, reason)
        case _:
            assert_never(event)


def _after_look(state: Publishing, sighting: Sighting) -> tuple[Publishing, PublishStep]:
    if sighting.look is Look.FOUND:
        end = _end(state, PublishEnd.COMMITTED)
        return state, replace(end, version=sighting.version, committed=sighting.outputs)
    if sighting.look is Look.CANNOT_TELL:
        return state, _end(state, PublishEnd.CANNOT_TELL, sighting.reason)
    if state.tries >= state.tries_max:
        reason = f"other writers committed first at each of {state.tries} tries"
        return state, _end(state, PublishEnd.CONFLICTED, reason)
    if state.head is None:
        return state, LoadHead()
    return _compare(state)


def _compare(state: Publishing) -> tuple[Publishing, PublishStep]:
    """Go on to the verdict, with the positions that it needs."""
    assert state.head is not None, state
    if not why_ended(state.planned, state.head) and (
        files := changed_deletes(state.planned, state.head)
    ):
        return state, ReadDeletes(files)
    return _decide(state, {})


def _decide(
    state: Publishing, positions: Mapping[str, Positions]
) -> tuple[Publishing, PublishStep]:
    assert state.head is not None, state
    verdict = validate(state.planned, state.outputs, state.head, positions)
    state = replace(state, verdict=verdict)
    if verdict.is_empty:
        reason = verdict.ended or next(iter(verdict.dropped.values()), "there is nothing to commit")
        return state, _end(state, PublishEnd.REFUSED, reason)
    return state, MarkReservation()


def _after_mark(state: Publishing, is_held: bool, now_s: float) -> tuple[Publishing, PublishStep]:
    if not is_held:
        return state, _end(state, PublishEnd.RELEASED, "the attempt holds its reservation no more")
    if now_s - state.started_at_s > PUBLISH_LIFE_S:  # Rule 11.
        reason = f"the attempt is older than {PUBLISH_LIFE_S / 3600:.0f} hours"
        return state, _end(state, PublishEnd.TOO_OLD, reason)
    head = state.head
    assert head is not None, state
    state = replace(state, tries=state.tries + 1, base=head.last_version)
    return state, SendVersion(head, state.verdict)


def _after_send(state: Publishing, answer: Answer) -> tuple[Publishing, PublishStep]:
    """Look whatever the answer is: a layer below may have sent twice, and the answer may be late.

    After a commit the look also finds out that a checkpoint lies above the version.
    """
    state = replace(state, head=None)
    if answer is Answer.COMMITTED or state.tries >= state.tries_max:
        return state, LookForAttempt(state.base)
    return state, LoadHead()


def _end(state: Publishing, ending: PublishEnd, reason: str = "") -> EndPublishing:
    return EndPublishing(ending, reason, was_sent=state.was_sent)


# --------------------------------------------------------------------------- Follower and collector


def never_committed(sighting: Sighting, paths: Iterable[str]) -> list[str]:
    """Return the outputs of an attempt that no version has added.

    Args:
        sighting: A look for the attempt and all of its outputs.
        paths: Some of its outputs.
    """
    is_known = sighting.look is not Look.CANNOT_TELL
    return [path for path in paths if is_known and path not in sighting.outputs]


def may_delete_outputs(noted_version: int, head_version: int) -> bool:
    """Return whether outputs that were never committed can be deleted (rule 9).

    They are those of a released attempt with the mark, and of a look after the head was loaded. A
    request on its way can still create the version after the noted one, but none that exists.

    Args:
        noted_version: The last version that was noted after the release and the garbage grace.
        head_version: The last version now.
    """
    return head_version > noted_version
