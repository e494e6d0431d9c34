"""Requests to every route that the gateway describes, valid, nearly valid and hostile.

Drawn from its OpenAPI description: paths, parameters, headers and bodies, each either as the
description has it, or a little different, or junk; or with one list, mapping or text that has grown
to any size. No request may take the gateway long. An input is the whole request as bytes, so that
it can be sent again as it was. In it stand `@PLACE@` for the folder of the run and `@LENGTH@` for
the length of the body.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa

from neve.client.errors import NeveError
from tests.fuzz import bases
from tests.fuzz.inputs import Target
from tests.fuzz.junk import TEXTS, deep, junk, spoiled, spoiled_bytes
from tests.fuzz.mutate import damaged_stream
from tests.fuzz.outcome import READ, REFUSED
from tests.fuzz.stage import AWAY, FAULTY, INPUT_WAIT_S, Stage
from tests.support.predictable import TOKEN
from tests.support.route_growth import Growth, growths

NAME = "http"
SCRATCH = ("f0", "f1")
"""Tables that inputs are about; made anew where an input has dropped one."""
ANSWER_BYTES_MAX = 64 * 1024**2
GROWN_SHARE = 0.06
GROWN_SIZES = (100, 3_000, 30_000, 300_000)
GROWN_NAMES = {"table": "f0", "group": "default", "volume": "disk-1", "request": "req-1"}
CPU_MAX_S = 3.0
"""Processor time of the gateway that one request may take: an add of 10,000 files takes a third."""
PLACE, LENGTH = b"@PLACE@", b"@LENGTH@"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
COLUMNS = [
    {"name": "id", "type": "int64", "nullable": False},
    {"name": "v", "type": "int64"},
    {"name": "s", "type": "string"},
]
VALUES: Mapping[str, Sequence[Any]] = {
    "table": SCRATCH,
    "name": ("f9", *SCRATCH),
    "location": ("@PLACE@/tables/f9", "@PLACE@/tables/f0", "@PLACE@/x", "s3://b/t", "/etc"),
    "schema": (COLUMNS,),
    "key": (["id"], ["id", "s"], []),
    "version_column": ("v",),
    "partition_by": ([], ["s"]),
    "splits": (["100"], [], ["1", "2", "3"]),
    "settings": ({"ratio": 3}, {"ttl_s": "7d"}, {"max_files": 5}),
    "tablet": ("last", "0280000000000000ff"),
    "after": ("last", "00"),
    "start": ("1", None),
    "end": ("100", None),
    "columns": ("id", "v"),
    "column": ("id", "s"),
    "paths": (["a.parquet"], ["@PLACE@/tables/f0/a.parquet"], []),
    "group": ("default",),
    "volume": ("disk-1",),
    "limit": ("50 MiB", 0, 10**9),
    "count": (1, 10, 100),
    "request": ("req-1", "0"),
    "call": ("c-1", "00000000-0000-7000-8000-000000000000"),
    "delete_where": ("id > 5", "s is null", None),
    "set": ("s = upper(s)", None),
    "codec": ("zstd", None),
    "selector": ({"name": "age", "options": {"older_than": "1d"}}, None),
    "transform": (None,),
    "wait_max_s": (0, 0.1),
    "timeout": ("1s",),
    "at": ("50", None),
}
"""Values that fit a name, whatever the description says of its type."""
HEADERS: Sequence[tuple[str, str]] = (
    ("Content-Type", "text/plain"),
    ("Content-Type", "application/json; charset=utf-16"),
    ("Content-Type", "application/vnd.apache.arrow.stream"),
    ("Content-Encoding", "gzip"),
    ("Content-Length", "0"),
    ("Content-Length", "99999999999"),
    ("Content-Length", "-1"),
    ("Transfer-Encoding", "chunked"),
    ("Expect", "100-continue"),
    ("Accept", "text/html, */*;q=0.1"),
    ("Range", "bytes=0-1,5-"),
    ("If-None-Match", "*"),
    ("Upgrade", "websocket"),
    ("Authorization", "Bearer wrong"),
    ("Authorization", "Basic " + "A" * 8000),
    ("Neve-Call", "x" * 300),
    ("Neve-Call", ""),
    ("traceparent", "00-0-0-zz"),
    ("X-Forwarded-For", "127.0.0.1"),
    ("Host", "a" * 300),
    ("X-Long", "y" * 70_000),
)


class HttpTarget(Target):
    """Sends requests to all routes."""

    name = NAME
    block = 200

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._routes: list[Route] = []
        self._growths: list[Growth] = []
        self._streams = [*bases.streams().values()]

    def draw(self, draw: random.Random) -> bytes:
        """Return a request."""
        known = self._known()
        if draw.random() < GROWN_SHARE:
            growth, size = draw.choice(self._growths), draw.choice(GROWN_SIZES)
            target, body = growth.request(size)
            return _request(growth.method, target, [*HEAD, *JSON_HEAD], body)
        route = draw.choice(known)
        if draw.random() < 0.02:
            return spoiled_bytes(draw, b"GET /v1/tables HTTP/1.1\r\nHost: x\r\n\r\n")
        return route.drawn(draw, self._streams)

    def give(self, data: bytes, replay: str) -> None:
        """Send a request, and hold its answer against what is allowed."""
        self._known()
        outcome, request = self._stage.outcome, self._whole(data)
        way = f"http {data.partition(b' HTTP/')[0][:200].decode('latin-1')}"
        before_s = self._stage.processor_s("gateway")
        try:
            answer = _sent(self._stage.url, request)
        except (OSError, HTTPException, ValueError) as error:
            self._stage.unanswered(replay, way, "gateway", error)
            return
        if (took_s := self._stage.processor_s("gateway") - before_s) > CPU_MAX_S:
            outcome.violated(replay, way, f"took {took_s:.1f} s of processor time")
        if answer is None:  # Closed without a word, as is right for what is no HTTP.
            if _is_request(request):
                outcome.violated(replay, way, "closed without an answer")
            outcome.count(NAME, REFUSED)
            return
        status, body = answer
        if (fact := _fault(status, body)) is not None:
            outcome.violated(replay, way, fact)
        outcome.count(NAME, READ if status < 400 else REFUSED)

    def after_block(self, replay: str) -> None:
        """Require that everybody is well, and make the tables anew that are gone."""
        self._stage.require_sound(replay, NAME)
        self._make_tables()

    def _known(self) -> list[Route]:
        if not self._routes:
            described = self._stage.http.get("/openapi.json").json()
            self._routes = routes_of(described)
            self._growths = list(growths(described, GROWN_NAMES))
            self._make_tables()
        return self._routes

    def _make_tables(self) -> None:
        with self._stage.client() as client:
            for name in SCRATCH:
                try:
                    place = self._stage.folder / "tables" / name
                    client.create_table(
                        name, str(place), schema=SCHEMA, key=["id"], version_column="v"
                    )
                    client.append(name, [{"id": n, "v": 1, "s": "x"} for n in range(20)])
                except NeveError:
                    continue  # It is there, and perhaps paused.

    def _whole(self, data: bytes) -> bytes:
        data = data.replace(PLACE, str(self._stage.folder).encode())
        body = data.partition(b"\r\n\r\n")[2]
        return data.replace(LENGTH, b"%d" % len(body))


# ------------------------------------------------------------------------------------- Answers


def _sent(url: str, request: bytes) -> tuple[int, bytes] | None:
    """Return status and body of the answer; None: the connection was closed without one."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), INPUT_WAIT_S) as link:
        try:
            link.sendall(request)
            if not _is_request(request):
                link.shutdown(socket.SHUT_WR)  # Or the gateway would wait for the rest.
        except OSError:
            pass  # It has been refused already; the answer is there.
        method = request[:5].partition(b" ")[0].decode("latin-1") or "GET"
        answer = HTTPResponse(link, method=method)
        try:
            answer.begin()
        except (HTTPException, ConnectionResetError):
            return None
        try:
            return answer.status, answer.read(ANSWER_BYTES_MAX)
        except ConnectionResetError:
            return answer.status, b""


