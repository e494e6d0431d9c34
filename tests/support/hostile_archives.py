"""Archives that lie: taken from a sound one, changed, and given a right digest again."""

from __future__ import annotations

import copy
import http.server
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from neve.client import Client
from neve.recovery.archive import Digest, line_of

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
"""Of the keyed table in a sound archive."""
Line = dict[str, Any]
Edit = Callable[[list[Line]], object]
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 80,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../../x",
    "/etc/passwd",
    "a\0b",
    "a\\b",
    "\ud800",
    "é" * 300,
    [],
    {},
    [["a"]],
    {"a": {"b": [1]}},
    "s3://key:secret@bucket/t",
    "file:///proc/self/root/tmp",
    "00",
    "ff",
    "zz",
)


def lines_of(archive: bytes) -> list[Line]:
    """Return the lines that count, the last one aside."""
    lines = [json.loads(line) for line in archive.splitlines()]
    return [line for line in lines if line["kind"] not in ("progress", "end")]


def archive_of(lines: list[Line]) -> bytes:
    """Return an archive of lines, with the counts and the digest that it should have."""
    digest, made = Digest(), []
    for line in counted(lines):
        made.append(digest.see(json.dumps(line, separators=(",", ":")).encode() + b"\n"))
    return b"".join([*made, line_of("end", lines=digest.lines, sha256=digest.hex)])


def counted(lines: list[Line]) -> Iterator[Line]:
    """Yield lines whose counts of tablets and files are right, as far as they say any."""
    tablets = files = 0
    for number, line in enumerate(lines):
        kind = line.get("kind")
        if kind == "table":
            tablets = files = 0
        if kind == "tablet":
            tablets, own = tablets + 1, 0
            for later in lines[number + 1 :]:
                if later.get("kind") != "file":
                    break
                own += 1
            files += own
            if isinstance(line.get("files"), int):
                line = line | {"files": own}
        if kind == "table-end":
            line = line | {"tablets": tablets, "files": files}
        yield line


def changed(archive: bytes, edit: Edit) -> bytes:
    """Return an archive whose lines somebody has edited in place."""
    lines = copy.deepcopy(lines_of(archive))
    edit(lines)
    return archive_of(lines)


def of_kind(lines: list[Line], kind: str, number: int = 0) -> Line:
    """Return a line of a kind."""
    return [line for line in lines if line["kind"] == kind][number]


def scrambled(archive: bytes, seed: int) -> bytes:
    """Return an archive in which chance has changed some values, lines or bytes."""
    chance = random.Random(seed)
    lines = copy.deepcopy(lines_of(archive))
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(lines))
        match chance.randrange(8):
            case 0:
                lines.insert(place, copy.deepcopy(chance.choice(lines)))
            case 1:
                del lines[place]
            case _:
                spoil(chance, lines[place])
    made = archive_of(lines) if lines else b""
    if chance.random() < 0.1:
        at = chance.randrange(len(made) or 1)
        made = made[:at] + bytes([chance.randrange(256)]) + made[at + 1 :]
    return made


def spoil(chance: random.Random, value: Any) -> None:
    """Change one value somewhere in a tree."""
    if isinstance(value, dict) and value:
        name = chance.choice(sorted(value))
        if isinstance(value[name], dict | list) and value[name] and chance.random() < 0.8:
            spoil(chance, value[name])
        elif chance.random() < 0.15:
            del value[name]
        elif chance.random() < 0.1:
            value[f"{name}x"] = value[name]
        else:
            value[name] = chance.choice(JUNK)
    elif isinstance(value, list) and value:
        place = chance.randrange(len(value))
        if isinstance(value[place], dict | list) and value[place]:
            spoil(chance, value[place])
        else:
            value[place] = chance.choice(JUNK)


@contextmanager
def stranger() -> Iterator[tuple[str, list[str]]]:
    """Run a server of somebody else; yield its host and port, and what it is sent."""
    heard: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            heard.append(self.rfile.readline(65_536).decode("latin-1"))
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def two_tables(client: Client, folder: Path) -> Iterator[list[str]]:
    """Make a keyed and a partitioned table for an archive, and drop them when it is written.

    Args:
        client: Of a service that may write into `folder`.
        folder: Of the tables.
    """
    day = pa.table({"day": ["a", "b"], "n": [1, 2]})
    client.create_table(
        "events",
        str(folder / "events"),
        schema=SCHEMA,
        key=["id"],
        version_column="v",
        splits=["100"],
    )
    client.create_table("days", str(folder / "days"), schema=day.schema, partition_by=["day"])
    client.append("events", pa.table({"id": [1, 150], "v": [1, 1]}, SCHEMA))
    client.append("days", day)
    names = ["events", "days"]
    yield names
    for name in names:
        client.drop(name)
