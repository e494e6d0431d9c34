"""Evidence of a location's last table: its live files, and the ends of its tablets. Pure.

The newest manifest lists the live files at its time. After that time, or without a manifest, the
footers of outputs show which inputs they replaced.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from common.errors import RequestError
from common.metadata.store_values import AcceptedLoss
from common.model.location_identity import AppendTry, append_try_of
from common.model.table import Table
from common.model.tablet import TabletId
from common.primitives import call_time_s
from neve.recovery.scope import Steps
from neve.recovery.stored_files import (
    CLOCKS_APART_S,
    COMMIT_DELAY_MAX_S,
    FileOrigin,
    OutputFooter,
    StoredFile,
)

SERVICE_ROWS = frozenset({FileOrigin.OUTPUT, FileOrigin.APPENDED})

# --------------------------------------------------------------------------- Evidence in a location


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedManifest:
    """The content of a manifest: the state of the table at the time when its writing began."""

    number: int
    begun_s: float
    """When its writing began, by the store's clock, in epoch seconds."""
    table: str
    """Id of the table."""
    files: Mapping[str, str]
    """Path → the tablet that held the file, in the manifest's notation."""
    loss: AcceptedLoss | None = None
    """Period whose files the manifest may lack, because the store has lost changes."""
    complete: bool = True
    """Whether the manifest states that it is complete. Earlier releases did not state it, and
    published manifests of tables whose recovery had been interrupted."""

    @property
    def name(self) -> str:
        """Name of the manifest for messages."""
        return f"manifest {self.number}"


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Files and documents found in a location."""

    stored: dict[str, StoredFile]
    described: Table | None
    footers: dict[str, OutputFooter] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    """Files that users or the gateway wrote."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Path of each unreadable file → reason."""
    misfits: dict[str, str] = field(default_factory=dict)
    """Path of each readable user file that does not fit this table → reason."""
    published: PublishedManifest | None = None
    """The newest manifest of the table."""
    unusable: str = ""
    """Why an existing manifest cannot be used."""

    @property
    def tables(self) -> list[str]:
        """Ids of the tables that outputs were made for."""
        return sorted({footer.table for footer in self.footers.values()})


# ---------------------------------------------------------------------- Several tries of one append


NEVER_S = float("-inf")


def unadded_tries(
    added: Collection[str],
    table_files: Iterable[str],
    stored: Mapping[str, StoredFile],
    steps: Steps,
) -> dict[str, str]:
    """Return the files of append tries that were not added, path → reason.

    Args:
        added: Files in storage, including those that appends have written.
        table_files: Files that were in the table at some time, whether or not they still exist.
        stored: All files in the location.
        steps: Ends the work when its caller has left.
    """
    proven = {
        append_try: path for path in steps.over(table_files) if (append_try := append_try_of(path))
    }
    calls: dict[str, dict[AppendTry, list[str]]] = {}
    for append_try in proven:
        calls.setdefault(append_try.call, {}).setdefault(append_try, [])
    for path in steps.over(added):
        if (append_try := append_try_of(path)) is not None:
            calls.setdefault(append_try.call, {}).setdefault(append_try, []).append(path)
    left: dict[str, str] = {}
    for tries in calls.values():
        if len(tries) > 1:
            left |= _files_of_other_tries(tries, proven, stored)
    return left


def _files_of_other_tries(
    tries: Mapping[AppendTry, Collection[str]],
    proven: Mapping[AppendTry, str],
    stored: Mapping[str, StoredFile],
) -> dict[str, str]:
    """Return the files of all tries of one call except the added one, path → reason."""

    def rank(append_try: AppendTry) -> tuple[bool, float, str]:
        times_s = [stored[path].changed_s or NEVER_S for path in tries[append_try]]
        return (
            len(tries[append_try]) == append_try.count,
            max(times_s, default=NEVER_S),
            append_try.id,
        )

    added_tries = [append_try for append_try in tries if append_try in proven]
    kept = {*added_tries} or {max(tries, key=rank)}
    reason = (
        "another try of its append was added" if added_tries else "another try of its append counts"
    )
    return {
        path: reason
        for append_try, paths in tries.items()
        if append_try not in kept
        for path in paths
    }


