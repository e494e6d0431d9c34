"""What an older release left: its store, its tables and a backup, as `record_older_store` kept it.

The recorded tables are in a folder below `/tmp`. They are unpacked into another one whose path has
the same length, and the path is replaced in all values: most of them have the length of a text.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from neve.client import Client
from tests.support.installed import unpack
from tests.support.record_older_store import PIN, ROOT_PREFIX, TARGET, visible

Rows = dict[str, list[dict[str, Any]]]
"""By the name of a table."""


@dataclass(frozen=True)
class OlderStore:
    """The recorded tables, unpacked; a Redis gets their metadata by `load`."""

    folder: Path
    root: Path
    """Folder of the tables."""
    facts: dict[str, Any]

    @property
    def archive(self) -> Path:
        """The backup of all tables."""
        return self.folder / "backup.neve"

    @property
    def allowed(self) -> tuple[str, ...]:
        """Locations that a service must allow."""
        return (self.root.as_uri(),)

    def location(self, table: str) -> str:
        """Return the location of a table."""
        return (self.root / table).as_uri()

    def load(self, port: int) -> None:
        """Put all keys into a Redis that is empty."""
        recorded = json.loads((self.folder / "keys.json").read_text())
        with redis.Redis(port=port) as link:
            link.flushall()
            for name, key in recorded.items():
                self._restore(link, self._moved(name.encode()), key)

    @property
    def pin(self) -> tuple[str, str]:
        """Key and field of the pin of `readings`."""
        return f"neve:{{{self.facts['pinned']}}}:pins", PIN

    def check_rows(self, client: Client, changed: Rows | None = None) -> None:
        """Assert that a reader sees in each table what was recorded.

        Args:
            client: Of a service.
            changed: Rows of the tables that have others than at the end of the record.
        """
        for table, rows in (self.facts["rows"] | (changed or {})).items():
            assert visible(client, table) == rows, table

    def _restore(self, link: redis.Redis, name: bytes, key: dict[str, Any]) -> None:
        content = key["content"]
        match key["type"]:
            case "string":
                link.set(name, self._value(content))
            case "hash":
                link.hset(name, mapping={self._value(k): self._value(v) for k, v in content})
            case "set":
                link.sadd(name, *map(self._value, content))
            case "zset":
                link.zadd(name, {self._value(member): score for member, score in content})
            case "stream":
                for entry, fields in content:
                    values = {self._value(k): self._value(v) for k, v in fields}
                    link.xadd(name, values, id=self._value(entry))
        if key["life_ms"] > 0:
            link.pexpire(name, key["life_ms"])

    def _value(self, stored: str) -> bytes:
        return self._moved(base64.b64decode(stored))

    def _moved(self, value: bytes) -> bytes:
        return value.replace(self.facts["root"].encode(), str(self.root).encode())


def recorded_facts() -> dict[str, Any]:
    """Return what is recorded of the tables and of the release."""
    with tarfile.open(TARGET) as tar:
        facts = tar.extractfile("facts.json")
        assert facts is not None
        return dict(json.load(facts))


@contextmanager
def older_store() -> Iterator[OlderStore]:
    """Unpack the record until the end of the block."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix=ROOT_PREFIX, dir="/tmp") as root,
    ):
        unpack(TARGET, Path(folder))
        facts = recorded_facts()
        store = OlderStore(Path(folder), Path(root), facts)
        assert len(str(store.root)) == len(facts["root"]), facts["root"]
        shutil.copytree(Path(folder) / "tables", root, dirs_exist_ok=True)
        for path in Path(root).rglob("*.*"):
            if path.suffix != ".parquet" and path.is_file():
                _keeping_time(path, store._moved)
        yield store


def _keeping_time(path: Path, moved: Callable[[bytes], bytes]) -> None:
    """Replace the content of a file; its age says what a rebuild may think of it."""
    times = path.stat()
    path.write_bytes(moved(path.read_bytes()))
    os.utime(path, (times.st_atime, times.st_mtime))
