"""Values in Redis that somebody else has written, read by a real gateway and coordinator.

A table is made that has every kind of key. An input puts one damaged value in the place of a
sound one: `KIND` in its first line, then what to do, in msgpack. Gateway and coordinator look at
it, then everything is put back. Neither may end; the gateway says which value it cannot read;
other tables, and the table itself afterwards, read as before.

`neve:coordinator` and `neve:store` are left out: another claim ends a coordinator on purpose,
and a store of another format is one that this release does not read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgpack
import pyarrow as pa
import redis

from common.metadata.codec import table as codec_table
from common.metadata.codec import tablet as codec_tablet
from common.metadata.codec.layout import PREFIX, pack
from common.metadata.keys import AUDIT, LIMITS, SCALES, TABLES, TableKeys, TabletKeys
from common.metadata.store_values import (
    AcceptedLoss,
    AttemptOutcome,
    GarbageEntry,
    HistoryEntry,
    Manifest,
    PinEntry,
)
from common.model.job import Kind
from common.model.outcome import AttemptEnd
from common.model.tablet import (
    Analysis,
    Operation,
    OperationKind,
    OperationStep,
    Reservation,
    Selection,
    TabletId,
)
from neve.client.http import new_call
from tests.fuzz.inputs import Target
from tests.fuzz.junk import TEXTS, spoiled, spoiled_bytes
from tests.fuzz.outcome import READ, REFUSED
from tests.fuzz.stage import AWAY, FAULTY, Stage

NAME = "stored"
VICTIM = "victim"
BLOCK = 50
NAMED_WAIT_S = 60.0
"""Longest time until the coordinator has looked at a tablet and says that it cannot be read."""
LENGTHS = (
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff"),
    *(b"\xc6\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xd4\x2a\x00"),
    *(b"\x91" * 100_000, b"\x81\xa1a" * 50_000, b"\xc1", b"\xc7\x00\x05", b"\xd9\xff"),
    *(b"\xca\x7f\xc0\x00\x00", b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", b"\xcf" + b"\xff" * 8),
    b"\xdd\x00\x98\x96\x80" + b"\xc0" * 1_000_000,
)
"""Of msgpack: lengths that nobody sends, depth, types that nobody knows, numbers that are none."""
RECORD_FIELDS = {
    **dict.fromkeys(("x", "e", "h", "n", "q", "u", "c", "t", "g"), b"0"),
    "k": pack(["job-1", 2]),
    "a": pack([Analysis.STABLE.value, 1, 1, 5.0]),
    "m": pack([[0.5, b"x"]]),
    "l": pack([[5.0, b"v1"]]),
    "y": pack([1, 5.0, 100, 3, [b"\x01", b"\x02"], 10, [["s", 0.5]], 0.1]),
}
"""Fields of a record that a table at rest does not have."""


@dataclass
class Victim:
    """The table that is damaged: its keys by kind, and all of them as they were."""

    id: str
    tablets: list[str]
    keys: dict[str, str] = field(default_factory=dict)
    """Kind → key."""
    dumped: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    shared: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Keys of the whole store."""