# ---------------------------------------------------------------- Lineage from the outputs' footers


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutputs:
    """The remains of one attempt, from the footers of its outputs."""

    id: str
    inputs: tuple[str, ...]
    request: str | None
    outputs: tuple[str, ...] | None
    """All of its outputs; None: the last output, whose footer lists them, is missing."""
    found: tuple[str, ...]
    """Its outputs in storage, including empty marks."""
    table: str = ""
    """Id of the table at that time."""
    age: int = 0
    """Number of ids that the table has had since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The live files of a table, and the reasons for all other files."""

    files: tuple[str, ...]
    """Live files, which hold the table's rows. They may include empty marks of commits."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Files that are not live, path → reason."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Files whose rows are, or may be, lost, path → reason."""
    replaced: frozenset[str] = frozenset()
    """Inputs of the accepted attempts, whether or not they still exist."""


def attempts_of(
    footers: Iterable[OutputFooter], own: Sequence[str], steps: Steps
) -> list[AttemptOutputs]:
    """Group the footers of outputs by attempt.

    Args:
        footers: Footers of all outputs; those of other tables are skipped.
        own: Ids of the table, newest first.
        steps: Ends the work when its caller has left, here and below.
    """
    ages = {table: age for age, table in enumerate(own)}
    grouped: dict[str, list[OutputFooter]] = {}
    for footer in steps.over(footers):
        if footer.table in ages:
            grouped.setdefault(footer.attempt, []).append(footer)
    return [
        AttemptOutputs(
            id=attempt,
            inputs=footers[0].inputs,
            request=footers[0].request,
            outputs=next(
                (footer.outputs for footer in footers if footer.outputs is not None), None
            ),
            found=tuple(sorted(footer.path for footer in footers)),
            table=footers[0].table,
            age=ages[footers[0].table],
        )
        for attempt, footers in steps.over(grouped.items())
    ]


def outputs_of(attempt: AttemptOutputs) -> tuple[str, ...]:
    """Return all known outputs of an attempt."""
    return tuple(dict.fromkeys((*attempt.found, *(attempt.outputs or ()))))


def trace_lineage(
    base: Collection[str], attempts: Iterable[AttemptOutputs], steps: Steps
) -> Lineage:
    """Return the lineage without a manifest.

    Args:
        base: Files in storage that are live unless an attempt replaced them.
        attempts: Attempts that have outputs in storage.
        steps: Ends the work when its caller has left.
    """
    return _Tracer(base, attempts, steps).lineage()


