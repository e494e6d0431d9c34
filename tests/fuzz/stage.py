"""What a run stands on: Redis, a coordinator, a gateway, a reader of texts; watched, replaced.

One that ends is a violation; another is started in its place, so that a run goes on.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import pyarrow as pa
import redis

from neve.api import ARROW_STREAM
from neve.client import Client
from neve.gateway.rows.ingestion import DECODED_FACTOR_MAX
from tests.fuzz.outcome import DEATH, Outcome, Watch
from tests.fuzz.service import BODY_BYTES_MAX, CALL_KEY, FAILED, READERS, Service
from tests.support.predictable import TOKEN
from tests.support.redis_server import RedisServer, free_port

ROOM_BYTES = 256 * 1024**2
"""For what a process needs besides the rows of a body: tables of a run, an allocator's rest."""
INPUT_WAIT_S = 180.0
"""Longer than any answer may take, a look into a file with its second try among them: who takes
longer hangs."""
TEXT_WAIT_S = 60.0
"""Nothing of a text waits for anybody."""
FAULTY, AWAY = 500, 503
SOUND = "sound"
"""The table whose name no input may have, which must be the same whatever comes."""
SOUND_ROWS = pa.table({"id": [*range(500)], "v": [1] * 500, "s": [f"row {n}" for n in range(500)]})
SEED_VARIABLE = "FUZZ_SEED"