class StoredTarget(Target):
    """Damages values in the store, and has them read."""

    name = NAME
    block = BLOCK

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._victim: Victim | None = None
        self._sound_codes: dict[str, int] = {}

    def draw(self, draw: random.Random) -> bytes:
        """Return an input: a kind of key, and what is written there."""
        victim = self._made()
        kind = draw.choice([*victim.keys])
        key = victim.keys[kind]
        order = _order(draw, self._stage.redis, key)
        return kind.encode() + b"\n" + msgpack.packb(order, use_bin_type=True)

    def give(self, data: bytes, replay: str) -> None:
        """Write what an input says, have it read, and put everything back."""
        victim = self._made()
        head, _, order = data.partition(b"\n")
        kind = head.decode()
        if kind not in victim.keys:
            raise ValueError(f"a kind {kind!r} of key is unknown: one of {sorted(victim.keys)}")
        store = self._stage.redis
        try:
            _write(store, victim.keys[kind], msgpack.unpackb(order, strict_map_key=False))
        except redis.ResponseError:
            self._stage.outcome.count(NAME, REFUSED)  # By Redis: nobody could write that.
            return
        try:
            unread = self._read(victim, kind, replay)
            if unread and kind.startswith("tablet:"):
                self._require_named(victim, kind, replay)
        finally:
            self._put_back(victim)
        self._stage.outcome.count(NAME, REFUSED if unread else READ)

    def after_block(self, replay: str) -> None:
        """Require that the table reads as before, and that it takes rows."""
        victim = self._made()
        found = self._call(replay, "afterwards", "GET", f"/v1/tables/{VICTIM}/count")
        if found is None or not found.is_success:
            fact = "not at all" if found is None else f"{found.status_code} {found.text[:300]}"
            self._stage.outcome.violated(replay, "stored, afterwards", f"it is read {fact}")
        self._stage.require_sound(replay, NAME)
        assert self._victim is victim

    # --------------------------------------------------------------------- Reading

    def _read(self, victim: Victim, kind: str, replay: str) -> bool:
        """Have everybody look; return whether the gateway could not read something."""
        self._nudge(victim)
        self._stage.ask(replay, kind, "replan", victim.id)
        unread = False
        for method, path in _calls_for(kind):
            answer = self._call(replay, kind, method, path)
            unread = unread or (answer is not None and answer.status_code != self._sound_code(path))
        for tablet in victim.tablets[:1]:
            self._stage.ask(replay, kind, "explain", victim.id, tablet)
        other = self._call(replay, kind, "GET", "/v1/tables/sound/count")
        if other is not None and not other.is_success:
            fact = f"another table is not read: {other.status_code} {other.text[:300]}"
            self._stage.outcome.violated(replay, kind, fact)
        return unread

    def _call(self, replay: str, kind: str, method: str, path: str) -> httpx.Response | None:
        """Send a call, and hold the answer against what is allowed."""
        try:
            try:
                answer = self._sent(method, path)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                # A connection that was not used may be closed; a gateway that has died stays so.
                answer = self._sent(method, path)
        except httpx.HTTPError as error:
            self._stage.unanswered(replay, f"stored {kind}, {path}", "gateway", error)
            return None
        if '"InternalError"' in answer.text[-2_000:]:
            fact = f"{method} {path} ends with {answer.text[-300:]}"
            self._stage.outcome.violated(replay, f"stored {kind}", fact)
        if answer.status_code >= FAULTY and not _is_kind(answer, kind):
            fact = f"{method} {path} is answered {answer.status_code}: {answer.text[:400]}"
            self._stage.outcome.violated(replay, f"stored {kind}", fact)
        return answer

    def _sent(self, method: str, path: str) -> httpx.Response:
        more: dict[str, Any] = {"json": {}} if method == "POST" else {}
        headers = {"Content-Type": "application/json"}
        return self._stage.http.request(method, path, headers=headers, **more)

    def _sound_code(self, path: str) -> int:
        """Return how a call is answered while nothing is damaged."""
        return self._sound_codes[path]

    def _nudge(self, victim: Victim) -> None:
        """Tell the coordinator that every tablet has changed."""
        store = self._stage.redis
        changes = TableKeys(victim.id).changes
        for tablet in victim.tablets:
            try:
                store.xadd(changes, {b"t": tablet, b"w": b"files added"})
            except redis.ResponseError:
                return  # This key is what was damaged.

    def _require_named(self, victim: Victim, kind: str, replay: str) -> None:
        """Require that the coordinator says which tablet it cannot read."""
        until_s = time.monotonic() + NAMED_WAIT_S
        while time.monotonic() < until_s:
            found = self._stage.ask(replay, kind, "explain", victim.id, victim.tablets[0])
            if found is None or _is_told(found.sentences):
                return
            self._nudge(victim)
            time.sleep(0.05)
        fact = f"the coordinator does not say it: {found.sentences}"
        self._stage.outcome.violated(replay, f"stored {kind}", fact)

    # --------------------------------------------------------- Making, putting back

    def _made(self) -> Victim:
        if self._victim is None:
            self._victim = self._make()
        return self._victim

    def _make(self) -> Victim:
        schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("day", pa.string())])
        place = self._stage.folder / "tables" / VICTIM
        call = new_call()
        with self._stage.client() as client:
            client.create_table(
                VICTIM, str(place), schema=schema, key=["id"], version_column="v", splits=["100"]
            )
            rows = {"id": [1, 50, 150], "v": [1, 1, 1], "day": ["a", "b", "c"]}
            for _ in range(4):
                client.append(VICTIM, pa.table(rows, schema))
            client.append(VICTIM, pa.table(rows, schema), call=call)
            request = client.compact(VICTIM).id
            client.limit_group("default", "50 MiB")
        store = self._stage.redis
        id_ = msgpack.unpackb(store.hget(TABLES, VICTIM)[1:])[0]
        ends = store.zrange(TableKeys(id_).index, 0, -1)
        victim = Victim(id_, [TabletId(id_, end).text for end in ends])
        self._seed(victim, TabletId(id_, ends[0]), request, call)
        self._dump(victim)
        for kind in victim.keys:
            for method, path in _calls_for(kind):
                if path not in self._sound_codes:
                    answer = self._sent(method, path)
                    assert answer.status_code < FAULTY, (path, answer.text)
                    self._sound_codes[path] = answer.status_code
        return victim

    def _seed(self, victim: Victim, tablet: TabletId, request: str, call: str) -> None:
        """Write what a table at rest does not have, by the real codecs; note all kinds of keys."""
        store, own = self._stage.redis, TabletKeys.of(tablet)
        files = [path.decode() for path in store.hkeys(own.files)]
        held = Reservation(
            attempt="att-1",
            job="job-1",
            kind=Kind.SYSTEM,
            inputs=tuple(files[:1]),
            output_prefix="out",
            outputs_max=1,
            group="default",
            compactor="c",
            since_s=1.0,
            now_s=1.0,
        )
        store.hset(own.running, "att-1", codec_tablet.RESERVATION.pack(held))
        store.hset(own.record, mapping={"r": 1, **RECORD_FIELDS})
        selection = Selection(request=request, files=tuple(files[1:2]), since_s=1.0)
        if not store.exists(own.selection):
            store.set(own.selection, codec_tablet.SELECTION.pack(selection))
        operation = Operation(
            kind=OperationKind.SPLIT,
            operation_id="op-1",
            step=OperationStep.CUT,
            at=b"\x01",
            since_s=1.0,
            reason="for fuzzing",
        )
        store.set(own.operation, codec_tablet.OPERATION.pack(operation))
        store.hset(own.waiting, request, "1.0")
        store.sadd(own.done, "req-0")
        self._seed_table(victim, tablet, held)
        victim.keys = _keys_of(victim, tablet, request, call)

    def _seed_table(self, victim: Victim, tablet: TabletId, held: Reservation) -> None:
        """Write what of a table is there only after a while."""
        store, of = self._stage.redis, TableKeys(victim.id)
        garbage = GarbageEntry(path="old.parquet", stamped_s=1.0, key_min=None, tablet_end=None)
        store.hset(of.garbage, "old.parquet", codec_table.GARBAGE.pack(garbage))
        store.hset(of.uncommitted, "att-0", codec_tablet.RESERVATION.pack(held))
        pin = PinEntry(pin="pin-1", since_s=1.0, until_s=4e9)
        store.hset(of.pins, "pin-1", codec_table.PIN.pack(pin))
        loss = AcceptedLoss(since_s=1.0, until_s=2.0)
        store.set(of.loss, codec_table.LOSS.pack(loss))
        store.hset(of.policy, "p", pack(["x"]))
        if not store.exists(of.manifest):
            manifest = Manifest(number=1, path="m.parquet", begun_s=1.0, published_s=2.0)
            store.set(of.manifest, codec_table.MANIFEST.pack(manifest))
        outcome = AttemptOutcome(attempt="att-0", end=AttemptEnd.COMMITTED, cause="")
        store.set(of.outcome("att-0"), codec_table.OUTCOME.pack(outcome))
        entry = HistoryEntry(
            position="1-0",
            tablet=tablet,
            attempt="att-0",
            job="job-0",
            kind="SYSTEM",
            end="committed",
            group="default",
            compactor="c",
            inputs=("a",),
            outputs=("b",),
            bytes_in=1,
            bytes_out=1,
            rows_in=1,
            rows_out=1,
            started_s=1.0,
            ended_s=2.0,
        )
        stored = {b"t": tablet.text, b"h": codec_table.HISTORY.pack(entry)}
        store.xadd(of.history, stored)
        store.hset(SCALES, "default", "1")

    def _dump(self, victim: Victim) -> None:
        store = self._stage.redis
        for key in sorted(store.keys(f"neve:{{{victim.id}}}:*")):
            victim.dumped[key] = (store.dump(key), max(0, store.pttl(key)))
        for name in (TABLES, LIMITS, SCALES):
            victim.shared[name.encode()] = (store.dump(name), 0)

    def _put_back(self, victim: Victim) -> None:
        """Put every key back as it was, and take away what came since."""
        store = self._stage.redis
        with store.pipeline(transaction=True) as batch:
            for key in {*store.keys(f"neve:{{{victim.id}}}:*"), *victim.dumped, *victim.shared}:
                batch.delete(key)
            for key, (value, left_ms) in [*victim.dumped.items(), *victim.shared.items()]:
                batch.restore(key, left_ms, value, replace=True)
            if store.type(AUDIT) != b"stream":
                batch.delete(AUDIT)
            batch.execute()