class _Tracer:
    """Decides for each attempt, in any order, whether it was committed.

    An attempt was certainly committed if another attempt has read one of its outputs.
    """

    def __init__(
        self, base: Collection[str], attempts: Iterable[AttemptOutputs], steps: Steps
    ) -> None:
        self._steps = steps
        self._base = {*base}
        self._attempts = {outputs.id: outputs for outputs in steps.over(attempts)}
        self._readers: dict[str, AttemptOutputs] = {}
        """Input → the first attempt found that has read it."""
        self._shared: dict[str, list[AttemptOutputs]] = {}
        """Input that several attempts have read → all of these attempts."""
        for outputs in steps.over(self._attempts.values()):
            for path in outputs.inputs:
                if (first := self._readers.setdefault(path, outputs)) is not outputs:
                    self._shared.setdefault(path, [first]).append(outputs)
        self._refused: dict[str, str] = {}
        self._stored = {
            *self._base,
            *(path for attempt in self._attempts.values() for path in attempt.found),
        }

    def lineage(self) -> Lineage:
        """Return the lineage of all attempts."""
        accepted = [
            outputs
            for outputs in self._steps.over(self._attempts.values())
            if self._accept(outputs)
        ]
        gone = {path for outputs in accepted for path in outputs.inputs}
        written = {path for outputs in accepted for path in outputs_of(outputs)}
        files = (self._base | written) - gone
        left = dict.fromkeys(gone & self._stored, "it was replaced")
        for outputs in self._steps.over(self._attempts.values()):
            if outputs.id in self._refused:
                left |= dict.fromkeys(outputs.found, self._refused[outputs.id])
        lost = dict.fromkeys(written - gone - self._stored, "a committed output is not in storage")
        lost |= self._contested(gone)
        counting = tuple(self._steps.in_order(files & self._stored))
        return Lineage(files=counting, left=left, lost=lost, replaced=frozenset(gone))

    def _contested(self, gone: set[str]) -> dict[str, str]:
        """Return missing inputs that no accepted attempt replaced, path → reason."""
        return {
            path: "it is not in storage, and which of its replacements counts is unknown: "
            + ", ".join(sorted(outputs.found[0] for outputs in self._shared.get(path, [first])))
            for path, first in self._steps.over(self._readers.items())
            if path not in gone and path not in self._stored
        }

    def _accept(self, attempt: AttemptOutputs) -> bool:
        reason = None if self._is_certain(attempt) else self._doubt(attempt)
        if reason is not None:
            self._refused[attempt.id] = reason
        return reason is None

    def _is_certain(self, attempt: AttemptOutputs) -> bool:
        return any(path in self._readers for path in outputs_of(attempt))

    def _doubt(self, attempt: AttemptOutputs) -> str | None:
        """Return why an attempt is rejected, or None."""
        if not self._is_whole(attempt):
            return "not all outputs of its attempt were written"
        if newer := self._newer_claim(attempt):
            return f"its input {newer[0]} was in the table still when the table was {newer[1]}"
        rivals = self._rivals(attempt)
        if any(self._is_certain(rival) for rival in rivals):
            return "another attempt over the same input was committed"
        if rivals and not self._is_first_of_equals(attempt, rivals):
            return f"{min(rival.found[0] for rival in rivals)} claims the same input"
        return None

    def _is_whole(self, attempt: AttemptOutputs) -> bool:
        return attempt.outputs is not None and {*attempt.outputs} <= {*attempt.found}

    def _rivals(self, attempt: AttemptOutputs) -> list[AttemptOutputs]:
        sharing = {
            outputs.id: outputs for path in attempt.inputs for outputs in self._shared.get(path, ())
        }
        return [
            outputs
            for outputs in sharing.values()
            if outputs is not attempt and outputs.age == attempt.age and self._is_whole(outputs)
        ]

    def _newer_claim(self, attempt: AttemptOutputs) -> tuple[str, str] | None:
        """Return an input that an attempt under a newer table id has read, and that id."""
        for path in attempt.inputs:
            for outputs in self._shared.get(path, ()):
                if outputs.age < attempt.age:
                    return path, outputs.table
        return None

    def _is_first_of_equals(self, attempt: AttemptOutputs, rivals: list[AttemptOutputs]) -> bool:
        """Return whether an input is missing and this is the first of several equal attempts."""
        gone = any(path not in self._stored for path in attempt.inputs)
        work = ({*attempt.inputs}, attempt.request)
        equal = all(({*rival.inputs}, rival.request) == work for rival in rivals)
        return gone and equal and all(attempt.id < rival.id for rival in rivals)


# ---------------------------------------------------------------- Lineage since the newest manifest


