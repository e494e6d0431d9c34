"""Which files of a location count, by its manifest and its footers; and where tablets end. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from common.errors import RequestError
from common.model.tablet import TabletId
from neve.recovery.append_tries import abandoned
from neve.recovery.evidence import Evidence
from neve.recovery.lineage import Lineage, attempts_of, trace
from neve.recovery.lineage_since import trace_since


def lineage_of(evidence: Evidence) -> Lineage:
    """Trace the files of the table that was here last, from its newest manifest if it has one.

    Raises:
        RequestError: Nothing says which of several tables was the last.
    """
    mine = last_tables(evidence)
    attempts = attempts_of(each for each in evidence.footers.values() if each.table in mine)
    published = evidence.published
    named = frozenset[str]() if published is None else frozenset(published.files)
    held = named.union(*(each.inputs for each in evidence.footers.values()))
    tries = abandoned(evidence.added, held, evidence.stored)
    added = [path for path in evidence.added if path not in tries]
    if published is None:
        found = trace(added, attempts)
    else:
        former = attempts_of(each for each in evidence.footers.values() if each.table not in mine)
        found = trace_since(published, evidence.stored, added, attempts, former)
    others = {
        path: f"it was made for another table, {each.table}"
        for path, each in evidence.footers.items()
        if each.table not in mine and path not in named
    }
    return replace(found, left=dict(found.left) | others | tries)


def last_tables(evidence: Evidence) -> Collection[str]:
    """Return the id of the table that was here last; outputs tell of no more than one."""
    described = evidence.described
    if evidence.published is not None:
        return [evidence.published.table]
    if described and described.id in evidence.tables:
        return [described.id]
    if len(evidence.tables) > 1:
        raise RequestError(
            f"the location holds outputs of several tables ({', '.join(evidence.tables)}), and no "
            "description says which one was the last: move the others' files away"
        )
    return evidence.tables


def told_ends(evidence: Evidence, files: Collection[str]) -> set[bytes]:
    """Return the ends of tablets that are known.

    Args:
        evidence: With a manifest: where it names files, and what was made since, tell of
            them; outputs that had been replaced do not, for their tablets may have been
            merged. Without one: all outputs.
        files: Those that count.
    """
    named: Mapping[str, str] = {} if evidence.published is None else evidence.published.files
    told = {named[path] for path in files if path in named}
    for path, footer in evidence.footers.items():
        if evidence.published is None or (path in files and path not in named):
            told.add(footer.tablet)
    return {TabletId.parse("", each).end for each in told}
