"""Simulates variants in parallel, each in its own process on one core.

A run depends only on its specification, so the number of processes does not change the results.
Processes are started with `spawn`, because the caller may have threads. They ignore Ctrl-C; the
parent process ends them.

    python -m neve.simulate.side_by_side

simulates what a pickled `Order` on its standard input asks for, within the order's limits, and
writes the results as JSON. The gateway runs it: it has no planners of its own, and a process can be
stopped.
"""

import json
import multiprocessing
import os
import pickle
import resource
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from common.errors import CompactionError, ConfigError, PluginError, RequestError
from common.runtime import limit_memory
from neve import api
from neve.simulate.figures import Outcome
from neve.simulate.recording import described
from neve.simulate.report import as_simulation
from neve.simulate.specification import (
    Specification,
    files_arriving,
    read_specifications,
    read_toml,
    with_basics,
)
from neve.simulate.world import World

WORKERS_MAX = 64
SMALL_FILES = 20_000
"""If fewer files arrive in all variants, starting processes takes longer than it saves."""

Progress = Callable[[int, float], None]
"""Called with the index of a variant and the simulated time so far, in seconds."""


def workers_for(specifications: Sequence[Specification]) -> int:
    """Return a useful number of processes: one per core, or one for small runs."""
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
    """Simulate the variants and return their outcomes in order.

    Args:
        specifications: One specification per variant.
        workers: Number of concurrent processes; 1: simulate all variants in this process.
        progress: Called with the progress of variants.

    Raises:
        CompactionError: Raised by `World.run` for the first variant that fails; the others are
            ended.
        ConfigError: A process died; the message names its variant.
    """
    if min(workers, len(specifications)) > 1:
        return _Processes(specifications, workers, progress).outcomes()
    outcomes: list[Outcome] = []
    for at, specification in enumerate(specifications):
        outcomes.append(World(specification).run(partial(progress, at)))
        progress(at, specification.length_s)
    return outcomes


@dataclass(slots=True)
class _Worker:
    """The process that simulates a variant."""

    at: int
    variant: str
    process: SpawnProcess
    reports: Connection


@dataclass(slots=True)
class _Processes:
    """The processes of one comparison. All of them have ended when `outcomes` returns or raises."""

    specifications: Sequence[Specification]
    workers: int
    progress: Progress
    running: dict[Connection, _Worker] = field(default_factory=dict)
    done: dict[int, Outcome] = field(default_factory=dict)

    def outcomes(self) -> list[Outcome]:
        """Run up to `workers` processes at a time and collect all outcomes."""
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
    """Start the process that simulates a variant."""
    spawn = multiprocessing.get_context("spawn")
    reports, sender = spawn.Pipe(duplex=False)
    name = specification.variant or f"{at + 1}"
    process = spawn.Process(target=_simulate, args=(sender, specification), name=name, daemon=True)
    # The process inherits the blocked SIGINT and ignores Ctrl-C; this process gets it afterwards.
    # The start of the resource tracker would unblock it, so the tracker must run by then.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise PluginError(
            f"variant {name}: a plug-in cannot be sent to another process: {error}; use --workers 1"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sender.close()
    return _Worker(at, name, process, reports)


def _simulate(sender: Connection, specification: Specification) -> None:
    """Simulate a variant in its own process and report to the parent."""
    # The parent process may have ended.
    with suppress(BrokenPipeError):
        try:
            sender.send(World(specification).run(sender.send))
        except CompactionError as error:
            sender.send(error)


def _death(worker: _Worker) -> ConfigError:
    code = worker.process.exitcode or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return ConfigError(
        f"variant {worker.variant}: the process that simulated it {how} too early; if memory"
        " was short, give a smaller number to --workers or simulate fewer tablets"
    )


# ----------------------------------------------------------------------- Orders of another process


REFUSED = 3
"""Exit code if an order cannot be carried out; standard error has one sentence with the cause."""
NICENESS = 5


def main() -> int:
    """Carry out the order on standard input; return the exit code."""
    order: Mapping[str, Any] = pickle.load(sys.stdin.buffer)
    os.nice(NICENESS)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")  # If memory is short, this process ends, not the gateway.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_s"], order["cpu_s"] + 1))
    limit_memory(order["memory_bytes"])
    try:
        result = ordered(order)
    except CompactionError as error:
        sys.stderr.write(str(error))
        return REFUSED
    except MemoryError:
        sys.stderr.write("memory is short: simulate fewer days, tablets or variants")
        return REFUSED
    json.dump(asdict(result), sys.stdout, separators=(",", ":"))
    return 0


def ordered(order: Mapping[str, Any]) -> api.Simulation:
    """Simulate what an order asks for.

    Args:
        order: `new`, an `api.NewSimulation`; for a table `now_s` and `parts`: its `api.Table`, its
            files, its finished attempts, groups and compactors.

    Raises:
        CompactionError: The specification is wrong, or the simulation fails.
    """
    new: api.NewSimulation = order["new"]
    document: dict[str, Any]
    planners: Sequence[str] = new.planners
    if new.table:
        kept = {"planners": new.planners, "settings": new.settings, "now_s": order["now_s"]}
        document, planners = described(*order["parts"], **kept), ()
    else:
        document = read_toml(new.specification, "the specification")
    document = with_basics(document, days=new.days, seed=new.seed)
    runs = read_specifications(document, _no_file, planners)
    return as_simulation(simulated(runs), runs[0].begin_s)


def _no_file(name: str) -> object:
    raise RequestError(
        f"the specification names file {name[:100]!r}, expected no file here; `neve simulate` reads"
        " files of its folder"
    )


if __name__ == "__main__":
    sys.exit(main())
