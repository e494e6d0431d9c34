"""A process in which one engine runs, again and again, as asked through a pipe."""

import multiprocessing as mp
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.rewrite.engines import ENGINES
from benchmarks.rewrite.wanted import THREADS, Wanted
from neve.local.processes import MARK_VARIABLE

LIMITS = {"POLARS_MAX_THREADS": str(THREADS), "TOKIO_WORKER_THREADS": str(THREADS)}


class EngineError(Exception):
    """An engine could not do what it was asked for."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a run took."""

    seconds: float
    """Until the outputs were durable."""
    unsynced_s: float
    """Until they were written, without waiting for the disk."""


class EngineProcess:
    """One engine in a process of its own, so that its memory is its own."""

    def __init__(self, name: str, log: str = os.devnull) -> None:
        """Start the process.

        Args:
            name: One of `ENGINES`.
            log: File for what the engine prints, such as progress bars.
        """
        self.name = name
        context = mp.get_context("spawn")
        self._ours, theirs = context.Pipe()
        changed = {**LIMITS, MARK_VARIABLE: ""}  # It is not one of the stack's processes.
        before = {key: os.environ.get(key) for key in changed}
        os.environ.update(changed)
        self._process = context.Process(target=_serve, args=(name, log, theirs), daemon=True)
        self._process.start()
        # With the other end open here, the death of the process would never be seen.
        theirs.close()
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.is_alive()

    def prepare(self, wanted: Wanted) -> None:
        """Do what goes before, unmeasured.

        Raises:
            EngineError: It failed.
        """
        self._ask(("prepare", "", wanted))

    def run(self, form: str, wanted: Wanted) -> Timing:
        """Run a form and return its seconds.

        Raises:
            EngineError: It failed, or the process is gone.
        """
        return self._ask(("run", form, wanted))

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _ask(self, order: tuple[str, str, Wanted]) -> Timing:
        try:
            self._ours.send(order)
            answer = self._ours.recv()
        except (EOFError, OSError) as error:
            raise EngineError(f"{self.name}: the process has ended") from error
        if isinstance(answer, Timing):
            return answer
        raise EngineError(f"{self.name} {order[1]}: {answer}")


def sync_outputs(folder: str) -> None:
    """Make new files of a folder durable, and the folder itself, as a table's outputs are.

    Args:
        folder: Folder of outputs; files that are links to inputs are left out.
    """
    folders = {Path(folder)}
    for path in Path(folder).rglob("*"):
        if path.is_dir():
            folders.add(path)
        elif path.stat().st_nlink == 1:
            _sync(path)
    for path in folders:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _serve(name: str, log: str, orders: Connection) -> None:
    engine = ENGINES[name]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    while True:
        try:
            what, form, wanted = orders.recv()
        except EOFError:  # The benchmark is gone.
            return
        work: Callable[[Wanted], None] | None
        work = engine.prepare if what == "prepare" else engine.forms(wanted.data)[form]
        try:
            begun_s = time.perf_counter()
            if work is not None:
                work(wanted)
            written_s = time.perf_counter()
            if what == "run":
                sync_outputs(wanted.out)
            orders.send(Timing(time.perf_counter() - begun_s, written_s - begun_s))
        except Exception as error:
            orders.send(f"{type(error).__name__}: {error}")