def _is_request(request: bytes) -> bool:
    """Return whether bytes are a request that has to be answered: head and body are whole."""
    head, blank, body = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    lengths = [line for line in lines if line.lower().startswith(b"content-length:")]
    if not blank or len(lengths) > 1 or b"transfer-encoding" in head.lower():
        return False
    length = lengths[0].partition(b":")[2].strip() if lengths else b"0"
    return length.isdigit() and int(length) <= len(body)


def _fault(status: int, body: bytes) -> str | None:
    """Return what is wrong with an answer; None: nothing."""
    if status >= FAULTY and status != AWAY:
        return f"answered {status}: {body[:400].decode('latin-1')}"
    if status == AWAY and (b"detail" not in body or b"the coordinator failed" in body):
        return f"answered {status}: {body[:400].decode('latin-1')}"
    last = body.rstrip(b"\n").rpartition(b"\n")[2]
    if b'"InternalError"' in last:
        return f"ended with {last[:400].decode('latin-1')}"
    if status >= 400 and len(body) > 20_000:
        return f"a refusal of {len(body)} bytes: {body[:100].decode('latin-1')}"
    return None


# ------------------------------------------------------------------------------------- Requests


class Route:
    """A method of a path, as the description has it."""

    def __init__(self, method: str, path: str, told: Mapping[str, Any], whole: Any) -> None:
        self.method, self.path = method, path
        self._told, self._whole = told, whole

    def drawn(self, draw: random.Random, streams: Sequence[bytes]) -> bytes:
        """Return a request as bytes. Of most, one thing alone is odd."""
        odd = draw.choice(("nothing", "path", "query", "query", "body", "body", "header", "all"))
        path, query = self.path, list[str]()
        for told in self._told.get("parameters", []):
            is_odd = odd in {told["in"], "all"}
            value = _value(draw, told["name"], told.get("schema", {}), self._whole, is_odd=is_odd)
            text = quote(_text(value), safe="", errors="surrogatepass")
            if told["in"] == "path":
                path = path.replace(f"{{{told['name']}}}", text or "%20")
            elif told["in"] == "query" and (told.get("required") or draw.random() < 0.5):
                query.append(f"{told['name']}={text}")
        if odd == "query" and draw.random() < 0.3:
            query.append(quote(draw.choice(TEXTS)[:500], safe="=&", errors="surrogatepass"))
        kind, body = self._body(draw, streams, is_odd=odd in {"body", "all"})
        head = [*HEAD]
        if kind:
            head += [("Content-Type", kind), ("Content-Length", LENGTH.decode())]
        if odd in {"header", "all"}:
            name, told = draw.choice(HEADERS)
            head = [pair for pair in head if pair[0] != name] + [(name, told)]
        target = path + ("?" + "&".join(query) if query else "")
        return _request(self.method, target, head, body)

    def _body(
        self, draw: random.Random, streams: Sequence[bytes], *, is_odd: bool
    ) -> tuple[str, bytes]:
        content = self._told.get("requestBody", {}).get("content", {})
        if not content:
            return ("application/json", b"{}") if is_odd else ("", b"")
        kind, told = next(iter(content.items()))
        if kind != "application/json":
            stream = draw.choice(streams)
            return kind, damaged_stream(draw, stream)[1] if is_odd else stream
        tree = _tree(draw, told.get("schema", {}), self._whole, 0)
        if is_odd and draw.random() < 0.15:
            return kind, _odd_json(draw, tree)
        for _ in range(draw.choice((1, 1, 2)) if is_odd else 0):
            tree = spoiled(draw, tree)
        return kind, json.dumps(tree).encode()