def _keys_of(victim: Victim, tablet: TabletId, request: str, call: str) -> dict[str, str]:
    """Return an example of each kind of key."""
    of, own = TableKeys(victim.id), TabletKeys.of(tablet)
    return {
        "tablet:bounds": own.bounds,
        "tablet:files": own.files,
        "tablet:running": own.running,
        "tablet:selection": own.selection,
        "tablet:waiting": own.waiting,
        "tablet:done": own.done,
        "tablet:operation": own.operation,
        "tablet:purge": own.purge,
        "tablet:record": own.record,
        "table": of.table,
        "table:index": of.index,
        "table:generation": of.generation,
        "table:loss": of.loss,
        "table:manifest": of.manifest,
        "table:garbage": of.garbage,
        "table:uncommitted": of.uncommitted,
        "table:pins": of.pins,
        "table:history": of.history,
        "table:policy": of.policy,
        "table:requests": of.requests,
        "table:open-requests": of.open_requests,
        "table:changes": of.changes,
        "table:request": of.request(request),
        "table:outcome": of.outcome("att-0"),
        "table:call": of.call(call),
        "store:tables": TABLES,
        "store:limits": LIMITS,
        "store:scales": SCALES,
        "store:audit": AUDIT,
    }


def _calls_for(kind: str) -> list[tuple[str, str]]:
    """Return the calls that read a kind of key, and some that read nearly all."""
    of = f"/v1/tables/{VICTIM}"
    calls = {
        "table:history": [f"{of}/history"],
        "table:requests": [f"{of}/compactions"],
        "table:open-requests": [f"{of}/compactions", f"{of}/live-bytes"],
        "table:request": [f"{of}/compactions"],
        "table:manifest": [f"{of}/manifest"],
        "table:garbage": [of],
        "store:tables": ["/v1/tables", "/v1/backlog"],
        "store:limits": ["/v1/limits"],
        "store:scales": ["/v1/groups"],
        "store:audit": ["/v1/audit"],
    }
    paths = [of, f"{of}/tablets", f"{of}/plan", f"{of}/count", *calls.get(kind, [f"{of}/files"])]
    paths += [f"{of}/operations", "/v1/status"]
    found = [("GET", path) for path in dict.fromkeys(paths)]
    # Of what it finds it repairs nothing that it cannot read.
    return [*found, ("POST", f"{of}/fsck")]


