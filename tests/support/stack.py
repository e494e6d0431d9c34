"""A whole service for end-to-end tests: started, watched, hurt, and described when it fails.

Processes are found among the stack's own, by what they are; nobody else's is ever
touched. Ray is not loaded here: it reads its environment once per process, and tests of
other stacks share this one.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from common.control_settings import ControlSettings, IngestSettings
from common.settings import (
    CompactorSettings,
    CoordinatorSettings,
    GatewaySettings,
    Settings,
    StoreSettings,
)
from neve.api import Job
from neve.client import Client
from neve.client.errors import UnavailableError
from neve.local import LocalStack, StackOptions
from neve.local.processes import processes_of_stack
from tests.support.installed_stack import InstalledStack
from tests.support.ledger import LedgerTable
from tests.support.patience import SERVICE_S

T = TypeVar("T")

POLL_S, POLL_MAX_S, POLL_SHARE = 0.02, 0.25, 0.05
"""Pause between two questions: a share of the wait so far. Each question costs the service work."""
CATCHES_MAX = 10
LOG_LINES = 25
COMPACTORS = ("default-1", "default-2")
SILENCE_MAX_S = 6.0
GRACE_S = 1.0
QUARANTINE_FAILURES = 3
FOREGROUND = 300.0
"""Shares of reads and appends on volumes with a limit."""
SETTINGS = Settings(
    control=ControlSettings(foreground_shares=FOREGROUND),
    coordinator=CoordinatorSettings(
        tick_s=0.2,
        full_scan_interval_s=5.0,
        silence_max_s=SILENCE_MAX_S,
        adopt_grace_s=10.0,
        backoff_base_s=0.5,
        backoff_max_s=5.0,
        quarantine_failures=QUARANTINE_FAILURES,
        garbage_grace_s=GRACE_S,
        generation_interval_s=0.8,
        collect_interval_s=0.5,
        clock_skew_max_s=0.1,
    ),
    compactor=CompactorSettings(
        slots=1,
        beat_interval_s=0.5,
        take_wait_max_s=5.0,
        executor_cores=1,
        executor_memory="512m",
        driver_memory="512m",
    ),
    gateway=GatewaySettings(port=0),
    ingest=IngestSettings(flush_age_max_s=600.0),  # Tests look at buffers before they flush them.
)
"""Everything hurries; patience with the silent is shortest, for the tests of it.