def trace_since_manifest(
    published: PublishedManifest,
    stored: Mapping[str, StoredFile],
    added: Collection[str],
    attempts: Sequence[AttemptOutputs],
    former: Sequence[AttemptOutputs],
    *,
    steps: Steps,
) -> Lineage:
    """Return the lineage that starts from the newest manifest.

    Args:
        published: The newest manifest.
        stored: All files in the location.
        added: Files in storage that users or the gateway wrote.
        attempts: Attempts of the manifest's table that have outputs in storage.
        former: Attempts of other tables, such as the one from which this table was rebuilt.
        steps: Ends the work when its caller has left.
    """
    since = _ManifestTracer(published, stored, attempts, former, steps)
    later = since.later(added)
    possible = since.possible({*published.files, *later})
    base = {path for path in published.files if path in stored} | later
    lineage = trace_lineage(base, possible, steps)
    reasons = since.reasons(added, later, possible)
    doubts = since.unexplained(reasons.keys() - lineage.left.keys())
    left = {path: why for path, why in reasons.items() if path not in doubts} | dict(lineage.left)
    lost = dict(lineage.lost) | doubts
    for path in published.files:
        if path in stored or path in lineage.replaced:
            continue
        lost.setdefault(path, f"it was in the table by {published.name}, and is not in storage")
    return replace(lineage, left=left, lost=lost)


class _ManifestTracer:
    """Decides about files and attempts that a manifest does not name."""

    def __init__(
        self,
        published: PublishedManifest,
        stored: Mapping[str, StoredFile],
        attempts: Sequence[AttemptOutputs],
        former: Sequence[AttemptOutputs],
        steps: Steps,
    ) -> None:
        self._steps = steps
        self._published = published
        self._stored = stored
        self._attempts = {attempt.id: attempt for attempt in attempts}
        every = (*attempts, *former)
        self._maker = {
            path: outputs for outputs in steps.over(every) for path in outputs_of(outputs)
        }
        before = self._committed_before()
        self._replaced = {path for outputs in before.values() for path in outputs.inputs}
        self._others = [
            outputs
            for outputs in steps.over(self._attempts.values())
            if outputs.id not in before and any(map(self._is_young, outputs.found))
        ]

    def later(self, added: Collection[str]) -> set[str]:
        """Return the files that may have been added to the table after the manifest."""
        inputs = {path for other in self._others for path in other.inputs}
        reserved = {path for path in inputs if path in self._stored and path not in self._maker}
        young = {path for path in self._steps.over(added) if self._is_young(path)}
        return (reserved | young) - self._published.files.keys() - self._replaced

    def possible(self, base: Collection[str]) -> list[AttemptOutputs]:
        """Return the attempts that may have been committed after the manifest.

        An attempt whose inputs were not in the table cannot have written inputs of other attempts.
        """
        left = {other.id: other for other in self._others}
        makers = Counter(path for other in self._others for path in {*outputs_of(other)})
        readers: dict[str, list[AttemptOutputs]] = {}
        for outputs in self._steps.over(self._others):
            for path in outputs.inputs:
                readers.setdefault(path, []).append(outputs)
        lasting = {*base}
        reachable = lasting | makers.keys()
        doubtful = self._others
        while doubtful:
            dropped = [
                outputs
                for outputs in self._steps.over(doubtful)
                if not self._could_hold(outputs, reachable)
            ]
            gone: list[str] = []
            for outputs in dropped:
                if left.pop(outputs.id, None) is not None:
                    gone += self._unmade(outputs, makers)
            reachable.difference_update(path for path in gone if path not in lasting)
            doubtful = [
                reader for path in gone for reader in readers.get(path, ()) if reader.id in left
            ]
        return [*left.values()]

    def _unmade(self, dropped: AttemptOutputs, makers: Counter[str]) -> list[str]:
        """Return the outputs of a dropped attempt that no remaining attempt has written."""
        paths = {*outputs_of(dropped)}
        makers.subtract(paths)
        return [path for path in paths if not makers[path]]

    def _could_hold(self, attempt: AttemptOutputs, reachable: Collection[str]) -> bool:
        """Return whether an attempt's inputs may have been in the table."""
        unknown = [path for path in attempt.inputs if path not in reachable]
        forgotten = any(self._is_forgotten(path) for path in attempt.found)
        return not unknown or (forgotten and not any(map(self._is_accounted_for, unknown)))

    def _is_accounted_for(self, path: str) -> bool:
        """Return whether an input still exists, or was replaced before the manifest."""
        return path in self._stored or path in self._replaced

    def reasons(
        self, added: Collection[str], later: Collection[str], possible: Collection[AttemptOutputs]
    ) -> dict[str, str]:
        """Return the files in storage that the manifest shows not to be live, path → reason."""
        name, left = self._published.name, dict[str, str]()
        counting = {path for attempt in possible for path in attempt.found}
        new = {path for other in self._others for path in other.found}
        outputs = [path for attempt in self._attempts.values() for path in attempt.found]
        for path in self._steps.over([*added, *outputs]):
            if path in self._published.files or path in later or path in counting:
                continue
            if path in self._replaced:
                left[path] = f"it was replaced before {name}"
            elif path in new:
                left[path] = f"{name} does not name it, and its inputs were not in the table then"
            else:
                left[path] = f"{name} does not name it, and is younger"
        return left

    def unexplained(self, left: Collection[str]) -> dict[str, str]:
        """Return excluded files that may hold rows because the manifest may be incomplete."""
        if self._published.complete:
            return {}
        why = f"{self._published.name} does not name it, and does not say that it is complete"
        return dict.fromkeys({*left} - self._replaced, why)

    def _committed_before(self) -> dict[str, AttemptOutputs]:
        """Return the attempts that wrote the manifest's files or, transitively, their inputs."""
        committed: dict[str, AttemptOutputs] = {}
        maker = self._maker
        stack = [maker[path] for path in self._published.files if path in maker]
        while stack:
            attempt = stack.pop()
            if attempt.id not in committed:
                committed[attempt.id] = attempt
                stack += [maker[path] for path in attempt.inputs if path in maker]
        return committed

    def _is_young(self, path: str) -> bool:
        """Return whether a file may have been added to the table without being in the manifest."""
        changed_s = self._stored[path].changed_s
        since_s = self._published.begun_s - COMMIT_DELAY_MAX_S
        return changed_s is None or changed_s >= since_s or self._is_forgotten(path)

    def _is_forgotten(self, path: str) -> bool:
        """Return whether a file dates from a period whose changes the store has lost."""
        loss, changed_s = self._published.loss, self._stored[path].changed_s
        if loss is None:
            return False
        if changed_s is None:
            return True
        return loss.since_s - COMMIT_DELAY_MAX_S <= changed_s <= loss.until_s + CLOCKS_APART_S


