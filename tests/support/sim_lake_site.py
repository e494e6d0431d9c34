"""A lake table of values in simulated time: its log or catalog, its storage, its other writers.

The table itself is that of the explicit-state models: `lake_model` for a Delta log,
`iceberg_model` for a catalog with sequence numbers and delete files. Here it is long-lived: other
writers change it as it comes, requests and answers are lost or false, and commits arrive late.
After each change the table is held against the rows that its writers left, and against its files.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.parquet import FileMetaData

from common.errors import InputError, RefusedError, UnavailableError
from common.lake.rules import Verdict
from common.lake.source import (
    Answer,
    Commit,
    Freed,
    LakeFile,
    LakeOutput,
    LakeSurvey,
    MaintenanceRules,
    Positions,
    Sighting,
    Snapshot,
    TableSource,
)
from common.model.table import Column
from tests.support import iceberg_model, lake_model
from tests.support.iceberg_model import IcebergExplorer
from tests.support.lake_model import EVENTS, ROWS, Attempt, Explorer, Model, Scenario
from tests.support.sim_loop import World

COLUMNS = (Column("row", "int64"),)
ROW_BYTES = 100
DAY_S = 86_400.0
OWN = "neve-"
"""Names of Névé's files begin so."""
DELTA_KINDS = ("append", "vector", "copy", "compact", "restore", "schema")
ICEBERG_KINDS = (
    *("append", "position", "equality", "upsert", "copy", "compact"),
    *("rollback", "branch", "put_back"),
)
DELTA_CARE, ICEBERG_CARE = ("checkpoint", "clean", "vacuum"), ("expire", "orphans")
_CACHED: tuple[Any, ...] = (
    *(lake_model.rows_of, lake_model.states_of, lake_model.snapshot_of),
    *(iceberg_model.live_rows, iceberg_model.rows_of, iceberg_model.snapshot_of),
    *(iceberg_model.names_of, iceberg_model._delete_files),
)


@dataclass
class SiteFaults:
    """How badly the log or catalog answers. Probabilities per call; times in seconds."""

    silent: float = 0.0
    lost: float = 0.0
    """Of a commit: the request never arrives, or its answer does not."""
    late: float = 0.0
    """Of a commit: it arrives later, if at all."""
    false: float = 0.0
    """Of a commit: the answer says the opposite of what happened."""
    late_max_s: float = 30.0


