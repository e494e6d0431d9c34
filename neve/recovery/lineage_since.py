"""Which files are a table's rows, from its newest manifest on. Pure.

A manifest says which files the table had when it was begun. So of what is in storage
count, before any attempt is looked at:

* the files that it names, and
* files that came later: written since, or reserved by somebody since.

What was there at that moment and is not named had been replaced, or never belonged to the
table. An attempt that made a file which the manifest names was committed before, and so were
those that made its inputs. Of the others those may have been committed since whose inputs
could be held then; `lineage` says which of them count.

A manifest may name the loss of changes: its store had gone back in time, and somebody has
accepted that. Files written in the time of which changes were lost count like those that
came later; an attempt of that time whose inputs are gone was committed, and forgotten.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from neve.recovery.lineage import Attempt, Lineage, outputs_of, trace
from neve.recovery.only_copies import CLOCKS_APART_S
from neve.recovery.published import Published
from neve.recovery.stored import StoredFile

ON_ITS_WAY_S = 900.0
"""A file may be so much older than the change that brought it into the table; and clocks differ."""


def trace_since(
    published: Published,
    stored: Mapping[str, StoredFile],
    added: Collection[str],
    attempts: Sequence[Attempt],
    former: Sequence[Attempt] = (),
) -> Lineage:
    """Return which files count.

    Args:
        published: The newest manifest.
        stored: All that lies in the location.
        added: Files in storage that users or the gateway brought in.
        attempts: Of the manifest's table, of which outputs are in storage.
        former: Of other tables, such as the one that this one was rebuilt from.
    """
    since = _Since(published, stored, attempts, former)
    later = since.later(added)
    possible = since.possible({*published.files, *later})
    found = trace({path for path in published.files if path in stored} | later, possible)
    left = since.reasons(added, later, possible) | dict(found.left)
    lost = dict(found.lost)
    for path in published.files.keys() - stored.keys() - found.replaced:
        lost.setdefault(path, f"it was in the table by {published.name}, and is not in storage")
    return replace(found, left=left, lost=lost)


class _Since:
    """What a manifest tells of files and attempts that it does not name."""

    def __init__(
        self,
        published: Published,
        stored: Mapping[str, StoredFile],
        attempts: Sequence[Attempt],
        former: Sequence[Attempt],
    ) -> None:
        self._published = published
        self._stored = stored
        self._attempts = {each.id: each for each in attempts}
        every = (*attempts, *former)
        self._maker = {path: each for each in every for path in outputs_of(each)}
        before = self._committed_before()
        self._replaced = {path for each in before.values() for path in each.inputs}
        self._others = [
            each for each in self._attempts.values() if each.id not in before and self._is_new(each)
        ]

    def later(self, added: Collection[str]) -> set[str]:
        """Return the files that came into the table after the manifest, perhaps."""
        inputs = {path for each in self._others for path in each.inputs}
        reserved = (inputs & self._stored.keys()) - self._maker.keys()
        young = {path for path in added if self._is_young(path)}
        return (reserved | young) - self._published.files.keys() - self._replaced

    def possible(self, base: Collection[str]) -> list[Attempt]:
        """Return the attempts that may have been committed after the manifest."""
        chosen = self._others
        while True:
            known = {*base, *(path for each in chosen for path in outputs_of(each))}
            kept = [each for each in chosen if self._could_hold(each, known)]
            if len(kept) == len(chosen):
                return kept
            chosen = kept

    def _could_hold(self, attempt: Attempt, known: Collection[str]) -> bool:
        """Return whether an attempt's inputs were in the table, as far as can be told."""
        unknown = {*attempt.inputs} - {*known}
        forgotten = any(self._is_forgotten(path) for path in attempt.found)
        gone = unknown - self._stored.keys() - self._replaced
        return unknown == (gone if forgotten else set())

    def reasons(
        self, added: Collection[str], later: Collection[str], possible: Collection[Attempt]
    ) -> dict[str, str]:
        """Return why files in storage do not count, as far as the manifest tells."""
        name, left = self._published.name, dict[str, str]()
        counting = {path for each in possible for path in each.found}
        new = {path for each in self._others for path in each.found}
        outputs = [path for each in self._attempts.values() for path in each.found]
        for path in [*added, *outputs]:
            if path in self._published.files or path in later or path in counting:
                continue
            if path in self._replaced:
                left[path] = f"it was replaced before {name}"
            elif path in new:
                left[path] = f"{name} does not name it, and its inputs were not in the table then"
            else:
                left[path] = f"{name} does not name it, and is younger"
        return left

    def _committed_before(self) -> dict[str, Attempt]:
        """Return the attempts that made what the manifest names, and the makers of their inputs."""
        found: dict[str, Attempt] = {}
        maker = self._maker
        stack = [maker[path] for path in self._published.files if path in maker]
        while stack:
            each = stack.pop()
            if each.id not in found:
                found[each.id] = each
                stack += [maker[path] for path in each.inputs if path in maker]
        return found

    def _is_new(self, attempt: Attempt) -> bool:
        return any(self._is_young(path) for path in attempt.found)

    def _is_young(self, path: str) -> bool:
        """Return whether a file may have come into the table and the manifest not know it."""
        changed_s = self._stored[path].changed_s
        since_s = self._published.begun_s - ON_ITS_WAY_S
        return changed_s is None or changed_s >= since_s or self._is_forgotten(path)

    def _is_forgotten(self, path: str) -> bool:
        """Return whether a file is of a time of which the store has lost changes."""
        loss, changed_s = self._published.loss, self._stored[path].changed_s
        if loss is None:
            return False
        if changed_s is None:
            return True
        return loss.since_s - ON_ITS_WAY_S <= changed_s <= loss.until_s + CLOCKS_APART_S