# ------------------------------------------------------------------------------------- All together


def lineage_of(evidence: Evidence, steps: Steps) -> Lineage:
    """Return the lineage of the location's last table, from its newest manifest if there is one.

    Args:
        evidence: All evidence of the location.
        steps: Ends the work when its caller has left.

    Raises:
        RequestError: The location held several tables, and the last one cannot be determined.
    """
    own = own_table_ids(evidence)
    published = evidence.published
    counted = own if published is None else _ids_since(published, own)
    attempts = attempts_of(evidence.footers.values(), counted, steps)
    named = frozenset[str]() if published is None else frozenset(published.files)
    table_files = named.union(*(footer.inputs for footer in evidence.footers.values()))
    tries = unadded_tries(evidence.added, table_files, evidence.stored, steps)
    added = [path for path in evidence.added if path not in tries]
    if published is None:
        lineage = trace_lineage(added, attempts, steps)
    else:
        others = [table for table in evidence.tables if table not in counted]
        former = attempts_of(evidence.footers.values(), others, steps)
        lineage = trace_since_manifest(
            published, evidence.stored, added, attempts, former, steps=steps
        )
    strange = [
        footer
        for path, footer in steps.over(evidence.footers.items())
        if footer.table not in counted and path not in named
    ]
    left = {footer.path: _reason_of_other_id(footer, own, published) for footer in strange}
    unknown = (footer for footer in strange if footer.table not in own)
    lost = {footer.path: left[footer.path] for footer in unknown if _may_be_own(footer, evidence)}
    lost = dict(lineage.lost) | lost
    return _with_all_files(
        replace(lineage, left=dict(lineage.left) | left | tries, lost=lost), evidence
    )


