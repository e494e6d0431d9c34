"""The ledger of a run: a file outside the service, forced to disk before and after each call.

A line per entry. What readers must see is worked out from the entries, by `Truth`;
`replayed` works it out from the file alone, as somebody would who came later.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.chaos.batches import Batch, Kind
from tests.chaos.truth import Truth, Wish


class Journal:
    """Appends entries; may be used by several threads."""

    def __init__(self, path: Path, kinds: Sequence[Kind]) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._moment = 0
        self._truths = {kind.name: Truth(kind) for kind in kinds}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def moment(self) -> int:
        """Return a moment after all entries so far."""
        with self._lock:
            self._moment += 1
            return self._moment

    def note(self, table: str, what: str, **fields: Any) -> int:
        """Write an entry, and return when it is on disk."""
        with self._lock:
            self._moment += 1
            entry = {"moment": self._moment, "table": table, "what": what, **fields}
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            take(self._truths[table], entry)
            return self._moment

    def intend(self, table: str, batch: Batch, call: str) -> None:
        """Note a batch before the first call that brings it."""
        self.note(table, "intended", call=call, batch=asdict(batch))

    def check(self, table: str, found: pa.Table, began: int) -> list[str]:
        """Return what is wrong with a scan that has ended just now."""
        ended = self.moment()
        with self._lock:
            return self._truths[table].check(found, began, ended)


def take(truth: Truth, entry: dict[str, Any]) -> None:
    """Tell a truth what an entry says."""
    moment = entry["moment"]
    match entry["what"]:
        case "intended":
            truth.intend(Batch(**entry["batch"]), moment)
        case "acknowledged":
            truth.acknowledge(entry["number"], moment)
        case "asked":
            truth.ask(Wish(**entry["wish"], asked=moment))
        case "ended":
            truth.end(entry["number"], entry["state"], moment)
        case other:
            raise AssertionError(f"no such entry: {other}")


def replayed(path: Path, kinds: Sequence[Kind]) -> tuple[dict[str, Truth], int]:
    """Return what the file says of each table, and a moment after all of it."""
    truths = {kind.name: Truth(kind) for kind in kinds}
    moment = 0
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            moment = entry["moment"]
            take(truths[entry["table"]], entry)
    return truths, moment + 1