def _is_told(sentences: Sequence[str]) -> bool:
    """Return whether sentences about a tablet say that something of it is unreadable."""
    return any(
        "cannot be read" in sentence or "BrokenValueError" in sentence for sentence in sentences
    )


def _is_kind(answer: httpx.Response, kind: str) -> bool:
    """Return whether an answer of 5xx says what cannot be read, and of which value it is."""
    try:
        told: Mapping[str, Any] = answer.json()
    except ValueError:
        return False
    detail = str(told.get("detail", ""))
    if answer.status_code == AWAY:
        return bool(detail) and "the coordinator failed" not in detail
    return told.get("error") == "BrokenValueError" and ("neve:" in detail or "tablet t-" in detail)


# ------------------------------------------------------------------------------------ Damage


def _order(draw: random.Random, store: redis.Redis[bytes], key: str) -> list[Any]:
    """Return what to do with a key, so that its value is another: `[command, words after it]`."""
    kind = store.type(key).decode()
    # Of the list of all tables, only the entry of this one.
    if draw.random() < 0.06 and key != TABLES:
        return _other_type(draw, kind)
    if kind == "hash":
        return _order_of_hash(draw, store, key)
    if kind == "set":
        return ["SADD", _damaged(draw, b"req-0")]
    if kind == "zset":
        chosen = draw.choice(store.zrange(key, 0, -1) or [b"x"])
        return ["ZREM", chosen] if draw.random() < 0.2 else ["ZADD", 0, _damaged(draw, chosen)]
    if kind == "stream":
        return _order_of_stream(draw, store, key)
    return ["SET", _damaged(draw, store.get(key) or pack(["x", 1]))]


