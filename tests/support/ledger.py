"""An oracle that shares no code with the service: what was written, in plain Python dicts.

A `Ledger` is told every row that a table was given, and says which rows a reader must
see. `LedgerTable` is a table of the service that keeps its ledger, and compares both.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.model.location_identity import SERVICE_FOLDER
from common.parquet.location import open_location
from neve.api import Added
from neve.client import Client
from tests.support.living_folder import files_below, stored_below
from tests.support.readers import check_table

KEYED = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("gone", pa.bool_(), nullable=False),
        pa.field("text", pa.string()),
    ]
)
BAG = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())])
TEXT_BYTES = 50
"""A row's text is so many random bytes, in hex: it compresses to half, and slowly."""
MARK = b"PAR1"
"""Begins and ends a Parquet file."""


class Ledger(Protocol):
    """What a table was given, and what a reader must see."""

    def note(self, rows: pa.Table) -> None:
        """Note rows that the table was given."""

    def check(self, found: pa.Table) -> None:
        """Assert that a scan has returned exactly what it must."""


class KeyedLedger:
    """Per key the row of the highest version; a tombstone wins against its equals."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, bool, str]] = {}

    def note(self, rows: pa.Table) -> None:
        """Note rows that the table was given."""
        for key, version, gone, text in _rows(rows, ("k", "v", "gone", "text")):
            known = self._newest.get(key)
            if known is None or known[:2] < (version, gone):
                self._newest[key] = (version, gone, text)

    def check(self, found: pa.Table) -> None:
        """Assert that a scan has returned exactly what it must."""
        wanted = {k: (v, text) for k, (v, gone, text) in self._newest.items() if not gone}
        seen = {k: (v, text) for k, v, text in _rows(found, ("k", "v", "text"))}
        assert found.num_rows == len(seen), f"{found.num_rows - len(seen)} keys are doubled"
        _same(Counter(wanted.items()), Counter(seen.items()))


class BagLedger:
    """Every row, as often as it was given."""

    def __init__(self) -> None:
        self._rows: Counter[Any] = Counter()

    def note(self, rows: pa.Table) -> None:
        """Note rows that the table was given."""
        self._rows.update(_rows(rows, ("n", "text")))

    def check(self, found: pa.Table) -> None:
        """Assert that a scan has returned exactly what it must."""
        _same(self._rows, Counter(_rows(found, ("n", "text"))))


def _rows(table: pa.Table, names: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _same(wanted: Counter[Any], seen: Counter[Any]) -> None:
    lost, extra = wanted - seen, seen - wanted
    some = [sorted(each.elements())[:3] for each in (lost, extra)]
    assert not lost, f"{lost.total()} rows are lost ({extra.total()} too many): {some}"
    assert not extra, f"{extra.total()} rows are too many: {some}"


def texts(count: int, seed: int) -> list[str]:
    """Return random texts, the same ones for the same seed."""
    whole, length = np.random.default_rng(seed).bytes(count * TEXT_BYTES).hex(), 2 * TEXT_BYTES
    return [whole[at : at + length] for at in range(0, len(whole), length)]


def keyed_rows(keys: Iterable[int], version: int, *, gone: bool = False) -> pa.Table:
    """Return one row per key."""
    keys = list(keys)
    count = len(keys)
    columns = [keys, [version] * count, [gone] * count, texts(count, version)]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, KEYED, strict=True)], KEYED)


def bag_rows(count: int, seed: int) -> pa.Table:
    """Return rows whose numbers repeat."""
    return pa.table([pa.array([n % 1000 for n in range(count)]), texts(count, seed)], schema=BAG)


class LedgerTable:
    """A table of the service below a folder of its own, and the ledger of its rows."""

    def __init__(
        self, client: Client, folder: Path, *, keyed: bool, stem: str = "t", **more: Any
    ) -> None:
        """Create it; `more` goes to `create_table`."""
        self.client = client
        self.name = f"{stem}-{secrets.token_hex(3)}"
        self.location = folder / self.name
        self.location.mkdir()
        self.ledger: Ledger = KeyedLedger() if keyed else BagLedger()
        self._numbers = itertools.count()
        if keyed:
            more = {"key": ["k"], "version_column": "v", "tombstone_column": "gone", **more}
        schema = KEYED if keyed else BAG
        # What is replaced is deleted once a manifest has said so: that is waited for in tests.
        more["settings"] = {"manifest_interval_s": "1s", **more.get("settings", {})}
        if not keyed:
            # The usual planner of such a table waits until there are more files than tests write.
            more["settings"].setdefault("planner", "ratio")
        self.id = client.create_table(self.name, self.location.as_uri(), schema=schema, **more).id

    def write(self, *parts: pa.Table) -> list[str]:
        """Write a file per part and return the paths; the table does not know them yet."""
        paths = [f"in-{next(self._numbers):03}.parquet" for _ in parts]
        for path, rows in zip(paths, parts, strict=True):
            pq.write_table(rows, self.location / path)
        return paths

    def add(self, *parts: pa.Table, call: str | None = None) -> Added:
        """Write a file per part and add all of them in one call."""
        added = self.client.add_files(self.name, self.write(*parts), call=call)
        self.note(*parts)
        return added

    def append(self, rows: pa.Table) -> Added:
        """Append rows."""
        added = self.client.append(self.name, rows)
        self.note(rows)
        return added

    def note(self, *parts: pa.Table) -> None:
        """Note rows that the table has accepted."""
        for rows in parts:
            self.ledger.note(rows)

    def listed(self) -> set[str]:
        """Return the paths of the table's files."""
        return {file.path for file in self.client.files(self.name)}

    def stored(self) -> set[str]:
        """Return the paths of all files below the location, but for the service's own notes."""
        return stored_below(self.location)

    def is_being_written(self, attempt: str) -> bool:
        """Return whether an attempt has begun to write its output and not written its end."""
        for path in files_below(self.location / SERVICE_FOLDER):
            if attempt not in path.name:
                continue
            with suppress(FileNotFoundError):
                written = path.read_bytes()
                return len(written) > len(MARK) and not written.endswith(MARK)
        return False

    def check_rows(self) -> None:
        """Assert that a scan sees what the ledger says, and every reader all rows of the files."""
        self.ledger.check(self.client.scan(self.name))
        check_table(self.client, self.name, open_location(self.location.as_uri()))

    def commits(self) -> list[tuple[str, ...]]:
        """Return the inputs of every commit, and assert that no file was replaced twice.

        An attempt that has moved its files has replaced none.
        """
        ended = [each for each in self.client.history(self.name) if each.end == "committed"]
        done = [each for each in ended if each.outputs != each.inputs]
        inputs = Counter(path for each in done for path in each.inputs)
        assert not [path for path, times in inputs.items() if times > 1], done
        return [each.inputs for each in done]