def _with_all_files(lineage: Lineage, evidence: Evidence) -> Lineage:
    """Return the lineage with a reason for every data file found in the location."""
    explained = {*lineage.files, *lineage.left, *lineage.lost, *evidence.unreadable}
    unknown = {path: file.whose for path, file in evidence.stored.items() if path not in explained}
    users = [path for path, whose in unknown.items() if whose is FileOrigin.USER]
    service = [path for path, whose in unknown.items() if whose in SERVICE_ROWS]
    # An append renames its file when the file is complete, and adds it only after that.
    unfinished = [path for path in service if path.endswith(".part")]
    left = dict.fromkeys(users, "it is a file of users, which the call leaves out")
    left |= dict.fromkeys(unfinished, "its append was broken off before the file was whole")
    others = {*service}.difference(unfinished)
    lost = dict.fromkeys(sorted(others), "it is unknown whether its rows are in the table")
    return replace(lineage, left=dict(lineage.left) | left, lost=dict(lineage.lost) | lost)


def own_table_ids(evidence: Evidence) -> Sequence[str]:
    """Return the ids of the location's last table, newest first.

    They include the ids that the table had before a rebuild or a restore.

    Raises:
        RequestError: The location held several tables, and the last one cannot be determined.
    """
    if evidence.described is not None:
        return (evidence.described.id, *evidence.described.former_ids)
    if evidence.published is not None:
        return (evidence.published.table,)
    if len(evidence.tables) > 1:
        raise RequestError(
            f"the location holds outputs of several tables ({', '.join(evidence.tables)}), and no "
            "description says which one was the last: move the others' files away"
        )
    return evidence.tables


def _ids_since(published: PublishedManifest, own: Sequence[str]) -> Sequence[str]:
    """Return the ids under which files may have been added to the table since a manifest."""
    if published.loss is not None or published.table not in own:
        return own
    return own[: own.index(published.table) + 1]


def _reason_of_other_id(
    footer: OutputFooter, own: Collection[str], published: PublishedManifest | None
) -> str:
    if published is not None and footer.table in own:
        return f"it was made for {footer.table}, a former id, and {published.name} does not name it"
    return f"it was made for another table, {footer.table}"


def _may_be_own(footer: OutputFooter, evidence: Evidence) -> bool:
    """Return whether an output of an unknown id may hold rows of the described table.

    An earlier table and its last compactors wrote before the described table was created.
    """
    published, described = evidence.published, evidence.described
    since_s = published.begun_s if published is not None else 0.0
    if described is not None:
        since_s = described.created_at_s
    changed_s = evidence.stored[footer.path].changed_s
    return changed_s is None or changed_s > since_s + COMMIT_DELAY_MAX_S


def newest_call_s(evidence: Evidence, steps: Steps) -> float:
    """Return the latest time in the call ids of appends; the clocks of callers may differ."""
    inputs = (path for footer in steps.over(evidence.footers.values()) for path in footer.inputs)
    tries = map(append_try_of, chain(steps.over(evidence.added), inputs))
    return max(
        (call_time_s(append_try.call) or 0.0 for append_try in tries if append_try), default=0.0
    )


def known_ends(evidence: Evidence, files: Collection[str], steps: Steps) -> set[bytes]:
    """Return the known ends of tablets.

    With a manifest, the ends come from the live files that it names and from live outputs written
    since. Replaced outputs are ignored, because their tablets may have been merged. Without a
    manifest, the ends come from all outputs.

    Args:
        evidence: All evidence of the location.
        files: Paths of the live files.
        steps: Ends the work when its caller has left.
    """
    named: Mapping[str, str] = {} if evidence.published is None else evidence.published.files
    tablets = {named[path] for path in files if path in named}
    for path, footer in steps.over(evidence.footers.items()):
        if evidence.published is None or (path in files and path not in named):
            tablets.add(footer.tablet)
    return {TabletId.parse("", tablet).end for tablet in tablets}
