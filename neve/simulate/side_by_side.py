"""Variants beside each other: each is simulated in a process of its own, on one core.

A run depends on its specification alone, so results are the same however many processes there are.
Processes are begun anew (`spawn`), since whoever simulates may have threads. They do not hear
Ctrl-C: whoever began them ends them.
"""

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from common.errors import CompactionError, ConfigError, PluginError
from neve.simulate.figures import Outcome
from neve.simulate.specification import Specification, files_arriving
from neve.simulate.world import World

WORKERS_MAX = 64
SMALL_FILES = 20_000
"""Where fewer files arrive in all variants, starting processes takes longer than they save."""

Progress = Callable[[int, float], None]
"""Hears the place of a variant, and until when it is simulated, in seconds of the run."""


def workers_for(specifications: Sequence[Specification]) -> int:
    """Return how many processes are worth while: one for each core, or one for small runs."""
    files = sum(
        files_arriving(table.arrivals, specification.length_s)
        for specification in specifications
        for table in specification.tables
    )
    return 1 if files < SMALL_FILES else min(WORKERS_MAX, os.cpu_count() or 1)


def simulated(
    specifications: Sequence[Specification],
    workers: int = 1,
    progress: Progress = lambda _at, _now_s: None,
) -> list[Outcome]:
    """Return what each variant comes to, in their order.

    Args:
        specifications: Of the variants.
        workers: How many are simulated at a time; with 1 all are simulated in this process.
        progress: Hears how far variants are.

    Raises:
        CompactionError: As `World.run` raises it, of the first variant that fails. The others end.
        ConfigError: A process has died; the message names its variant.
    """
    if min(workers, len(specifications)) > 1:
        return _Processes(specifications, workers, progress).outcomes()
    found: list[Outcome] = []
    for at, each in enumerate(specifications):
        found.append(World(each).run(partial(progress, at)))
        progress(at, each.length_s)
    return found


@dataclass(slots=True)
class _Worker:
    """The process that simulates a variant."""

    at: int
    variant: str
    process: SpawnProcess
    reports: Connection


@dataclass(slots=True)
class _Processes:
    """The processes of one comparison. All have ended when `outcomes` returns or raises."""

    specifications: Sequence[Specification]
    workers: int
    progress: Progress
    running: dict[Connection, _Worker] = field(default_factory=dict)
    done: dict[int, Outcome] = field(default_factory=dict)

    def outcomes(self) -> list[Outcome]:
        """Begin as many as may run, and hear them, until all are done."""
        waiting = deque(enumerate(self.specifications))
        try:
            while waiting or self.running:
                while waiting and len(self.running) < self.workers:
                    worker = _begun(*waiting.popleft())
                    self.running[worker.reports] = worker
                for ready in wait(list(self.running)):
                    assert isinstance(ready, Connection)
                    self._hear(self.running[ready])
        finally:
            self._end_all()
        return [self.done[at] for at in range(len(self.specifications))]

    def _hear(self, worker: _Worker) -> None:
        try:
            report = worker.reports.recv()
        except (EOFError, OSError):
            worker.process.join()
            raise _death(worker) from None
        if isinstance(report, CompactionError):
            raise report
        if isinstance(report, Outcome):
            self.done[worker.at] = report
            self.progress(worker.at, report.length_s)
            del self.running[worker.reports]
            worker.process.join()
        else:
            self.progress(worker.at, report)

    def _end_all(self) -> None:
        for worker in self.running.values():
            worker.process.kill()
        for worker in self.running.values():
            worker.process.join()


def _begun(at: int, specification: Specification) -> _Worker:
    """Begin to simulate a variant."""
    spawn = multiprocessing.get_context("spawn")
    reports, tell = spawn.Pipe(duplex=False)
    name = specification.variant or f"{at + 1}"
    process = spawn.Process(target=_simulate, args=(tell, specification), name=name, daemon=True)
    # It inherits what is blocked here, and so never hears Ctrl-C; this process hears it afterwards.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise PluginError(
            f"variant {name}: a plug-in cannot be sent to another process: {error}; use --workers 1"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    tell.close()
    return _Worker(at, name, process, reports)


def _simulate(tell: Connection, specification: Specification) -> None:
    """Simulate a variant in a process of its own, and report."""
    # Whoever began this process may be gone.
    with suppress(BrokenPipeError):
        try:
            tell.send(World(specification).run(tell.send))
        except CompactionError as error:
            tell.send(error)


def _death(worker: _Worker) -> ConfigError:
    code = worker.process.exitcode or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return ConfigError(
        f"variant {worker.variant}: the process that simulated it {how} too early; if memory"
        " was short, give a smaller number to --workers or simulate fewer tablets"
    )