class Stage:
    """The services of a run, and the ways to them."""

    def __init__(
        self, folder: Path, roles: Sequence[str] = ("coordinator", "gateway", "texts")
    ) -> None:
        """Know where everything will be.

        Args:
            folder: Takes tables and logs.
            roles: Which processes there are.
        """
        self.folder = folder
        self.outcome = Outcome()
        self._roles = roles
        self._services: dict[str, Service] = {}
        self._link: Connection | None = None
        self._call_port = free_port()
        self._faults_seen = 0
        self.http: httpx.Client

    @contextmanager
    def open(self) -> Iterator[Self]:
        """Have services until the block ends."""
        with Watch(self.outcome) as self._watch:
            self.store = RedisServer(self.folder, append_only=False)
            self.store.start()
            try:
                self._start_all()
                if "gateway" in self._roles:
                    self._make_sound()
                yield self
            finally:
                for service in reversed(self._services.values()):
                    service.close()
                self.store.stop()
        self.outcome.require_memory()

    @property
    def redis(self) -> redis.Redis[bytes]:
        """Return a client of the store."""
        return redis.Redis(port=self.store.port)

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        return str(self._services["gateway"].said["url"])

    @property
    def reader_deaths(self) -> int:
        """How many readers have died, each of them replaced by the next."""
        return sum(len(service.logged("reader died")) for service in self._services.values())

    def client(self) -> Client:
        """Return a client of the gateway."""
        return Client(self.url, token=TOKEN, timeout_s=INPUT_WAIT_S)

    # ------------------------------------------------------------------------- Asking

    def ask(self, replay: str, way: str, name: str, *values: object) -> Any:
        """Call the coordinator; None: it was not there, or failed, which is noted."""
        try:
            if self._link is None:
                self._link = connection.Client(("127.0.0.1", self._call_port), authkey=CALL_KEY)
            link = self._link
            link.send((name, values, {}))
            assert link.poll(INPUT_WAIT_S), "no answer"
            done, answer = link.recv()
        except (OSError, EOFError, AssertionError) as error:
            self._link = None
            self.unanswered(replay, way, "coordinator", error)
            return None
        if not done and FAILED in str(answer):
            self.outcome.violated(replay, way, f"{name}: {answer}")
        return answer if done else None

    def read_text(self, replay: str, target: str, data: bytes) -> dict[str, str]:
        """Have a text read; one that is never answered is noted."""
        service = self._services["texts"]
        stdin, stdout = service.process.stdin, service.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps([target, len(data)]).encode() + b"\n" + data)
            stdin.flush()
            if not _readable(stdout, TEXT_WAIT_S):
                service.process.kill()
                raise TimeoutError(f"nothing for {TEXT_WAIT_S:g} s")
            return dict(json.loads(stdout.readline()))
        except (OSError, ValueError) as error:
            self.unanswered(replay, target, "texts", error)
            return {"end": "fault", "said": str(error)}

    def pids(self) -> dict[str, int]:
        """Return the process of each role."""
        return {role: each.process.pid for role, each in self._services.items()}

    def processor_s(self, role: str) -> float:
        """Return the processor time that a process has taken; 0: it has ended."""
        try:
            times = psutil.Process(self._services[role].process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    # ------------------------------------------------------------- What must always hold

    def unanswered(self, replay: str, way: str, role: str, error: Exception) -> None:
        """Note that somebody did not answer, and replace who has ended."""
        code = self._services[role].ended()
        if code is None:
            fact = f"the {role} has not answered: {type(error).__name__}: {error}"
            self.outcome.violated(replay, way, fact)
            return
        self._replace_dead(replay, way, role, code)

    def _replace_dead(self, replay: str, way: str, role: str, code: int) -> None:
        said = self._services[role].last_words
        self.outcome.violated(replay, way, f"the {role} {DEATH} with {code}{said}")
        self._restart(role)

    def require_sound(self, replay: str, way: str) -> None:
        """Require that everybody lives, that calls work, and that sound data reads the same."""
        for role, service in [*self._services.items()]:
            if (code := service.process.poll()) is not None:
                self._replace_dead(replay, way, role, code)
        self._require_no_faults(replay, way)
        if "gateway" not in self._services:
            return
        try:
            with self.client() as client:
                found = client.scan(SOUND).sort_by("id")
            if not found.equals(SOUND_ROWS):
                self.outcome.violated(replay, way, "the sound table has other rows")
            self.ask(replay, way, "status")
        except Exception as error:  # Whatever it is: a good call was not answered.
            self.unanswered(replay, f"{way}, then a sound scan", "gateway", error)

    def _require_no_faults(self, replay: str, way: str) -> None:
        """Require that the gateway has failed in no way that it did not expect."""
        if "gateway" not in self._services:
            return
        lines = self._services["gateway"].logged("request failed")
        for line in lines[self._faults_seen :][:3]:
            self.outcome.violated(replay, way, f"the gateway's log: {line[:400]}")
        self._faults_seen = len(lines)

    # ---------------------------------------------------------------- Starting

    def _start_all(self) -> None:
        """Start all at once: most of it is importing."""
        for role in ("texts", "coordinator", "gateway"):
            if role in self._roles:
                self._services[role] = self._begun(role)
        for role in self._services:
            self._ready(role)

    def _begun(self, role: str) -> Service:
        call_port = [str(self._call_port)]
        arguments = [] if role == "texts" else [self.store.url, str(self.folder), *call_port]
        return Service.begin(role, self.folder, *arguments)

    def _ready(self, role: str) -> None:
        self._services[role].ready()
        self._follow(role)
        if role == "gateway":
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": ARROW_STREAM}
            self.http = httpx.Client(base_url=self.url, headers=headers, timeout=INPUT_WAIT_S)

    def _follow(self, role: str) -> None:
        body_bytes = DECODED_FACTOR_MAX * BODY_BYTES_MAX if role == "gateway" else 0
        pid = self._services[role].process.pid
        self._watch.follow(role, pid, body_bytes + ROOM_BYTES, READERS.memory_bytes)

    def _restart(self, role: str) -> None:
        """Start a service that has ended once more."""
        self._services[role].gone()
        self.outcome.count(f"deaths of the {role}", "")
        if role == "coordinator":
            self._link = None
        self._services[role] = self._begun(role)
        self._ready(role)

    def _make_sound(self) -> None:
        place = self.folder / "tables" / SOUND
        with self.client() as client:
            client.create_table(
                SOUND,
                str(place),
                schema=SOUND_ROWS.schema,
                key=["id"],
                version_column="v",
                splits=["100", "300"],
            )
            client.append(SOUND, SOUND_ROWS)

    def remove(self, place: Path) -> None:
        """Remove a folder of this run."""
        assert self.folder in place.parents
        shutil.rmtree(place, ignore_errors=True)


def _readable(source: Any, wait_s: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        return bool(selector.select(wait_s))


def replay_of(target: str, seed: int | str) -> str:
    """Return what to write in front of `make fuzz` to give it one input again."""
    return f"FUZZ_TARGET={target} {SEED_VARIABLE}={seed}"


def environ_number(name: str, default: float) -> float:
    """Return a number of the environment.

    Raises:
        SystemExit: It is none; says what was expected.
    """
    text = os.environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise SystemExit(f"{name} is {text!r}, expected a number") from None
