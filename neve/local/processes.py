"""Processes of one stack: start them, know them again, end them and nobody else.

Every process inherits the variable `NEVE_STACK_MARK` with a random value, and
every one of a stack lives in a session that the stack made. A process belongs to
the stack if it carries the mark, if it shares a session with one that does (Ray's
workers overwrite their environment with their title), or if it descends from one.
Numbers of processes are never trusted alone: the system hands them out again.
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
"""Start times are computed from the time of boot, which wall clocks round."""


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """One process, told apart from a later one with the same number by its start."""

    role: str
    pid: int
    started_s: float

    @classmethod
    def of(cls, role: str, process: psutil.Process) -> Self:
        """Return a reference to a living process."""
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
    """Start a program in a session of its own, its output in a file, in that file's folder.

    Args:
        command: Program and arguments.
        environ: Its whole environment, with the mark.
        log: Appended to.
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


def processes_of_stack(mark: str, known: Iterable[ProcessRef] = ()) -> list[psutil.Process]:
    """Return the living processes of a stack, never this process itself.

    Args:
        mark: The stack's.
        known: Processes written down when they were started.
    """
    everyone = list(psutil.process_iter())
    sure = [p for p in everyone if _has_mark(p, mark)]
    sure += [p for reference in known if (p := reference.process()) is not None]
    sessions = {session for p in sure if (session := _session(p)) is not None}
    # A mark that leaked into this session must not end the user's shell.
    sessions.discard(os.getsid(0))
    found = {p.pid: p for p in sure}
    found |= {p.pid: p for p in everyone if _session(p) in sessions}
    for process in list(found.values()):
        found |= {child.pid: child for child in _children(process)}
    return [p for p in found.values() if p.pid != os.getpid() and _is_alive(p)]


def _none(_: psutil.Process) -> bool:
    return False


def end_processes(
    mark: str,
    known: Iterable[ProcessRef] = (),
    spare: Callable[[psutil.Process], bool] = _none,
) -> list[int]:
    """End the processes of a stack; return the numbers of those that would not go.

    Args:
        mark: The stack's.
        known: Processes written down when they were started.
        spare: Returns whether to leave a process alone this time.
    """
    written = tuple(known)
    for _ in range(ROUNDS_MAX):
        alive = [p for p in processes_of_stack(mark, written) if not spare(p)]
        if not alive:
            return []
        _signal(alive)
    return [p.pid for p in processes_of_stack(mark, written) if not spare(p)]


def _signal(processes: list[psutil.Process]) -> None:
    """Ask, wait, kill. psutil compares the start time before it signals."""
    for process in processes:
        _ignore_ended(process.terminate)
    _, stubborn = psutil.wait_procs(processes, timeout=GRACE_S)
    for process in stubborn:
        _ignore_ended(process.kill)
    psutil.wait_procs(stubborn, timeout=GRACE_S)


def _ignore_ended(signal: Callable[[], object]) -> None:
    """Call a signalling method of a process that may be gone already."""
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
    """Return the session of a process, or None if it is gone."""
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
    """Return whether a process runs and is not merely waiting to be reaped."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def exit_on_sigterm() -> None:
    """Let SIGTERM raise `SystemExit` in the main thread, as Ctrl-C raises an error.

    So a program that is told to end leaves its contexts, and a stack that it runs ends with it. A
    second signal does not break that off.
    """

    def leave(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