def _order_of_hash(draw: random.Random, store: redis.Redis[bytes], key: str) -> list[Any]:
    fields = store.hgetall(key)
    name = VICTIM.encode() if key == TABLES else draw.choice(sorted(fields))
    if draw.random() < 0.12:
        return ["HSET", _damaged(draw, name), fields[name]]
    if draw.random() < 0.05:
        return ["HDEL", name]
    return ["HSET", name, _damaged(draw, fields[name])]


def _order_of_stream(draw: random.Random, store: redis.Redis[bytes], key: str) -> list[Any]:
    found = store.xrevrange(key, count=1)
    words = [*found[0][1].items()] if found else [(b"t", b"last")]
    at = draw.randrange(len(words))
    name, value = words[at]
    words[at] = (name, _damaged(draw, value)) if draw.random() < 0.8 else (b"z", value)
    return ["XADD", "*", *(word for pair in words for word in pair)]


def _other_type(draw: random.Random, kind: str) -> list[Any]:
    orders = {
        "string": ["SET", b"x"],
        "hash": ["HSET", b"a", b"b"],
        "set": ["SADD", b"a"],
        "zset": ["ZADD", 0, b"a"],
        "list": ["RPUSH", b"a"],
    }
    orders.pop(kind, None)
    return ["DEL", *orders[draw.choice(sorted(orders))]]


def _damaged(draw: random.Random, value: bytes) -> bytes:
    """Return a stored value that is damaged as chance damages, or as somebody does who knows it."""
    if value[:1] != PREFIX or draw.random() < 0.15:
        text = draw.choice(TEXTS).encode("utf-8", "surrogatepass")
        return draw.choice((text, spoiled_bytes(draw, value), b"", b"\xff\xfe", b"-1", b"9" * 5000))
    if draw.random() < 0.2:
        return PREFIX + draw.choice(LENGTHS)
    try:
        tree = msgpack.unpackb(value[1:], strict_map_key=False)
    except ValueError:
        return spoiled_bytes(draw, value)
    if draw.random() < 0.1:
        return spoiled_bytes(draw, value)
    for _ in range(draw.choice((1, 1, 2))):
        tree = spoiled(draw, tree, plain=False)
    return PREFIX + _packed(tree)


def _packed(tree: Any) -> bytes:
    def text(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        if isinstance(value, list):
            return [text(each) for each in value]
        if isinstance(value, dict):
            return {text(key): text(each) for key, each in value.items()}
        return value

    try:
        packed: bytes = msgpack.packb(text(tree), use_bin_type=True)
    except (ValueError, OverflowError, RecursionError):
        return LENGTHS[0]
    return packed


def _write(store: redis.Redis[bytes], key: str, order: list[Any]) -> None:
    """Do what an order says; one that begins with DEL takes the key away first."""
    command, *words = order
    if command in {"DEL", b"DEL"}:
        store.delete(key)
        command, *words = words
    store.execute_command(command, key, *words)
