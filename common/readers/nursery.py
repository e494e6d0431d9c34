"""Starts and ends readers, from the side of the service."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from dataclasses import dataclass

from common.errors import UnavailableError
from common.readers.frames import END, FORK, ID, LIMITS
from common.readers.limits import ReaderLimits

COMMAND = (sys.executable, "-P", "-m", "common.readers.child")
START_WAIT_S = 60.0
"""Longest wait for a fork; the first one waits until everything is imported."""


@dataclass(slots=True, eq=False)
class Reader:
    """A reader process, and our end of its link."""

    id: int
    link: socket.socket
    works: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """How a reader ended."""

    text: str
    """For people."""
    too_late: bool = False
    """Whether it had taken too long."""


class Nursery:
    """The process that readers are forked from; a dead one is replaced. For many threads."""

    def __init__(self, limits: ReaderLimits, modules: Collection[str] = ()) -> None:
        """Take the limits of readers, and the modules whose work they will do."""
        self._limits, self._modules = limits, modules
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self) -> Reader:
        """Return a new reader.

        Raises:
            UnavailableError: No process can be started on this machine now.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    reader = self._forked(theirs)
            except (OSError, EOFError) as error:
                ours.close()
                self.close()
                message = f"no process can be started to look into files: {error}"
                raise UnavailableError(message) from error
        # The reader ends itself in time; one that is stopped from outside does not.
        ours.settimeout(self._limits.wait_s + self._limits.patience_s)
        return Reader(reader, ours)

    def end(self, reader: Reader) -> End:
        """End a reader if it still runs; return how it ended."""
        reader.link.close()
        try:
            with self._lock:
                control = self._control
                if control is None:
                    return End("ended with the process that started it")
                control.sendall(END + ID.pack(reader.id))
                return _told(_number(control), self._limits.wait_s)
        except (OSError, EOFError):
            self.close()
            return End("ended")

    def close(self) -> None:
        """End the process and all readers."""
        with self._lock:
            self._close()

    def _forked(self, theirs: socket.socket) -> int:
        if self._process is not None and self._process.poll() is not None:
            self._close()
        control = self._control or self._start()
        order = LIMITS.pack(self._limits.memory_bytes, self._limits.wait_s)
        control.sendall(FORK)
        socket.send_fds(control, [order], [theirs.fileno()])
        return _number(control)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(START_WAIT_S)
        with theirs:
            self._process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno()), *sorted(self._modules)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        self._control = ours
        return ours

    def _close(self) -> None:
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """Return what the nursery gets: our modules where we have them, memory from the system.

    Arrow's own allocators take address space by the gigabyte before they use it.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, "ARROW_DEFAULT_MEMORY_POOL": "system"}


def _number(control: socket.socket) -> int:
    found = b""
    while len(found) < ID.size:
        piece = control.recv(ID.size - len(found))
        if not piece:
            raise EOFError("it ended at once")
        found += piece
    number: int = ID.unpack(found)[0]
    return number


def _told(status: int, wait_s: float) -> End:
    if status < 0 or not os.WIFSIGNALED(status):
        return End("ended")
    number = os.WTERMSIG(status)
    if number == signal.SIGALRM:
        return End(f"took longer than {wait_s:g} s", too_late=True)
    return End(f"was ended by signal {number} ({signal.Signals(number).name})")
