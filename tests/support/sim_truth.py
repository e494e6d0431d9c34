"""The truth about rows and files, against which every step of a simulation is held.

Files carry sets of row ids. After every write to the store the invariants of the
metadata protocol that concern rows, files, reservations and readers are asserted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import InputError
from common.metadata.commands import Command
from common.metadata.keys import TabletKeys
from common.metadata.memory import MemoryStore
from common.metadata.memory_keyspace import MemoryKeyspace
from common.model.file import DataFile
from common.model.tablet import Tablet, TabletId
from tests.support.sim_tasks import run_now

ROW_BYTES = 1000
"""Size of a row; nothing shrinks when it is merged."""


@dataclass
class Disk:
    """Files by path and the rows in them; deleted ones are remembered as such."""

    files: dict[str, frozenset[int]] = field(default_factory=dict)
    deleted: dict[str, None] = field(default_factory=dict)

    def write(self, path: str, rows: frozenset[int]) -> None:
        assert path not in self.files, f"{path} is written twice"
        assert path not in self.deleted, f"{path} is written again after it was deleted"
        self.files[path] = rows

    def read(self, path: str) -> frozenset[int]:
        if path not in self.files:
            raise InputError(f"simulated: {path} is not there")
        return self.files[path]

    def delete(self, path: str) -> bool:
        if self.files.pop(path, None) is None:
            return False
        self.deleted[path] = None
        return True


@dataclass
class Ledger:
    """What appenders know of one tablet's rows."""

    offered: dict[int, None] = field(default_factory=dict)
    acknowledged: dict[int, None] = field(default_factory=dict)


class Truth:
    """Checks the store against disk and ledgers after every write."""

    def __init__(self, shared: MemoryKeyspace, tablets: Sequence[TabletId]) -> None:
        self.disk = Disk()
        self.ledgers = {tablet: Ledger() for tablet in tablets}
        self.holders: dict[str, str] = {}
        """Attempt → the process that was given it."""
        self.pinned: dict[str, tuple[str, ...]] = {}
        """Pin → files that its reader has listed."""
        self.checks = 0
        self._store = MemoryStore(keyspace=shared)
        self._keys = {tablet: TabletKeys.of(tablet) for tablet in tablets}

    def read(self, tablet: TabletId) -> Tablet:
        """Return a tablet as it is now, by no connection."""
        found = run_now(self._store.tablet(tablet))
        assert isinstance(found, Tablet), tablet
        return found

    def written(self, effects: Sequence[Command]) -> None:
        """Hold the tablets that a write has touched against the truth."""
        for tablet, keys in self._keys.items():
            touched = (keys.files, keys.running)
            if any(len(effect) > 1 and effect[1] in touched for effect in effects):
                self.check(tablet)

    def check(self, tablet: TabletId) -> None:
        """Assert everything that is always true of a tablet."""
        self.checks += 1
        found = self.read(tablet)
        self._check_rows(tablet, found.files)
        held = [path for entry in found.running.values() for path in entry.inputs]
        assert len(held) == len(set(held)), f"{tablet}: a file is in two reservations: {held}"
        gone = sorted(set(held) - found.files.keys())
        assert not gone, f"{tablet}: reserved files do not exist: {gone}"
        self.check_readers()

    def check_readers(self) -> None:
        """Assert that every file which a pinned reader has listed is still there."""
        for pin, paths in self.pinned.items():
            lost = [path for path in paths if path not in self.disk.files]
            assert not lost, f"reader {pin} has lost {lost}"

    def assigned(self, attempt: str, holder: str) -> None:
        """Note who was given an attempt: never two."""
        known = self.holders.setdefault(attempt, holder)
        assert known == holder, f"attempt {attempt} was given to {known} and to {holder}"

    def _check_rows(self, tablet: TabletId, files: Mapping[str, DataFile]) -> None:
        ledger = self.ledgers[tablet]
        missing = sorted(path for path in files if path not in self.disk.files)
        assert not missing, f"{tablet}: visible files are not on disk: {missing}"
        rows = [row for path in files for row in self.disk.files[path]]
        seen = set(rows)
        assert len(rows) == len(seen), f"{tablet}: rows are doubled"
        lost = [row for row in ledger.acknowledged if row not in seen]
        assert not lost, f"{tablet}: acknowledged rows are lost: {lost}"
        strange = sorted(row for row in seen if row not in ledger.offered)
        assert not strange, f"{tablet}: rows from nowhere: {strange}"
        for path, file in files.items():
            held = len(self.disk.files[path])
            assert file.rows == held, f"{tablet}: {path} says {file.rows} rows and holds {held}"
        size = sum(file.size_bytes for file in files.values())
        assert size == ROW_BYTES * len(rows), f"{tablet}: bytes in are not bytes held"
