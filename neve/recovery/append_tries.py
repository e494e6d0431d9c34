"""Which try of an append was added, where files of several lie in storage. Pure.

Every try of a call holds the same rows, and one is added at most. A file that was ever in the
table tells which: the manifest names it, or a job has taken it as its input. If nothing tells,
the newest whole try counts: should another one have been added, its rows are the same.
"""

from collections.abc import Collection, Iterable, Mapping

from common.model.service_paths import AppendTry, append_try_of
from neve.recovery.stored import StoredFile

NEVER_S = float("-inf")


def abandoned(
    added: Collection[str], held: Iterable[str], stored: Mapping[str, StoredFile]
) -> dict[str, str]:
    """Return the files of tries that were not added → why.

    Args:
        added: Files in storage that appends have written, among others.
        held: Files that were in the table at some time, in storage or not.
        stored: All that lies in the location.
    """
    proven = {found: path for path in held if (found := append_try_of(path)) is not None}
    calls: dict[str, dict[AppendTry, list[str]]] = {}
    for found in proven:
        calls.setdefault(found.call, {}).setdefault(found, [])
    for path in added:
        if (found := append_try_of(path)) is not None:
            calls.setdefault(found.call, {}).setdefault(found, []).append(path)
    left: dict[str, str] = {}
    for tries in calls.values():
        if len(tries) > 1:
            left |= _others(tries, proven, stored)
    return left


def _others(
    tries: Mapping[AppendTry, Collection[str]],
    proven: Mapping[AppendTry, str],
    stored: Mapping[str, StoredFile],
) -> dict[str, str]:
    """Return the files of all tries of one call but the one that was added → why."""

    def rank(each: AppendTry) -> tuple[bool, float, str]:
        written = [stored[path].changed_s or NEVER_S for path in tries[each]]
        return len(tries[each]) == each.count, max(written, default=NEVER_S), each.id

    known = [each for each in tries if each in proven]
    kept = known or [max(tries, key=rank)]
    reason = "another try of its append was added" if known else "another try of its append counts"
    return {path: reason for each, paths in tries.items() if each not in kept for path in paths}
