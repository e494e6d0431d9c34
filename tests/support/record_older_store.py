"""Record what an older release leaves in Redis, in files and in a backup, for `make test`.

    python -m tests.support.record_older_store 61053eeb

builds the wheel of that commit, runs its stack, and writes `tests/data/upgrade/store.tar.xz`:

    keys.json     all of Redis: name → life, type, content
    facts.json    what a reader sees of each table, and the ids of what is under way
    backup.neve   an archive of all tables
    tables/       their folders

At the end, every table has garbage, and its manifest; one attempt of the only compactor runs and
will never end; a request has selected its files and waits for that compactor; a pin lasts for
twenty years. The record can be read on any Redis, and its tables in any folder whose path is as
long as the recorded one: `tests.support.older_store`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis

TARGET = Path(__file__).parents[1] / "data" / "upgrade" / "store.tar.xz"
ROOT_PREFIX = "neve-older-"
PIN = "reader-1"
YEARS_20_S = 20 * 365 * 86_400.0
WAIT_MAX_S = 300.0
OFTEN = {"manifest_interval_s": "1s", "planner": "ratio"}
KEYED = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("gone", pa.bool_(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("text", pa.string()),
    ]
)
BAG = pa.schema([pa.field("day", pa.int64(), nullable=False), pa.field("text", pa.string())])
EXPIRED, LIVES = datetime(1975, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
KEYED_OPTIONS = {"schema": KEYED, "key": ["k"], "version_column": "v", "tombstone_column": "gone"}
TABLES: dict[str, dict[str, Any]] = {
    "users": {**KEYED_OPTIONS, "splits": ["50"]},
    "sessions": {**KEYED_OPTIONS, "time_column": "at", "settings": {"ttl_s": "14600d"}},
    "orders": {**KEYED_OPTIONS, "splits": ["50"]},
    "visits": {"schema": BAG, "partition_by": ["day"]},
    "readings": {"schema": BAG},
}


def rows_of(table: str, version: int) -> pa.Table:
    """Return the rows of an append: newer rows of keys, tombstones and expired rows among them."""
    if TABLES[table]["schema"] is BAG:
        days = [n % 2 for n in range(20)]
        return pa.table([days, [f"{table} {version} {n}" for n in range(20)]], schema=BAG)
    keys = range(version * 10, version * 10 + 60)
    columns = [
        keys,
        [version] * 60,
        [k % 10 == version for k in keys],
        [EXPIRED if k % 3 == 0 else LIVES for k in keys],
        [f"{table} {version} {k}" for k in keys],
    ]
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, KEYED, strict=True)], schema=KEYED
    )


def wait(what: str, true: Callable[[], Any]) -> Any:
    """Return the first answer that is true."""
    end_s = time.monotonic() + WAIT_MAX_S
    while not (answer := true()):
        assert time.monotonic() < end_s, f"no {what}"
        time.sleep(0.2)
    return answer


# ---- With the older release


def record(root: Path, store: str, target: Path) -> None:
    """Run the older release's stack and write the archive.

    Args:
        root: Folder of the tables.
        store: URL of a Redis of its own, at which everything is allowed.
        target: The archive.
    """
    from common.settings import (
        CompactorSettings,
        CoordinatorSettings,
        GatewaySettings,
        Settings,
        StoreSettings,
    )
    from neve.client import Client
    from neve.local import LocalStack, StackOptions
    from neve.local.processes import processes_of_stack

    settings = Settings(
        coordinator=CoordinatorSettings(tick_s=0.2, garbage_grace_s=86_400.0),
        compactor=CompactorSettings(slots=1, executor_memory="512m", driver_memory="512m"),
        gateway=GatewaySettings(port=0),
        store=StoreSettings(url=store),
        sources={"store.url": "this program"},
    )
    options = StackOptions(compactors=1, settings=settings, allow=(root.as_uri(),))
    with (
        tempfile.TemporaryDirectory() as home,
        LocalStack.start(home=Path(home), options=options) as stack,
    ):
        client = Client(stack.gateway_url, token=stack.token)
        wait("compactor", lambda: any(c.ready for c in client.compactors()))
        archive = root.with_name(f"{root.name}-backup.neve")
        facts = make_tables(client, root, store, archive)
        drivers = [
            process
            for process in processes_of_stack(stack.state.mark, stack.state.processes)
            if "compactor.spark.child" in process.cmdline()
        ]
        for driver in drivers:
            driver.send_signal(signal.SIGSTOP)
        facts |= leave_work(client)
        facts["rows"] = {name: visible(client, name) for name in TABLES}
        facts |= {"root": str(root), "settings": sent_settings(settings)}
        keys = dump(store)
        parts = {"keys.json": keys, "facts.json": facts}
        write(target, parts, archive, root)


def sent_settings(settings: Any) -> dict[str, Any]:
    """Return settings as actors get them, and their values in the order of the fields."""
    values = json.loads(json.dumps(asdict(settings), default=str))
    return {"pickle": text(pickle.dumps(settings)), "values": values}


def make_tables(client: Any, root: Path, store: str, archive: Path) -> dict[str, Any]:
    """Make tables with a history, a backup of them, a pin and a call's mark."""
    from neve import new_call_id

    for name, options in TABLES.items():
        (root / name).mkdir()
        settings = OFTEN | options.get("settings", {})
        location = (root / name).as_uri()
        client.create_table(name, location, **{**options, "settings": settings})
        for version in range(4):
            client.append(name, rows_of(name, version))
        client.wait_until_at_rest(name)
        wait(f"commit in {name}", lambda name=name: client.history(name))
    pinned = next(table.id for table in client.tables() if table.name == "readings")
    asyncio.run(pin(store, pinned))
    call = new_call_id()
    for version in range(4, 8):
        client.append("readings", rows_of("readings", version), call=call if version == 4 else None)
    client.wait_until_at_rest("readings")
    for name in TABLES:
        wait(f"manifest of {name}", (root / name / "_neve" / "manifest" / "latest.json").exists)
    client.backup(archive)
    return {
        "backed_up": {name: visible(client, name) for name in TABLES},
        "call": call,
        "pinned": pinned,
    }