HEAD = (("Host", "x"), ("Authorization", f"Bearer {TOKEN}"), ("Connection", "close"))
JSON_HEAD = (("Content-Type", "application/json"), ("Content-Length", LENGTH.decode()))


def _request(method: str, target: str, head: Sequence[tuple[str, str]], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {told}" for name, told in head)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def routes_of(described: Any) -> list[Route]:
    """Return the routes of an OpenAPI description, in its order."""
    methods = ("get", "put", "post", "delete", "patch", "head")
    return [
        Route(method.upper(), path, told, described)
        for path, item in described["paths"].items()
        for method, told in item.items()
        if method in methods
    ]


def _odd_json(draw: random.Random, tree: Any) -> bytes:
    text = json.dumps(tree).encode()
    levels = draw.choice((200, 5_000, 100_000))
    return draw.choice(
        (
            spoiled_bytes(draw, text),
            b"[" * levels,
            b'{"a":' * levels + b"1" + b"}" * levels,
            text[:-1] + b',"a":' + b"9" * 6_000 + b"}",
            text + text,
            text.decode().encode("utf-16"),
            b"\xef\xbb\xbf" + text,
            b"NaN",
            b'"\\ud800"',
            json.dumps(deep(40)).encode(),
            b"",
        )
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:4_000]
    return json.dumps(value)[:4_000]


def _value(draw: random.Random, name: str, schema: Any, whole: Any, *, is_odd: bool) -> Any:
    if not is_odd:
        return _tree(draw, schema, whole, 0, name)
    return junk(draw) if draw.random() < 0.6 else f"{_text(_tree(draw, schema, whole, 0, name))}x"


def _tree(draw: random.Random, schema: Any, whole: Any, depth: int, name: str = "") -> Any:
    """Return a value that a schema allows, or nearly: bounds are not looked at."""
    if name in VALUES and draw.random() < 0.9:
        return draw.choice(VALUES[name])
    schema = _resolved(schema, whole)
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if several := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return _tree(draw, draw.choice(several), whole, depth, name)
    kind = schema.get("type")
    if kind == "object":
        return _object(draw, schema, whole, depth)
    if kind == "array":
        items = schema.get("items", {})
        return [_tree(draw, items, whole, depth + 1) for _ in range(draw.randrange(3))]
    return draw.choice(PLAIN.get(kind, PLAIN["string"]))


PLAIN: Mapping[str, Sequence[Any]] = {
    "integer": (0, 1, 7, 1000),
    "number": (0, 0.5, 60),
    "boolean": (True, False),
    "null": (None,),
    "string": ("x", "1", "default", "2026-01-01"),
}
"""Values of a type, where nothing else is known of them."""


def _resolved(schema: Any, whole: Any) -> Any:
    """Return what a schema refers to, if it does."""
    while "$ref" in schema:
        found = whole
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        schema = found
    return schema


def _object(draw: random.Random, schema: Any, whole: Any, depth: int) -> dict[str, Any]:
    required = schema.get("required", [])
    return {
        name: _tree(draw, told, whole, depth + 1, name)
        for name, told in schema.get("properties", {}).items()
        if depth < 6 and (name in required or draw.random() < 0.4)
    }