No usual port: another stack of this machine may be starting at this moment.
"""
SLOW = {"codec": "zstd", "codec_level": 19, "row_group_bytes": "1MB"}
"""Outputs that take their time, so that somebody can die in the middle of one."""


class Service:
    """A running stack, a client of it, and a folder for tables."""

    def __init__(
        self,
        stack: LocalStack,
        folder: Path,
        *,
        compactors: int = len(COMPACTORS),
        client: Client | None = None,
    ) -> None:
        self.stack = stack
        self.folder = folder
        self.compactors = compactors
        self.client = client or Client(stack.gateway_url, token=stack.token)

    # ------------------------------------------------------------ waits

    def wait(
        self,
        what: str,
        true: Callable[[], T],
        *,
        table: LedgerTable | None = None,
        within_s: float = SERVICE_S,
        poll_max_s: float = POLL_MAX_S,
    ) -> T:
        """Return the first answer that is true; while nobody answers the question, go on.

        Args:
            what: Is waited for, in words.
            true: Asked again and again.
            table: Whose state is told if the wait is in vain.
            within_s: Longest wait.
            poll_max_s: Longest pause between two questions: less for what is soon over.
        """
        begin_s, answer = time.monotonic(), None
        while (waited_s := time.monotonic() - begin_s) < within_s:
            try:
                if answer := true():
                    return answer
            except (UnavailableError, psutil.Error) as error:
                answer = error  # type: ignore[assignment]  # only printed
            time.sleep(min(max(POLL_S, waited_s * POLL_SHARE), poll_max_s))
        raise AssertionError(
            f"no {what} within {within_s:.0f} s, but {answer!r}\n{self.describe(table)}"
        )

    def wait_until_at_rest(self, table: LedgerTable) -> None:
        """Return when nothing runs on a table and nothing would be planned."""
        self.wait("rest", lambda: self._rests(table), table=table)

    def wait_until_none(
        self,
        what: str,
        found: Callable[[], set[str]],
        *,
        table: LedgerTable | None = None,
        poll_max_s: float = POLL_MAX_S,
    ) -> None:
        """Return when no path is found any more; otherwise name some that are left.

        Args:
            what: Describes the end of the wait, in words.
            found: Returns the paths; called repeatedly.
            table: See `wait`.
            poll_max_s: See `wait`.
        """
        try:
            self.wait(what, lambda: not found(), table=table, poll_max_s=poll_max_s)
        except AssertionError as error:
            raise AssertionError(f"left: {sorted(found())[:10]}\n{error}") from error

    def wait_until_clean(self, table: LedgerTable, *, sweep: bool = False) -> None:
        """Return when the table's files are all that is stored below its location.

        Args:
            table: The table.
            sweep: Run `neve gc --delete` meanwhile: an append without an answer leaves its file.
        """

        def found() -> set[str]:
            if sweep:  # Again and again: it leaves young files alone.
                self.client.gc(table.name, delete=True)
            return table.stored() ^ table.listed()

        self.wait_until_none("clean storage", found, table=table)

    def everybody_beats(self) -> bool:
        """Return whether the compactors that the stack was started with are heard of."""
        return {compactor.compactor for compactor in self.client.compactors()} == set(COMPACTORS)

    def running(self, table: LedgerTable) -> Job | None:
        """Return a job that runs on a table."""
        return next((job for job in self.client.jobs() if job.table == table.name), None)

    @contextmanager
    def caught(self, make_table: Callable[[], LedgerTable]) -> Iterator[tuple[LedgerTable, Job]]:
        """Halt a job in the middle of its output, for the length of a block.

        Whoever looks may come too late, on a busy machine: then another table is made.

        Args:
            make_table: Makes a table with a job whose output takes a while.
        """
        for _ in range(CATCHES_MAX):
            table = make_table()
            found = partial(self._writing_or_done, table)
            job = self.wait("job that writes", found, table=table)
            with self.halted(*self.tasks()):
                if isinstance(job, Job) and table.is_being_written(job.attempt):
                    yield table, job
                    return
            self.wait_until_at_rest(table)
        raise AssertionError(f"{CATCHES_MAX} jobs had ended before they were halted")

    def _writing_or_done(self, table: LedgerTable) -> Job | bool:
        job = self.running(table)
        if job is not None and table.is_being_written(job.attempt):
            return job
        return bool(table.commits())

    def _rests(self, table: LedgerTable) -> bool:
        plan = self.client.plan(table.name)
        return not plan.jobs and not plan.running

    # -------------------------------------------------------- processes

    def processes(self) -> list[psutil.Process]:
        """Return the stack's living processes."""
        return processes_of_stack(self.stack.state.mark, self.stack.state.processes)

    def actor(self, kind: str) -> psutil.Process:
        """Return the process of the only actor of a class, once it lives.

        Args:
            kind: Name of the actor's class.
        """
        found = self.wait(f"process of {kind}", lambda: self.titled(f"ray::{kind}"))
        assert len(found) == 1, found
        return found[0]

    def compactor(self, name: str) -> psutil.Process:
        """Return the process of a compactor's actor, once its Spark driver lives."""
        return self.wait(f"process of {name}", lambda: self.driver(name).parent())

    def driver(self, name: str) -> psutil.Process:
        """Return the Spark driver of a compactor; it writes to that compactor's log."""
        log = str(self.stack.folder.logs / f"driver-{name}.log")

        def drives(process: psutil.Process) -> bool:
            words = words_of(process)
            return "compactor.spark.child" in words and _output(process) == log

        found = self.wait(
            f"Spark driver of {name}", lambda: [p for p in self.processes() if drives(p)]
        )
        return found[0]

    def kill(self, process: psutil.Process) -> None:
        """Kill a process and wait until it is gone."""
        process.send_signal(signal.SIGKILL)
        self.wait(f"end of {process}", lambda: not process.is_running() or _is_zombie(process))

    @contextmanager
    def halted(self, *processes: psutil.Process) -> Iterator[None]:
        """Stop processes, which live but do nothing, for the length of a block."""
        for process in processes:
            # Workers of a task daemon that have nothing to do end by themselves.
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def tasks(self) -> list[psutil.Process]:
        """Return the Python processes of Spark's executors: halted, they hold every job."""
        return [p for p in self.processes() if "compactor.spark.task_daemon" in words_of(p)]

    def spark(self) -> set[psutil.Process]:
        """Return the processes of all Spark applications, without those of Python tasks."""

        def is_part(words: list[str]) -> bool:
            java = Path(words[0]).name == "java"
            return java or "compactor.spark.child" in words

        return {p for p in self.processes() if is_part(words_of(p))}

    def restart_redis(self) -> None:
        """Kill Redis at once, and return when the stack's supervisor has started another one."""
        (old,) = self.redis()
        self.kill(old)
        self.wait("another Redis", lambda: [p for p in self.redis() if p.pid != old.pid])

    def redis(self) -> list[psutil.Process]:
        """Return the processes of Redis."""
        names = ("redis-server", "valkey-server")
        return [p for p in self.processes() if words_of(p)[0].endswith(names)]

    def titled(self, title: str) -> list[psutil.Process]:
        """Return the processes whose title begins so."""
        return [p for p in self.processes() if words_of(p)[0].startswith(title)]

    # ------------------------------------------------------ description

    def describe(self, table: LedgerTable | None = None) -> str:
        """Return all that helps to understand a failure."""
        client = self.client
        asked: list[tuple[str, Callable[[], object]]] = [
            ("status", client.status),
            ("compactors", client.compactors),
            ("limits", client.limits),
            ("jobs", client.jobs),
            ("queue", client.queue),
        ]
        if table is not None:
            name = table.name
            asked += [
                ("tablets", lambda: self.client.tablets(name)),
                ("explain", lambda: self.client.explain(name)),
                ("history", lambda: self.client.history(name, count=10)),
                ("stored", table.stored),
            ]
        lines = [f"--- {what}: {_answer(ask)}" for what, ask in asked]
        return "\n".join([*lines, *self.logs()])

    def events(self, event: str, **fields: object) -> list[dict[str, object]]:
        """Return the logged events of a name whose fields are these."""
        wanted = {"event": event, **fields}
        said = (_event_in(line) for path in self._logs() for line in _lines(path))
        return [each for each in said if wanted.items() <= each.items()]

    def _logs(self) -> list[Path]:
        session = self.stack.state.ray_folder / "session_latest" / "logs"
        return [*sorted(self.stack.folder.logs.glob("*.log")), *sorted(session.glob("worker*.err"))]

    def logs(self) -> Iterator[str]:
        """Yield the ends of the logs in which Névé says something."""
        for path in self._logs():
            lines = _lines(path)
            said = [line[:400] for line in lines if line.strip()][-LOG_LINES:]
            if said:
                yield "\n".join([f"--- {path.name}", *said])


