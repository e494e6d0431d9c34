"""The reader processes of a service: start, assign work, end; and the functions that run in them.

The gateway and the coordinator set up their readers at start (`use_readers`). From then on, a
function with the mark `@in_reader` runs in a reader, whatever calls it. In compactors and readers,
which may crash on a file, and in short commands, it runs in the calling process.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, ParamSpec, TypeVar

from common.errors import RequestError, UnavailableError
from common.primitives import Backoff
from common.readers import messages
from common.readers.messages import (
    END,
    ENDED_BY_US,
    FORK,
    ID,
    IDLE_READERS_MAX,
    LIMITS,
    LinkError,
    ReaderLimits,
    receive,
    send,
)
from common.runtime import available_bytes, data_bytes
from common.settings import ReaderSettings
from common.telemetry import Log
from common.units import format_bytes

# ---------------------------------------------------------------------- Starting and ending readers


COMMAND = (sys.executable, "-P", "-m", "common.readers.fork_server")
STORAGE_VARIABLES = (
    *("AWS_", "AZURE_", "GOOGLE_", "SSL_CERT_", "HOME"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""Prefixes of environment variables that clients of object stores read."""
SENT_BY_OTHERS = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
)
"""Signals that decoders never cause; the out-of-memory killer and a stopping node send them."""
START_WAIT_S = 60.0
"""Longest wait for a fork; the first fork waits until all imports are done."""


@dataclass(slots=True, eq=False)
class ReaderProcess:
    """A reader process, and the service's end of its link."""

    id: int
    link: socket.socket
    network: bool = False
    works: int = 0


@dataclass(frozen=True, slots=True)
class ReaderEnd:
    """The end of a reader."""

    text: str
    """Description for messages."""
    too_late: bool = False
    """Whether it exceeded its time."""
    by_others: bool = False
    """Whether another process ended it, such as the out-of-memory killer."""