class LakeSite:
    """One table. `state` is a world of the model, without attempts."""

    def __init__(self, world: World, format_name: str, faults: SiteFaults, files: int) -> None:
        scenario = Scenario(dict.fromkeys(EVENTS, 1))
        self.is_delta = format_name == "delta"
        self.model: Explorer = (Explorer if self.is_delta else IcebergExplorer)(Model(scenario))
        self.world, self.faults = world, faults
        self.seen: Counter[str] = Counter()
        self.made: dict[str, int] = {}
        """Attempt → outputs that it wrote."""
        self.committed: dict[str, int] = {}
        """Attempt → outputs that became live."""
        self.adopted: set[str] = set()
        """Outputs that became live."""
        self._born_s: dict[str, float] = {}
        """Path of a file of Névé → when it was stored."""
        self._tries: dict[tuple[int, str], list[tuple[int, frozenset[str]]]] = {}
        self._process = world.process("log of the table")
        self._sources = 0
        for cached in _CACHED:
            cached.cache_clear()
        for path in [path for path in ROWS if path not in {"a", "b"}]:
            del ROWS[path]
        self.state: Any = self.model._first()
        for _ in range(files):
            self.write("append")

    # ------------------------------------------------------------------------- Other writers

    @property
    def kinds(self) -> tuple[str, ...]:
        """What other writers may do."""
        return DELTA_KINDS if self.is_delta else ICEBERG_KINDS

    @property
    def care(self) -> tuple[str, ...]:
        """What other engines do to keep the table tidy."""
        return DELTA_CARE if self.is_delta else ICEBERG_CARE

    def write(self, kind: str) -> None:
        """Let another writer do one thing of a kind, if there is any."""
        budget = tuple(int(other == kind) for other in EVENTS)
        model = lake_model if self.is_delta else iceberg_model
        state = self.state._replace(budget=budget)
        source = model.writers if kind in self.kinds else model.maintenance
        choices = [after for label, after in source(state) if label == kind]
        if kind in {"vacuum", "orphans"}:
            choices = [self._without_fresh(after) for after in choices]
        if choices:
            self._become(self.world.dice.choice(choices), f"other: {kind}")

    def _without_fresh(self, after: Any) -> Any:
        """Return the state after a clean-up that spares what Névé has written within a day."""
        now_s = self.world.now_s()
        fresh = {path for path, at_s in self._born_s.items() if now_s - at_s < DAY_S}
        return after._replace(stored=after.stored | (self.state.stored & fresh))

    def _become(self, after: Any, what: str) -> None:
        """Change the table, and hold it against the truth.

        Raises:
            AssertionError: Rows are lost or doubled, or a version names a file that is gone.
        """
        self.seen[what] += 1
        self.world.tell("table", what, head=self.model._newest(after))
        self.state = after
        problem = self.model._problem(after)
        if problem:
            self.world.fail(AssertionError(problem))

    # --------------------------------------------------------------------------- What Névé does

    def opened(self, *_: object) -> TableSource:
        """Return access to the table, in place of `open_delta`."""
        self._sources += 1
        return SimSource(self, self._sources)

    def require_answer(self) -> None:
        """Fail now and then, as a storage that does not answer."""
        if self.world.chance(self.faults.silent):
            raise UnavailableError("simulated: the log does not answer")

    def load(self, known: Snapshot | None) -> Snapshot:
        """Return the head."""
        since = known.version if known is not None else getattr(self.state, "checkpoint", 0)
        head = self.model._load(self.state, since)
        steady = head.steady_since
        if self.is_delta:
            steady = max(steady, since if known is None else known.steady_since)
        files = {path: self._sized(file) for path, file in head.files.items()}
        return replace(head, files=files, columns=COLUMNS, steady_since=steady)

    def _sized(self, file: LakeFile) -> LakeFile:
        """Return a file of a realistic size, with a short identity of its deletes."""
        entry = file.deletes if self.is_delta else file.entry
        digest = hashlib.sha256(file.deletes.encode()).hexdigest()[:16] if file.deletes else ""
        size_bytes = ROW_BYTES * max(1, file.rows)
        count = len(file.deletes.split()) if not self.is_delta else bool(file.deletes)
        return replace(
            file,
            size_bytes=size_bytes,
            deletes=digest,
            entry=entry,
            delete_files=count + len(file.equality),
        )

    def positions(self, file: LakeFile) -> Positions:
        """Return the deleted positions of a file that `load` returned."""
        return np.array([int(word) for word in file.entry.split(",") if word], np.uint64)

    def matched(self, file: LakeFile) -> Positions:
        """Return the positions that equality deletes remove."""
        if not file.equality:
            return np.empty(0, np.uint64)
        wanted = {name for _, name in file.equality}
        deletes = [item for item in self.state.main.equality if item.name in wanted]
        if len(deletes) < len(wanted):
            raise InputError(f"equality deletes of {file.path} have left the table")
        return np.array(iceberg_model._matched(file.path, deletes), np.uint64)

    def look(self, attempt: str, outputs: Collection[str], since: int) -> Sighting:
        """Look for an attempt."""
        return self.model._look(self.state, attempt, frozenset(outputs), since)

    def store(self, attempt: str, outputs: Sequence[LakeOutput]) -> None:
        """Store the outputs of an attempt."""
        self.made[attempt] = len(outputs)
        self._born(output.path for output in outputs)

    def _born(self, paths: Iterable[str]) -> None:
        fresh = dict.fromkeys(paths, self.world.now_s())
        self._born_s |= fresh
        self.state = self.state._replace(stored=self.state.stored | fresh.keys())

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files for Névé: none that a version names."""
        try:
            self.state = self.model._delete(self.state, frozenset(paths))
        except lake_model.ViolationError as error:
            self.world.fail(AssertionError(str(error)))
            raise

    def send(self, commit: Commit, sender: int) -> Answer:
        """Make a commit the next version, once, with the faults of this table."""
        request = self._request(commit, sender)
        return self.sent(lambda: self._arrive(commit, request))

    def sent(self, arrive: Callable[[], bool], late_max_s: float | None = None) -> Answer:
        """Send a request once, with the faults of this table.

        Args:
            arrive: Changes the table when the request arrives, or returns that it refuses.
            late_max_s: How late it arrives at most; None: as late as any.
        """
        self.require_answer()
        world, faults = self.world, self.faults
        if world.chance(faults.late):
            self.seen["send: late"] += 1
            if world.chance(0.7):
                late_s = world.random() * (late_max_s or faults.late_max_s)
                self._process.call_later(late_s, self._arrive_late, arrive)
            raise UnavailableError("simulated: the request is on its way")
        if world.chance(faults.lost / 2):
            self.seen["send: request lost"] += 1
            raise UnavailableError("simulated: the request is lost")
        if world.chance(faults.false / 2):
            self.seen["send: false commit"] += 1
            return Answer.COMMITTED
        is_committed = arrive()
        if world.chance(faults.lost / 2):
            self.seen["send: answer lost"] += 1
            raise UnavailableError("simulated: the answer is lost")
        if is_committed and world.chance(faults.false / 2):
            self.seen["send: false conflict"] += 1
            return Answer.CONFLICT
        return Answer.COMMITTED if is_committed else Answer.CONFLICT

    @staticmethod
    def _arrive_late(arrive: Callable[[], bool]) -> None:
        with suppress(RefusedError):  # The sender hears nothing more of it.
            arrive()

    def drop_requests(self) -> None:
        """Let what is on its way never arrive."""
        self._process.alive = False
        self._process = self.world.process("log of the table")

    def _arrive(self, commit: Commit, request: Any) -> bool:
        before = self.state.committed
        after = self.model._put(self.state, request)
        if after is None:
            self.seen["send: conflict"] += 1
            return False
        names = {name for name, _ in after.committed - before}
        if not commit.attempt:
            after = after._replace(committed=before)
        elif commit.attempt in names:
            self.committed[commit.attempt] = len(commit.outputs)
            self.adopted.update(output.path for output in commit.outputs)
            if self.is_delta and commit.sequence < after.schema_at < request[0]:
                self.world.fail(AssertionError(f"{commit.attempt} is above a change of the schema"))
        self.seen["commits with later deletes"] += bool(commit.deletes)
        self.world.tell("table", "commit arrives", attempt=commit.attempt)
        self._become(after, "own commits" if commit.attempt else "quiet versions")
        return True

    def _request(self, commit: Commit, sender: int) -> Any:
        """Return what is sent, after the delete files for it were stored."""
        removed = commit.removed
        if self.is_delta:
            removed = tuple(replace(file, deletes=file.entry) for file in removed)
        verdict = Verdict(commit.outputs, removed, commit.deletes)
        step = SimpleNamespace(head=commit.base, verdict=verdict)
        tries = self._tries.setdefault((sender, commit.attempt), [])
        attempt = Attempt(
            f"{commit.attempt}.{sender}",
            commit.sequence,
            publishing=0,
            step=0,
            tries=((0, frozenset()),) * len(tries),
        )
        if self.is_delta:
            number, version = self.model._request(attempt, step)
            return number, version._replace(attempt=commit.attempt)
        base, snap = self.model._request(attempt, step)
        named = {item.name for item in base.positions}
        written = frozenset(item.name for item in snap.positions) - named
        last = commit.base.last_version
        gone = frozenset().union(*(names for version, names in tries if version < last)) - named
        self.state = self.state._replace(stored=self.state.stored - gone)
        tries.append((last, written))
        self._born(written)
        return base, snap._replace(attempt=commit.attempt)


@dataclass
class SimSource:
    """Access of one process to the table; satisfies `TableSource`."""

    site: LakeSite
    number: int
    operations: tuple[str, ...] = ()

    def load(self, known: Snapshot | None = None) -> Snapshot:
        self.site.require_answer()
        head = self.site.load(known)
        return known if known is not None and known == head else head

    def positions(self, file: LakeFile) -> Positions:
        self.site.require_answer()
        return self.site.positions(file)

    def matched(self, file: LakeFile) -> Positions:
        self.site.require_answer()
        return self.site.matched(file)

    def stored_columns(self, snapshot: Snapshot, file: LakeFile, schema: pa.Schema) -> pa.Schema:
        return schema

    def look(self, attempt: str, outputs: Collection[str], since: int) -> Sighting:
        self.site.require_answer()
        return self.site.look(attempt, outputs, since)

    def send(self, commit: Commit) -> Answer:
        return self.site.send(commit, self.number)

    def require_conditions(self, name: str) -> None:
        self.site.require_answer()

    def statistics(self, snapshot: Snapshot, footer: FileMetaData) -> str:
        raise AssertionError("the engine of a simulation writes no footers")

    def survey(self, operation: str, snapshot: Snapshot, rules: MaintenanceRules) -> LakeSurvey:
        raise RefusedError("simulated: another engine maintains the table")

    def carry_out(self, survey: LakeSurvey, snapshot: Snapshot, rules: MaintenanceRules) -> Freed:
        raise RefusedError("simulated: another engine maintains the table")

    def files(self, bucket: str) -> None:
        """Lend nothing."""

    def delete(self, paths: Sequence[str]) -> None:
        self.site.require_answer()
        self.site.delete(paths)
