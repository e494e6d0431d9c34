"""A process in which one engine runs, again and again, as asked through a pipe."""

import multiprocessing as mp
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from benchmarks.rewrite.engines import ENGINES
from benchmarks.rewrite.wanted import THREADS, Wanted
from neve.local.processes import MARK_VARIABLE

LIMITS = {"POLARS_MAX_THREADS": str(THREADS), "TOKIO_WORKER_THREADS": str(THREADS)}


class EngineProcess:
    """One engine in a process of its own, so that its memory is its own."""

    def __init__(self, name: str) -> None:
        """Start the process."""
        self.name = name
        context = mp.get_context("spawn")
        self._ours, theirs = context.Pipe()
        changed = {**LIMITS, MARK_VARIABLE: ""}  # It is not one of the stack's processes.
        before = {key: os.environ.get(key) for key in changed}
        os.environ.update(changed)
        self._process = context.Process(target=_serve, args=(name, theirs), daemon=True)
        self._process.start()
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

    def prepare(self, wanted: Wanted) -> None:
        """Do what goes before, unmeasured.

        Raises:
            RuntimeError: It failed.
        """
        self._ask(("prepare", "", wanted))

    def run(self, form: str, wanted: Wanted) -> float:
        """Run a form and return its seconds.

        Raises:
            RuntimeError: It failed.
        """
        return self._ask(("run", form, wanted))

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _ask(self, order: tuple[str, str, Wanted]) -> float:
        self._ours.send(order)
        answer = self._ours.recv()
        if isinstance(answer, float):
            return answer
        raise RuntimeError(f"{self.name} {order[1]}: {answer}")


def _serve(name: str, orders: Connection) -> None:
    engine = ENGINES[name]
    while True:
        what, form, wanted = orders.recv()
        work: Callable[[Wanted], None] | None
        work = engine.prepare if what == "prepare" else engine.forms(wanted.data)[form]
        try:
            begun_s = time.perf_counter()
            if work is not None:
                work(wanted)
            orders.send(time.perf_counter() - begun_s)
        except Exception as error:
            orders.send(f"{type(error).__name__}: {error}")
