"""Processes of one stack: start, recognise and end them, and no other processes.

Every process inherits the variable `NEVE_STACK_MARK` with a random value, and runs in a session
that the stack created. A process belongs to the stack if it carries the mark, if it shares a
session with a marked process (Ray's workers overwrite their environment with their title), or if it
is a descendant of such a process. A process ID alone never identifies a process, because the system
reuses IDs.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

MARK_VARIABLE = "NEVE_STACK_MARK"
ROUNDS_MAX = 5
GRACE_S = 3.0
"""Time between asking a process to end (SIGTERM) and killing it."""
START_SLACK_S = 0.5
"""Start times are derived from the boot time, which is subject to clock rounding."""


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """One process; the start time distinguishes it from a later process with the same ID."""

    role: str
    pid: int
    started_s: float

    @classmethod
    def of(cls, role: str, process: psutil.Process) -> Self:
        """Return a reference to a running process."""
        return cls(role, process.pid, process.create_time())

    def process(self) -> psutil.Process | None:
        """Return this very process if it still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_s) < START_SLACK_S
        except psutil.Error:
            return None
        return process if same and _is_alive(process) else None

    def alive(self) -> bool:
        """Return whether this very process still runs."""
        return self.process() is not None


def spawn(command: Sequence[str], environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program in its own session, in the folder of its log file.

    Args:
        command: Program and arguments.
        environ: The whole environment of the process, with the mark.
        log: Output is appended to this file.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=dict(environ),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def processes_of_stack(mark: str, recorded: Iterable[ProcessRef] = ()) -> list[psutil.Process]:
    """Return the running processes of a stack, except this process.

    Args:
        mark: The stack's mark.
        recorded: Processes written down when they were started.
    """
    everyone = list(psutil.process_iter())
    sure = [p for p in everyone if _has_mark(p, mark)]
    sure += [p for reference in recorded if (p := reference.process()) is not None]
    sessions = {session for p in sure if (session := _session(p)) is not None}
    # If the mark leaked into this session, the user's shell must not be ended.
    sessions.discard(os.getsid(0))
    by_pid = {p.pid: p for p in sure}
    by_pid |= {p.pid: p for p in everyone if _session(p) in sessions}
    for process in list(by_pid.values()):
        by_pid |= {child.pid: child for child in _children(process)}
    return [p for p in by_pid.values() if p.pid != os.getpid() and _is_alive(p)]


def _none(_: psutil.Process) -> bool:
    return False


def end_processes(
    mark: str,
    recorded: Iterable[ProcessRef] = (),
    spare: Callable[[psutil.Process], bool] = _none,
) -> list[int]:
    """End the processes of a stack; return the IDs of those that are still running.

    Args:
        mark: The stack's mark.
        recorded: Processes written down when they were started.
        spare: Returns whether to keep a process.
    """
    written = tuple(recorded)
    for _ in range(ROUNDS_MAX):
        alive = [p for p in processes_of_stack(mark, written) if not spare(p)]
        if not alive:
            return []
        _signal(alive)
    return [p.pid for p in processes_of_stack(mark, written) if not spare(p)]


def _signal(processes: list[psutil.Process]) -> None:
    """Send SIGTERM, wait, then kill. psutil compares the start time before it signals."""
    for process in processes:
        _ignore_ended(process.terminate)
    _, stubborn = psutil.wait_procs(processes, timeout=GRACE_S)
    for process in stubborn:
        _ignore_ended(process.kill)
    psutil.wait_procs(stubborn, timeout=GRACE_S)


def _ignore_ended(signal: Callable[[], object]) -> None:
    """Call a signalling method of a process that may have ended already."""
    try:
        signal()
    except psutil.NoSuchProcess:
        return


def _has_mark(process: psutil.Process, mark: str) -> bool:
    """Return whether a process was started with the mark."""
    try:
        return bool(process.environ().get(MARK_VARIABLE) == mark)
    except (psutil.Error, OSError):
        return False


def _session(process: psutil.Process) -> int | None:
    """Return the session of a process, or None if the process has ended."""
    try:
        return os.getsid(process.pid)
    except OSError:
        return None


def _children(process: psutil.Process) -> list[psutil.Process]:
    """Return all descendants of a process."""
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def exit_on_sigterm() -> None:
    """Make SIGTERM raise `SystemExit` in the main thread, as Ctrl-C raises `KeyboardInterrupt`.

    The program then exits its contexts, which stops a stack that it runs. A second signal does not
    interrupt the cleanup.
    """

    def leave(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