class ForkServer:
    """The process that forks readers; it is replaced if it dies. Thread-safe."""

    def __init__(self, limits: ReaderLimits, modules: Collection[str] = ()) -> None:
        """Set the limits of readers, and the modules that contain their work."""
        self._limits, self._modules = limits, modules
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._server_link: socket.socket | None = None

    def fork(self, *, network: bool = False) -> ReaderProcess:
        """Return a new reader.

        Args:
            network: Whether its files are in an object store.

        Raises:
            UnavailableError: The machine cannot start a process now.
        """
        own_end, other_end = socket.socketpair()
        with other_end:
            try:
                with self._lock:
                    reader = self._forked(other_end, network=network)
            except (OSError, EOFError) as error:
                own_end.close()
                self.close()
                message = f"no process can be started to read files: {error}"
                raise UnavailableError(message) from error
        # A reader ends itself in time, unless another process has stopped it.
        own_end.settimeout(self._limits.wait_s + self._limits.patience_s)
        return ReaderProcess(reader, own_end, network)

    def end(self, reader: ReaderProcess) -> ReaderEnd:
        """End a reader if it still runs; return how it ended."""
        reader.link.close()
        try:
            with self._lock:
                link = self._server_link
                if link is None:
                    return ReaderEnd("ended with the process that started it", by_others=True)
                link.sendall(END + ID.pack(reader.id))
                return _end_of(_number(link), self._limits.wait_s)
        except (OSError, EOFError):
            self.close()
            return ReaderEnd("ended with the process that started it", by_others=True)

    def close(self) -> None:
        """End the process and all readers."""
        with self._lock:
            self._close()

    def _forked(self, other_end: socket.socket, *, network: bool) -> int:
        if self._process is not None and self._process.poll() is not None:
            self._close()
        link = self._server_link or self._start()
        order = LIMITS.pack(self._limits.memory_bytes, self._limits.wait_s, network)
        link.sendall(FORK)
        socket.send_fds(link, [order], [other_end.fileno()])
        return _number(link)

    def _start(self) -> socket.socket:
        own_end, other_end = socket.socketpair()
        own_end.settimeout(START_WAIT_S)
        with other_end:
            self._process = subprocess.Popen(
                [*COMMAND, str(other_end.fileno()), *sorted(self._modules)],
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        self._server_link = own_end
        return own_end

    def _close(self) -> None:
        link, process = self._server_link, self._process
        self._server_link = self._process = None
        if link is not None:
            link.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """Return the environment of the fork server: module paths, and memory from the system.

    Of the service's environment it gets variables that clients of object stores read, and no
    secret. Arrow's own allocators reserve gigabytes of address space before they use them.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(STORAGE_VARIABLES)
    }
    return {**variables, "PYTHONPATH": paths, "ARROW_DEFAULT_MEMORY_POOL": "system"}


def _number(link: socket.socket) -> int:
    content = b""
    while len(content) < ID.size:
        piece = link.recv(ID.size - len(content))
        if not piece:
            raise EOFError("it ended at once")
        content += piece
    number: int = ID.unpack(content)[0]
    return number


def _end_of(status: int, wait_s: float) -> ReaderEnd:
    if status == ENDED_BY_US:
        return ReaderEnd("did not end by itself")
    if status < 0 or not os.WIFSIGNALED(status):
        return ReaderEnd("ended")
    number = os.WTERMSIG(status)
    if number == signal.SIGALRM:
        return ReaderEnd(f"took longer than {wait_s:g} s", too_late=True)
    text = f"was ended by signal {number} ({signal.Signals(number).name})"
    return ReaderEnd(text, by_others=number in SENT_BY_OTHERS)


# ----------------------------------------------------------------------------------------- The pool


TRIES = 2
"""Crashes allowed for one piece of work; the last try gets a new reader."""
TRIES_OF_OTHERS = 4
"""Deaths caused by other processes that are allowed for one piece of work."""
OTHERS_BACKOFF = Backoff(base_s=0.1, max_s=2.0)


class ReaderDeathError(RequestError):
    """The input of a reader has ended it; no other process should open this input."""


class Readers:
    """Reader processes, forked on demand and reused. Thread-safe."""

    def __init__(self, limits: ReaderLimits, log: Log, modules: Collection[str] = ()) -> None:
        """Set the limits of readers, the log of their deaths, and the modules of their work."""
        self._limits, self._log = limits, log
        self._nursery = ForkServer(limits, modules)
        self._slots = threading.BoundedSemaphore(limits.readers)
        self._spare = threading.BoundedSemaphore(limits.readers)
        self._lock = threading.Lock()
        self._idle: dict[bool, list[ReaderProcess]] = {False: [], True: []}
        """Idle readers, by whether they have network access."""
        self._closed = threading.Event()

    @classmethod
    def of(cls, settings: ReaderSettings, log: Log, modules: Collection[str]) -> "Readers":
        """Return readers with the limits of the settings, for work of some modules."""
        limits = ReaderLimits(
            readers=settings.count,
            memory_bytes=settings.memory_bytes,
            wait_s=settings.wait_s,
            kept=min(settings.count, IDLE_READERS_MAX),
        )
        return cls(limits, log, modules)

    def warm(self) -> None:
        """Start the first reader now, so that the first call does not wait for it."""
        with self._slots:
            self._done_with(self._nursery.fork())

    def ask(
        self, about: str, work: Callable[..., Any], arguments: tuple[Any, ...], named: Any = None
    ) -> Any:
        """Return the result of `work`, executed in a reader. Blocks.

        Args:
            about: Subject of errors: "file a.parquet".
            work: A function of one of our modules, whose result consists of plain values.
            arguments: Positional arguments.
            named: Keyword arguments.

        Raises:
            ReaderDeathError: The work ended its readers, by crashes or by taking too long.
            UnavailableError: The readers ended for other reasons.
            RequestError: The work needs too much memory, or failed unexpectedly.
            CompactionError: The work raised it.
        """
        named = named or {}
        order = messages.pack_message(messages.ReaderOrder(work, arguments, named))
        network = _needs_network(next(iter((*arguments, *named.values())), ""))
        crashes = others = 0
        while True:
            try:
                result = self._executed(order, network=network, fresh=bool(crashes or others))
                return self._value_of(about, result)
            except _DeathError as death:
                end, too_late = str(death), death.too_late
                crashes, others = crashes + (not death.by_others), others + death.by_others
            self._log("reader died", about=about, how=end)
            if others and (too_late or others == TRIES_OF_OTHERS):
                raise UnavailableError(
                    f"{about} cannot be read now: the process that read it {end}, and not"
                    " because of what it read; does the machine have too little memory?"
                )
            if too_late or crashes == TRIES:
                break
            self._closed.wait(OTHERS_BACKOFF.wait_s(others) if others else 0.0)
        self._require_sound(about, end, network=network)
        raise ReaderDeathError(
            f"{about} cannot be read: the process that read it {end}; "
            "the file is damaged, or was built to cause this"
        )

    def _require_sound(self, about: str, end: str, *, network: bool) -> None:
        """Check that readers work on this machine before a file is blamed for a reader's end.

        Raises:
            UnavailableError: There is no memory for a reader, or an idle one dies.
        """
        nothing = messages.pack_message(messages.ReaderOrder(data_bytes, (), {}))
        free_bytes = available_bytes()
        cause = ""
        if free_bytes is not None and free_bytes < self._limits.memory_bytes:
            cause = f"only {format_bytes(free_bytes)} of memory are free"
        else:
            try:
                self._executed(nothing, network=network, fresh=True)
            except _DeathError as death:
                cause = f"a process that read nothing {death}"
        if cause:
            raise UnavailableError(
                f"{about} cannot be read now: the process that read it {end}, but {cause}"
            )

    def close(self) -> None:
        """End all readers, including busy ones."""
        with self._lock:
            self._closed.set()
            idle, self._idle = self._idle, {False: [], True: []}
        for process in (*idle[False], *idle[True]):
            process.link.close()
        self._nursery.close()

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Take a slot, or a spare one after a while: a dead storage may block all regular slots."""
        slots = self._slots
        while not slots.acquire(timeout=self._limits.patience_s):
            if self._spare.acquire(blocking=False):
                slots = self._spare
                break
        try:
            yield
        finally:
            slots.release()

    def _executed(self, order: bytes, *, network: bool, fresh: bool) -> messages.Result:
        with self._slot():
            reader = self._nursery.fork(network=network) if fresh else self._taken(network)
            begun = False
            try:
                send(reader.link, order)
                begun = True
                answer = messages.unpack_answer(receive(reader.link, self._limits.answer_bytes))
            except TimeoutError as error:
                # A reader ends itself in time, whatever it reads, unless another process has
                # stopped it.
                self._nursery.end(reader)
                raise _DeathError("stopped responding", too_late=True, by_others=True) from error
            except LinkError as error:
                end = self._nursery.end(reader)
                by_others = end.by_others or not begun
                raise _DeathError(end.text, too_late=end.too_late, by_others=by_others) from error
            except messages.ReaderAnswerError as error:
                self._nursery.end(reader)
                raise _DeathError(f"gave a malformed answer ({error})") from error
            except BaseException:
                self._nursery.end(reader)
                raise
            self._done_with(reader)
            return answer

    def _taken(self, network: bool) -> ReaderProcess:
        with self._lock:
            if self._idle[network]:
                return self._idle[network].pop()
        return self._nursery.fork(network=network)

    def _done_with(self, reader: ReaderProcess) -> None:
        reader.works += 1
        with self._lock:
            idle = self._idle[reader.network]
            keeps = not self._closed.is_set() and len(idle) < self._limits.kept
            if keeps and reader.works < self._limits.works:
                idle.append(reader)
                return
        self._nursery.end(reader)

    def _value_of(self, about: str, result: messages.Result) -> Any:
        match result:
            case messages.ReaderResult(value):
                return value
            case messages.ReaderRefusal(error):
                raise error
            case messages.ReaderFailure(cause):
                raise RequestError(f"{about} cannot be read: {cause}")
            case messages.ReaderOutOfMemory():
                limit = self._limits.memory_bytes // 1024**2
                raise RequestError(
                    f"{about} cannot be read: reading it takes more than {limit} MiB of memory"
                )


class _DeathError(Exception):
    """The death of a reader, with a description."""

    def __init__(self, end: str, *, too_late: bool = False, by_others: bool = False) -> None:
        super().__init__(end)
        self.too_late = too_late
        self.by_others = by_others


def _needs_network(where: object) -> bool:
    """Return whether the location in the first argument is in an object store."""
    uri = getattr(where, "uri", None) or getattr(where, "location", where)
    return not isinstance(uri, str) or ("://" in uri and not uri.startswith("file:"))


# -------------------------------------------------------------------- Work that is done in a reader


P = ParamSpec("P")
T = TypeVar("T")


class _ProcessReaders:
    readers: Readers | None = None
    modules: ClassVar[set[str]] = set()


def use_readers(readers: Readers | None) -> None:
    """Run marked functions in these readers; None: in the calling process."""
    _ProcessReaders.readers = readers


def open_readers(settings: ReaderSettings, log: Log) -> Readers:
    """Create readers with the limits of the settings, and run marked functions in them."""
    readers = Readers.of(settings, log, _ProcessReaders.modules)
    use_readers(readers)
    return readers


def in_reader(about: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Mark a module's function that opens untrusted bytes. It blocks.

    Its arguments and its result are plain values. In a process that has readers, it raises
    `ReaderDeathError`, a `RequestError`, for input that ends them.

    Args:
        about: Subject of errors: `"file {path}"`, formatted with the function's arguments.
    """

    def marked(work: Callable[P, T]) -> Callable[P, T]:
        shape = signature(work)
        _ProcessReaders.modules.add(work.__module__)

        @wraps(work)
        def asked(*args: P.args, **kwargs: P.kwargs) -> T:
            if (readers := _ProcessReaders.readers) is None:
                return work(*args, **kwargs)
            subject = about.format(**shape.bind(*args, **kwargs).arguments)
            # The reader finds `asked` under the function's name, and has no readers itself.
            result: T = readers.ask(subject, asked, args, kwargs)
            return result

        return asked

    return marked
