"""The scenario's table in a service, seen from outside: by HTTP, and in the store."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from common.metadata.redis import connect
from common.model.tablet import PLUS_INFINITY, Tablet, TabletId
from common.settings import StoreSettings
from neve.api import RequestTablet
from neve.client.requests import Request
from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.scenario import INPUTS_MAX, NAMES, SPANS, Names, merged
from tests.support.scripted import gate_of, span_of
from tests.support.stack import Service

GROUP = "default"
Job = tuple[str, Names]
"""Kind, and the inputs."""


class Stage:
    """A table of one tablet whose every job waits at its gate; files go by the scenario's names."""

    def __init__(self, service: Service, script: str) -> None:
        """Create the table, paused; `script` is the service whose planner follows one."""
        self.service, self.client = service, service.client
        self.gates = Path(tempfile.mkdtemp(prefix="gates-", dir=service.folder))
        settings = {
            "service": script,
            "max_files": INPUTS_MAX,
            "configurer": "gated",
            "configurer_options": {"gates": str(self.gates)},
        }
        self.table = LedgerTable(
            service.client, service.folder, keyed=True, stem=script, paused=True, settings=settings
        )

    # ------------------------------------------------------------- acts

    def add(self, names: Names) -> None:
        """Add files in one call: in each a row per key that its name stands for."""
        parts = {
            f"{name}.parquet": keyed_rows(range(first, last + 1), first)
            for name, (first, last) in ((name, SPANS[name]) for name in sorted(names))
        }
        for path, rows in parts.items():
            pq.write_table(rows, self.table.location / path)
        self.client.add_files(self.table.name, list(parts))
        self.table.note(*parts.values())

    def open(self, kind: str, *jobs: Names) -> None:
        """Let jobs go on."""
        for inputs in jobs:
            (self.gates / gate_of(kind, merged(inputs))).touch()

    def ask(self) -> Request:
        """Ask for a compaction of everything; its selector waits at a gate."""
        gate = str(self.gates / "selector")
        return self.client.compact(self.table.name, selector=("gated", {"gate": gate}))

    def let_select(self) -> None:
        """Let the selector answer."""
        (self.gates / "selector").touch()

    # ------------------------------------------------------------ views

    def tablet(self) -> Tablet:
        """Return the tablet as the store has it."""

        async def read() -> Tablet | None:
            store = connect(StoreSettings(url=self.service.stack.redis_url))
            try:
                return await store.tablet(TabletId(self.table.id, PLUS_INFINITY))
            finally:
                await store.close()

        found = asyncio.run(read())
        assert found is not None
        return found

    def files(self) -> Names:
        """Return the files of the tablet."""
        return frozenset(NAMES[span_of([file])] for file in self.tablet().files.values())

    def selection(self) -> Names:
        """Return the selected files."""
        tablet = self.tablet()
        chosen = () if tablet.selection is None else tablet.selection.files
        return self._named(tablet, chosen)

    def running(self) -> Counter[Job]:
        """Return the reserved jobs; the coordinator tells of the same attempts."""
        tablet = self.tablet()
        entries = tablet.running.values()
        told = {job.attempt for job in self.client.jobs() if job.table == self.table.name}
        if told != tablet.running.keys():
            return Counter()  # It hears of them a moment later.
        return Counter((entry.kind.value, self._named(tablet, entry.inputs)) for entry in entries)

    def queued(self) -> Counter[Job]:
        """Return the jobs that wait in the queue."""
        tablet = self.tablet()
        jobs = [job for job in self.client.queue(GROUP) if job.table == self.table.name]
        return Counter((job.kind, self._named(tablet, job.files)) for job in jobs)

    def left(self) -> dict[str, str]:
        """Return why files are in no job, as `explain` tells it."""
        tablet = self.tablet()
        (told,) = self.client.explain(self.table.name)
        known = tablet.files
        return {NAMES[span_of([known[path]])]: why for path, why in told.left.items()}

    def part(self, wish: Request) -> RequestTablet:
        """Return how far a request is in the tablet."""
        (part,) = wish.status().tablets
        return part

    def ends(self) -> Counter[tuple[str, int]]:
        """Return how often attempts over so many files have ended so; no file went twice."""
        assert self.table.commits()
        return Counter(
            (each.end, len(each.inputs)) for each in self.client.history(self.table.name)
        )

    def _named(self, tablet: Tablet, paths: tuple[str, ...]) -> Names:
        files = tablet.files
        return frozenset(NAMES[span_of([files[path]])] for path in paths if path in files)

    # ------------------------------------------------------------ waits

    def until(self, what: str, true: Callable[[], object]) -> None:
        """Return when something is true."""
        self.service.wait(what, true, table=self.table)

    def until_running(self, *jobs: Job) -> None:
        """Return when exactly these jobs run."""
        self.until(f"{len(jobs)} jobs that run", lambda: self.running() == Counter(jobs))

    def until_queued(self, *jobs: Job) -> None:
        """Return when exactly these jobs are queued."""
        self.until(f"{len(jobs)} jobs in the queue", lambda: self.queued() == Counter(jobs))

    def until_files(self, names: Names) -> None:
        """Return when the tablet has exactly these files, and the client lists them."""
        assert SPANS.keys() >= names
        self.until(f"{len(names)} files", lambda: self.files() == names)
        assert self.table.listed() == self.tablet().files.keys()