def leave_work(client: Any) -> dict[str, Any]:
    """Have an attempt run that will never end, and a request wait for the same compactor."""
    for version in range(4, 8):
        client.append("users", rows_of("users", version))
    (job,) = wait("running attempt", client.jobs)
    client.append("orders", rows_of("orders", 4))
    request = client.compact("orders", delete_where="k < 30")
    wait("selection", lambda: any(t.selected for t in client.tablets("orders")))
    return {"attempt": job.attempt, "request": request.id}


async def pin(store: str, table: str) -> None:
    """Pin the files of a table for longer than this record will be used."""
    from common.metadata.changes import PinFiles
    from common.metadata.redis import connect
    from common.settings import StoreSettings

    connection = connect(StoreSettings(url=store))
    await connection.apply(PinFiles(table=table, pin=PIN, lease_s=YEARS_20_S))
    await connection.close()


def visible(client: Any, name: str) -> list[dict[str, Any]]:
    """Return what a reader sees of a table."""
    return sorted(client.scan(name).drop_columns(hidden(name)).to_pylist(), key=json.dumps)


def hidden(table: str) -> list[str]:
    """Return the columns that need no comparison."""
    return [] if TABLES[table]["schema"] is BAG else ["gone", "at"]


def dump(url: str) -> dict[str, Any]:
    """Return all keys of a Redis as plain values."""
    with redis.Redis.from_url(url) as link:
        return {name.decode(): content_of(link, name) for name in sorted(link.keys("*"))}


def content_of(link: redis.Redis, name: bytes) -> dict[str, Any]:
    """Return the life, type and content of a key."""
    kind = link.type(name).decode()
    content: Any
    match kind:
        case "string":
            content = text(link.get(name))
        case "hash":
            content = [[text(k), text(v)] for k, v in sorted(link.hgetall(name).items())]
        case "set":
            content = [text(member) for member in sorted(link.smembers(name))]
        case "zset":
            content = [[text(m), score] for m, score in link.zrange(name, 0, -1, withscores=True)]
        case "stream":
            entries = link.xrange(name)
            content = [[text(i), [[text(k), text(v)] for k, v in e.items()]] for i, e in entries]
        case _:
            raise AssertionError(f"{name!r} is a {kind}")
    return {"life_ms": link.pttl(name), "type": kind, "content": content}


def text(data: bytes) -> str:
    """Return bytes as text of one character each."""
    return base64.b64encode(data).decode()


def write(target: Path, parts: dict[str, Any], archive: Path, root: Path) -> None:
    """Write the archive of the record; owners and their names stay out of it."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:xz", preset=9) as tar, tempfile.TemporaryDirectory() as folder:
        for name, value in parts.items():
            path = Path(folder) / name
            path.write_text(json.dumps(value))
            tar.add(path, name, filter=plain)
        tar.add(archive, "backup.neve", filter=plain)
        tar.add(root, "tables", filter=plain)
    archive.unlink()


# ---- With the checkout


def main() -> None:
    """Build the release and run this program with it."""
    if sys.argv[1] == "--with-older":
        record(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
        return
    from tests.support.installed import installation
    from tests.support.redis_server import running

    release = installation(sys.argv[1])
    with (
        running() as server,
        tempfile.TemporaryDirectory(prefix=ROOT_PREFIX, dir="/tmp") as root,
    ):
        # Without the program's own folder: its modules are called like others.
        command = [sys.executable, "-P", __file__, "--with-older", root, server.url, str(TARGET)]
        subprocess.run(command, env=release.environ(), cwd=root, check=True)


if __name__ == "__main__":
    main()
