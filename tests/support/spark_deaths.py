"""Hurts one process below a compactor while an attempt is held in one of its phases.

The service has one compactor, with one slot. A phase is held by halting whoever would end it:
the driver before it has read the order or told of the outputs, the task processes in the
middle of an output, Redis before it has answered a commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import psutil
import redis

from common.model.location_identity import SERVICE_FOLDER
from neve.api import Job
from tests.support.ledger import LedgerTable, bag_rows
from tests.support.living_folder import files_below
from tests.support.stack import CATCHES_MAX, SLOW, Service, words_of

FILES, ROWS = 6, 8_000
"""Of a job that takes some seconds."""
POLL_S, SOON_S = 0.002, 0.02
TASKS = "compactor.spark.task_daemon"


class Part(StrEnum):
    """A process below a compactor."""

    DRIVER = "driver process"
    JVM = "driver JVM"
    """The app master is in it."""
    EXECUTOR = "executor"
    DAEMON = "task daemon"
    TASK = "task process"


class How(StrEnum):
    """How it is hurt; what is frozen stays so."""

    KILL = "killed"
    FREEZE = "frozen"


class Phase(StrEnum):
    """Where an attempt is meanwhile."""

    WAITING = "waiting"
    """There is none yet."""
    PREPARING = "preparing"
    REWRITING = "rewriting"
    VERIFYING = "verifying"
    COMMITTING = "committing"


@dataclass(frozen=True, slots=True)
class Case:
    """One harm."""

    part: Part
    how: How
    phase: Phase

    def __str__(self) -> str:
        return f"{self.part} {self.how} while {self.phase}"


EVERY = [Case(part, how, phase) for part in Part for how in How for phase in Phase]


class Deaths:
    """Plays cases on a service, one after the other."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.left: list[psutil.Process] = []
        """Those that were hurt last and are still there."""

    def play(self, case: Case) -> float:
        """Hurt somebody, and check that the job is committed and the slot is free again.

        Returns:
            How long the commit took after that.
        """
        victims: list[psutil.Process] = []
        table = self._table_hurt_in(case.phase, lambda: victims.extend(self._hurt(case)))
        begun_s = time.monotonic()
        try:
            self.service.wait(f"commit after a {case}", table.commits, table=table)
            took_s = time.monotonic() - begun_s
            self.service.wait_until_at_rest(table)
            table.check_rows()
            self._finish_another()
            self.left = [victim for victim in victims if victim.is_running()]
        finally:
            _resume(victims)
        return took_s

    def found(self, part: Part) -> list[psutil.Process]:
        """Return the processes of a part that live."""
        return [process for process in self.service.processes() if _is(part, process)]

    def _hurt(self, case: Case) -> list[psutil.Process]:
        found = self.service.wait(str(case.part), partial(self.found, case.part))
        for process in found:
            (process.kill if case.how is How.KILL else process.suspend)()
        return found

    def _table_hurt_in(self, phase: Phase, hurt: Callable[[], None]) -> LedgerTable:
        """Hurt while an attempt at a new table's job is in a phase."""
        if phase is Phase.WAITING:
            hurt()
            return self._new_table()
        for _ in range(CATCHES_MAX):
            table = self._new_table(paused=True)
            with self._held(table, phase) as held:
                if held:
                    hurt()
                    return table
            self.service.wait_until_at_rest(table)
        raise AssertionError(f"{CATCHES_MAX} jobs were not caught while {phase}")

    @contextmanager
    def _held(self, table: LedgerTable, phase: Phase) -> Iterator[bool]:
        """Hold a table's job in a phase for the length of a block, if it can be caught there."""
        with ExitStack() as stack:
            (driver,) = self.service.wait("driver", partial(self.found, Part.DRIVER))
            table.client.resume(table.name)
            job = self._reserved(table) if phase is Phase.PREPARING else self._writing(table)
            if phase is Phase.REWRITING:
                stack.enter_context(self.service.halted(*self.service.tasks()))
                yield table.is_being_written(job)
                return
            if phase is not Phase.PREPARING:
                self._written(table, job)
            with self.service.halted(driver):
                caught = phase in (self._state(table, job), Phase.VERIFYING)
                caught &= not table.commits()
                if phase is not Phase.COMMITTING:
                    yield caught
                    return
                (store,) = self.service.redis()
                caught = not table.commits()
                stack.enter_context(self.service.halted(store))
            yield caught and self._commits(job)

    def _reserved(self, table: LedgerTable) -> str:
        """Return the attempt of a table's job as soon as the store knows it."""
        with redis.Redis.from_url(self.service.stack.redis_url) as store:

            def attempt() -> str:
                keys = store.scan_iter(f"neve:*{table.id}*:running", 1000)
                found = next((list(store.hgetall(key)) for key in keys), [])
                return found[0].decode() if found else ""

            return self.service.wait("reservation", attempt, table=table, poll_max_s=SOON_S)

    def _writing(self, table: LedgerTable) -> str:
        """Return the attempt of a table's job when its output has begun."""

        def attempt() -> str:
            job = self.service.running(table)
            return job.attempt if job and table.is_being_written(job.attempt) else ""

        found = self.service.wait(
            "output", lambda: attempt() or table.commits(), table=table, poll_max_s=SOON_S
        )
        return found if isinstance(found, str) else ""

    def _written(self, table: LedgerTable, attempt: str) -> None:
        """Return when the output of an attempt has its end."""
        folder = table.location / SERVICE_FOLDER
        end_s = time.monotonic() + 60.0
        while attempt and time.monotonic() < end_s:
            for path in files_below(folder):
                if attempt in path.name and not table.is_being_written(attempt):
                    return
            time.sleep(POLL_S)

    def _state(self, table: LedgerTable, attempt: str) -> str:
        """Return the state of an attempt, or nothing if the table's job has ended."""
        listed = self.service.wait(
            "listing",
            lambda: (
                next((j for j in self.service.client.jobs() if j.state), None) or table.commits()
            ),
            table=table,
        )
        return listed.state if isinstance(listed, Job) and listed.attempt == attempt else ""

    def _commits(self, attempt: str) -> bool:
        """Return whether an attempt is seen to commit; the store does not answer meanwhile."""

        def is_seen() -> bool:
            jobs = self.service.client.jobs()
            return any((job.attempt, job.state) == (attempt, Phase.COMMITTING) for job in jobs)

        with suppress(AssertionError):
            return self.service.wait("commit", is_seen, within_s=20.0, poll_max_s=SOON_S)
        return False

    def _new_table(self, *, paused: bool = False) -> LedgerTable:
        table = LedgerTable(
            self.service.client, self.service.folder, keyed=False, settings=SLOW, paused=paused
        )
        table.add(*(bag_rows(ROWS, seed) for seed in range(FILES)))
        return table

    def _finish_another(self) -> None:
        """See that the compactor takes another job, and nothing is held any more."""
        table = LedgerTable(self.service.client, self.service.folder, keyed=False)
        table.add(*(bag_rows(10, seed) for seed in range(FILES)))
        self.service.wait("commit of another job", table.commits, table=table)
        self.service.wait(
            "free slot",
            lambda: [compactor.busy for compactor in self.service.client.compactors()] == [0],
        )


def _resume(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def _is(part: Part, process: psutil.Process) -> bool:
    """Return whether a process of the stack is such a part."""
    words = words_of(process)
    line, java = " ".join(words), words[0].endswith("java")
    what = {
        Part.DRIVER: not java and "compactor.spark.child" in line,
        Part.JVM: java and "PythonGatewayServer" in line,
        Part.EXECUTOR: java and "DefaultWorker" in line,
        Part.DAEMON: TASKS in line and TASKS not in _parent(process),
        Part.TASK: TASKS in line and TASKS in _parent(process),
    }
    return what[part]


def _parent(process: psutil.Process) -> str:
    """Return the command line of a process's parent."""
    with suppress(psutil.NoSuchProcess):
        if (parent := process.parent()) is not None:
            return " ".join(words_of(parent))
    return ""
