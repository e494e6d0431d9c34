"""The processes that inputs are given to: a gateway, a coordinator, and a reader of texts.

    python -m tests.fuzz.service gateway|coordinator|texts [REDIS FOLDER PORT-OF-CALLS]

Each says one line of JSON when it serves, and ends with its input. Gateway and coordinator are
the real actors, on a real Redis, without Ray: their calls go over a socket instead, with the
same rule, that what the coordinator raises reaches the caller if it is an error of ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, TextIO

from common.errors import CompactionError, UnavailableError
from common.model.table import Table
from common.parquet.file_inspection import sample_keys
from common.parquet.location import open_location
from common.readers.pool import ReaderDeathError
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from common.settings import ReaderSettings, Settings, StoreSettings
from tests.fuzz import bases, texts
from tests.fuzz.outcome import READ, READER_DIED, REFUSED
from tests.support.patience import PATIENCE_S
from tests.support.predictable import TOKEN

READERS = ReaderSettings(count=2, wait_s=30.0)
"""As the service has them, but fewer, and less patient: a file of some KB is read in no time."""
BODY_BYTES_MAX = 16 * 1024**2
DYING_S = 2.0
"""Its connections break before it has gone."""
CALL_KEY = b"calls of this run"
FAILED = "the coordinator failed"
"""Of an answer: the coordinator raised what is no error of ours, which is a fault."""


def _settings(redis: str, folder: str) -> Settings:
    """Return the settings of gateway and coordinator: tables in one folder, no compactors."""
    base = Settings()
    gateway = replace(
        base.gateway, token=TOKEN, port=0, locations=(folder,), body_bytes_max=BODY_BYTES_MAX
    )
    own = replace(base.coordinator, full_scan_tasks=0, collect_interval_s=1.0)
    store = StoreSettings(url=redis, timeout_s=10.0)
    sources = {"gateway.token": "environment variable NEVE_GATEWAY_TOKEN"}
    return replace(
        base, gateway=gateway, coordinator=own, store=store, readers=READERS, sources=sources
    )


# ------------------------------------------------------------------------------- The gateway


class FarCoordinator:
    """Has each call of the coordinator's port, over a socket."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._own = threading.local()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return a call."""
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(asyncio.to_thread, partial(self._call, name))

    def _call(self, name: str, *values: object, **named: object) -> Any:
        try:
            link = getattr(self._own, "link", None)
            if link is None:
                link = self._own.link = connection.Client(self._address, authkey=CALL_KEY)
            link.send((name, values, named))
            done, answer = link.recv()
        except (OSError, EOFError) as error:
            self._own.link = None
            raise UnavailableError(f"the coordinator does not answer: {error}") from error
        if done:
            return answer
        raise answer


async def _gateway(told: TextIO, redis: str, folder: str, port: str) -> None:
    from neve.gateway import actor

    coordinator = FarCoordinator(int(port))
    vars(actor)["operator_calls"] = lambda: coordinator
    serving = actor.GatewayActor(_settings(redis, folder))
    _tell(told, {"url": await serving.address()})
    await _input_ends()


# ------------------------------------------------------------------------------ The coordinator


async def _coordinator(told: TextIO, redis: str, folder: str, port: str) -> None:
    from coordinator.actor import CoordinatorActor

    actor = CoordinatorActor(_settings(redis, folder))
    await actor.ping()
    listener = Listener(("127.0.0.1", int(port)), authkey=CALL_KEY)
    loop = asyncio.get_running_loop()
    threading.Thread(target=_accept, args=(listener, actor, loop), daemon=True).start()
    _tell(told, {})
    await _input_ends()


def _accept(listener: Listener, actor: Any, loop: asyncio.AbstractEventLoop) -> None:
    while True:
        link = listener.accept()
        threading.Thread(target=_answer, args=(link, actor, loop), daemon=True).start()


def _answer(link: Connection, actor: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Answer calls until the other end goes; `look` is what splits do with a file."""
    while True:
        try:
            name, values, named = link.recv()
        except (EOFError, OSError):
            return
        try:
            if name == "look":
                answer: object = _look(*values)
            else:
                call = getattr(actor, name)(*values, **named)
                answer = asyncio.run_coroutine_threadsafe(call, loop).result(PATIENCE_S)
            link.send((True, answer))
        except CompactionError as error:
            link.send((False, error))
        except Exception as error:
            fact = f"{FAILED}: {type(error).__name__}: {error}"
            link.send((False, UnavailableError(fact)))


def _look(location: str, path: str) -> str:
    """Sample the keys of a file as an operation does before it splits a tablet."""
    table = Table(
        id="t-1",
        name="damaged",
        location=location,
        schema=columns_of(bases.SCHEMA),
        key=bases.KEY,
        version_column=bases.VERSION,
    )
    try:
        sample_keys(open_location(location), path, RowRules.of(table))
    except ReaderDeathError:
        return READER_DIED
    except CompactionError:
        return REFUSED
    return READ


# -------------------------------------------------------------------------------- Texts and files


def _texts(told: TextIO) -> None:
    """Read texts by their targets: a line with target and length, then the bytes."""
    _tell(told, {})
    source = sys.stdin.buffer
    while head := source.readline():
        name, length = json.loads(head)
        _tell(told, texts.verdict(name, source.read(length)))


def _tell(told: TextIO, what: object) -> None:
    print(json.dumps(what), file=told, flush=True)


async def _input_ends() -> None:
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Serve until the input ends. What others print goes to the log, beside the errors."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    role, *rest = arguments
    if role == "texts":
        _texts(told)
    else:
        asyncio.run({"gateway": _gateway, "coordinator": _coordinator}[role](told, *rest))


# ------------------------------------------------------------------ From the side of who gives


@dataclass
class Service:
    """One of these processes, from the side of who gives it inputs."""

    role: str
    process: subprocess.Popen[bytes]
    said: dict[str, Any]
    log_file: Path

    @classmethod
    def begin(cls, role: str, folder: Path, *arguments: str) -> Service:
        """Start one that will serve."""
        log = folder / f"{role}.log"
        command = [sys.executable, "-m", __spec__.name, role, *arguments]
        # Without this, a look for an actor would start a Ray.
        environ = {**os.environ, "RAY_ENABLE_AUTO_CONNECT": "0"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with log.open("a") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environ,
            )
        return cls(role, process, {}, log)

    def ready(self) -> Service:
        """Return it when it serves."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, f"it has not started: {self.log_file.read_text('utf-8')[-2000:]}"
        self.said = json.loads(said)
        return self

    def logged(self, event: str) -> list[str]:
        """Return the lines of its log about an event."""
        lines = self.log_file.read_text("utf-8", errors="replace").splitlines()
        return [line for line in lines if f'"event": "{event}"' in line]

    @property
    def last_words(self) -> str:
        """Why it has ended, as far as its log says that."""
        failed = self.logged(f"{self.role} fails")
        return f": {failed[-1][:1000]}" if failed else ""

    def ended(self) -> int | None:
        """Return the exit code if it has ended, or is about to."""
        try:
            return self.process.wait(DYING_S)
        except subprocess.TimeoutExpired:
            return None

    def gone(self) -> None:
        """Close what led to one that has ended."""
        self.process.wait(PATIENCE_S)
        for link in (self.process.stdin, self.process.stdout):
            assert link is not None
            with suppress(BrokenPipeError):
                link.close()

    def close(self) -> None:
        """End it."""
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