def _event_in(line: str) -> dict[str, object]:
    """Return the event that a line of a log is; empty for a line of another program."""
    try:
        found = json.loads(line) if line[:1] == "{" else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:  # It was put aside since it was listed.
        return []


def words_of(process: psutil.Process) -> list[str]:
    """Return a process's command line, or one empty word if it has ended."""
    try:
        return list(process.cmdline()) or [""]
    except psutil.Error:
        return [""]


def _output(process: psutil.Process) -> str:
    try:
        return os.readlink(f"/proc/{process.pid}/fd/1")
    except OSError:
        return ""


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _answer(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except Exception as error:  # told in place of the answer
        return f"{type(error).__name__}: {error}"


@contextmanager
def service_on(
    url: str,
    folder: Path,
    *,
    settings: Settings = SETTINGS,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Service]:
    """Run a service of one compactor on a Redis of the test's own, which has replicas.

    Args:
        url: Of the Redis.
        folder: Where data and tables go.
        settings: Those of its processes, but for the store.
        environ: Theirs; that of this process if left out.
    """
    store = StoreSettings(url=url, wait_replicas=1, timeout_s=5.0)
    options = StackOptions(
        compactors=1, settings=replace(settings, store=store, sources={"store.url": "this test"})
    )
    with InstalledStack.start(home=folder, name="e2e", options=options, environ=environ) as stack:
        yield Service(stack, folder, compactors=1)


@contextmanager
def service(folder: Path, settings: Settings = SETTINGS) -> Iterator[Service]:
    """Run a service of two compactors for the length of a block.

    Args:
        folder: Where its data and tables go.
        settings: Those of its processes.
    """
    options = StackOptions(compactors=len(COMPACTORS), settings=settings)
    with InstalledStack.start(home=folder, name="e2e", options=options) as stack:
        yield Service(stack, folder)
