"""The mark of an accepted call: checked first, written with the change, kept for a day.

    mark, same content       the call was accepted before: only the mark is written again
    mark, other content      refused: one id identifies one call
    no mark, id too old      refused: it is unknown whether it was accepted
    no mark, older than a rebuild or restore of its table: the same
    no mark                  the change decides, and writes the mark if it is allowed

Adds, appends and compactions share the ids of calls.
"""

from collections.abc import Iterable, Mapping

from common.metadata.changes import AddFiles, Applied
from common.metadata.codec.table import CALL
from common.metadata.commands import Command, pexpire, set_string
from common.metadata.keys import CALL_SKEW_S, MARK_LIFE_S, TableKeys
from common.metadata.mutation.transaction import Seen, Write
from common.metadata.store_values import CallKind, CallMark
from common.model.outcome import Refusal, RefusalCode
from common.primitives import CALL_LIFE_S, call_time_s, digest


def call_seen(keys: TableKeys, call: str, seen: Seen) -> CallMark | None:
    """Return the mark of a call, or None; it was read under the name `call`."""
    stored = seen["call"]
    return None if stored is None else CALL.unpack(keys.call(call), stored)


def answer_repeated_call(
    keys: TableKeys, call: str, kind: CallKind, content: str, seen: Seen
) -> Write | Refusal:
    """Answer a call that has a mark: write the mark again, so that replicas have it.

    Args:
        keys: Keys of the table.
        call: Id of the call.
        kind: Kind of the present call.
        content: Digest of its content.
        seen: Values read, including the mark.
    """
    mark = call_seen(keys, call, seen)
    assert mark is not None, call
    if refusal := refused_other_content(call, mark, kind, content):
        return refusal
    effects = (pexpire(keys.call(call), MARK_LIFE_S),)
    return Write(effects, Applied(call=mark, repeated=True), durable=True)


def refused_other_content(
    call: str, mark: CallMark, kind: CallKind, content: str
) -> Refusal | None:
    """Return why a call differs from the one accepted under its id, or None if it does not."""
    if (mark.kind, mark.content) == (kind, content):
        return None
    what = "with other content" if mark.kind is kind else f"for `{mark.kind.value}`"
    return Refusal(
        RefusalCode.CALL_CONTENT,
        f"call id {call} was used before, {what}: use a new id for another call",
    )


def leave_call_mark(keys: TableKeys, call: str, mark: CallMark) -> Command:
    """Return the effect that writes the mark of a call."""
    return set_string(keys.call(call), CALL.pack(mark), MARK_LIFE_S)


def refused_call(call: str, now_s: float, since_s: float) -> Refusal | None:
    """Return why a call without a mark is refused, or None if it is accepted.

    Args:
        call: Id of the call.
        now_s: The store's time.
        since_s: `calls_since_s` of its table.
    """
    made_s = call_time_s(call)
    if made_s is None:
        return Refusal(RefusalCode.CALL_FORM, f"call id {call[:64]!r} is not a UUIDv7")
    if made_s < now_s - CALL_LIFE_S:
        return Refusal(
            RefusalCode.CALL_TOO_OLD,
            f"call id {call} was made {now_s - made_s:.0f} s ago, at most {CALL_LIFE_S} s are "
            "allowed: it is unknown whether the call was accepted before",
        )
    if made_s < since_s:
        return Refusal(
            RefusalCode.CALL_TOO_OLD,
            f"call id {call} was made before the table was rebuilt or restored, so it is unknown "
            "whether it was accepted: check whether its rows are there, and send missing rows "
            "under a new id",
        )
    if made_s > now_s + CALL_SKEW_S:
        return Refusal(
            RefusalCode.CALL_TOO_NEW,
            f"call id {call} carries a time {made_s - now_s:.0f} s in the future: "
            "check the clock of the caller",
        )
    return None


# ------------------------------------------------------------------------- The content of a call


def names_digest(paths: Iterable[str]) -> str:
    """Return the digest of the names of some files."""
    return digest(sorted(paths))


def files_digest(sizes: Mapping[str, int]) -> str:
    """Return the digest of a set of files, independent of their tablets.

    Args:
        sizes: Path → size in bytes.
    """
    return digest(word for path, size in sorted(sizes.items()) for word in (path, str(size)))


def call_content(change: AddFiles) -> str:
    """Return the digest of the caller's data."""
    if change.content:
        return change.content
    files = (file for files in change.files.values() for file in files)
    return files_digest({file.path: file.size_bytes for file in files})
