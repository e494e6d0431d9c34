"""What the keys of a simulated server say, read anew where a write has touched them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from common.metadata.codec.table import (
    OUTCOME,
    STATE,
    unpack_request,
    unpack_state,
)
from common.metadata.codec.tablet import (
    BOUNDS,
    OPERATION,
    SELECTION,
    unpack_file,
    unpack_record,
    unpack_running,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import Command
from common.model.file import DataFile
from common.model.request import Request
from common.model.table import TableState
from common.model.tablet import Bounds, Operation, Record, Reservation, Selection, TabletId
from coordinator.core.assignment import TAKER_LEFT
from tests.support.memory_store import MemoryKeyspace, to_bytes

PARTS = ("bounds", "files", "running", "selection", "waiting", "done", "operation")


@dataclass(frozen=True)
class View:
    """A tablet's keys, decoded."""

    bounds: Bounds | None = None
    raw: dict[bytes, bytes] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    running: dict[str, Reservation] = field(default_factory=dict)
    selection: Selection | None = None
    waiting: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    operation: Operation | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing of the tablet is left."""
        held = (self.files, self.running, self.selection, self.waiting, self.done, self.operation)
        return not any(held)


NOTHING = View()


@dataclass
class Touched:
    """What a write has touched, in the order in which it did."""

    tablets: dict[TabletId, dict[str, None]] = field(default_factory=dict)
    requests: dict[tuple[str, str], None] = field(default_factory=dict)
    tables: dict[str, None] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    """How attempts ended."""


class Views:
    """Decodes keys; remembers of each key what it belongs to."""

    def __init__(self, memory: MemoryKeyspace) -> None:
        self._memory = memory
        self._known: dict[str, tuple[str, Any, str]] = {}
        self._files: dict[tuple[bytes, bytes], DataFile] = {}

    def touched(self, effects: Sequence[Command]) -> Touched:
        """Return what some effects have touched."""
        found = Touched()
        for effect in effects:
            if effect[0] == "XADD":
                continue
            if effect[0] == "SET" and ":outcome:" in str(effect[1]):
                found.ends.append(_end(str(effect[1]), to_bytes(effect[2])))
            for key in effect[1:] if effect[0] == "DEL" else effect[1:2]:
                self._note(str(key), found)
        return found

    def all_keys(self) -> Touched:
        """Return everything that there is or was."""
        found = Touched()
        for key in [*self._known, *self._memory.values.keys()]:
            self._note(key, found)
        return found

    def _note(self, key: str, found: Touched) -> None:
        kind, of, part = self._known.get(key) or self._learn(key)
        if kind == "tablet":
            if part in PARTS:
                found.tablets.setdefault(of, {})[part] = None
        elif kind == "request":
            found.requests[of] = None
        elif kind == "table":
            found.tables[of] = None

    def _learn(self, key: str) -> tuple[str, Any, str]:
        table = key.partition("{")[2].partition("}")[0]
        rest = key.partition("}:")[2].split(":")
        learnt: tuple[str, Any, str] = ("other", None, "")
        if rest[0] == "tablet":
            learnt = ("tablet", TabletId.parse(table, rest[1]), rest[2])
        elif rest[0] == "request":
            learnt = ("request", (table, rest[1]), "")
        elif rest[0] == "table":
            learnt = ("table", table, "")
        self._known[key] = learnt
        return learnt

    def tablet(self, tablet: TabletId, before: View, parts: Sequence[str]) -> View:
        """Return a view in which some parts are read anew."""
        values, keys = self._memory.values, TabletKeys.of(tablet)
        new: dict[str, Any] = {}
        for part in parts:
            key = getattr(keys, part)
            found = values.find(key)
            match part:
                case "files":
                    raw = dict(found or {})
                    new["raw"], new["files"] = raw, self._decoded(raw)
                case "running":
                    new[part] = unpack_running(key, found or {})
                case "bounds":
                    new[part] = found and BOUNDS.unpack(key, found)
                case "selection":
                    new[part] = found and SELECTION.unpack(key, found)
                case "operation":
                    new[part] = found and OPERATION.unpack(key, found)
                case _:
                    new[part] = tuple(sorted(name.decode() for name in found or ()))
        return replace(before, **new)

    def _decoded(self, raw: dict[bytes, bytes]) -> dict[str, DataFile]:
        files = {}
        for path, data in raw.items():
            file = self._files.get((path, data))
            if file is None:
                file = self._files[path, data] = unpack_file("files", path, data)
            files[file.path] = file
        return files

    def request(self, table: str, request: str) -> Request | None:
        stored = self._memory.values.find(TableKeys(table).request(request))
        return unpack_request("request", table, request, stored or {})

    def record(self, tablet: TabletId) -> Record:
        key = TabletKeys.of(tablet).record
        return unpack_record(key, self._memory.values.hash(key))

    def state(self, table: str) -> TableState | None:
        stored = self._memory.values.find(TableKeys(table).table)
        return unpack_state("table", stored[STATE.encode()]) if stored else None


def _end(key: str, stored: bytes) -> str:
    """Return how an attempt ended; of those that were lost, some had never begun."""
    outcome = OUTCOME.unpack(key, stored, attempt=key.rpartition(":")[2])
    return "too late" if outcome.cause == TAKER_LEFT else str(outcome.end.value)
