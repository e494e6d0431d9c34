"""The readers of a service, and the work that they are given."""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from common.errors import RequestError
from common.readers import answers
from common.readers.frames import LinkError, receive, send
from common.readers.limits import KEPT, ReaderLimits
from common.readers.nursery import Nursery, Reader
from common.settings import ReaderSettings
from common.telemetry import Log

TRIES = 2
"""For one piece of work: somebody else may have ended a reader, for want of memory for example."""


class ReaderDeathError(RequestError):
    """What a reader was given has ended it: no other process should look into that."""


class Readers:
    """Some reader processes, forked when needed and kept for the next. For many threads."""

    def __init__(self, limits: ReaderLimits, log: Log, modules: Collection[str] = ()) -> None:
        """Take what they may take, who hears of their deaths, and the modules of their work."""
        self._limits, self._log = limits, log
        self._nursery = Nursery(limits, modules)
        self._places = threading.BoundedSemaphore(limits.readers)
        self._spare = threading.BoundedSemaphore(limits.readers)
        self._lock = threading.Lock()
        self._idle: list[Reader] = []
        self._closed = False

    @classmethod
    def of(cls, settings: ReaderSettings, log: Log, modules: Collection[str]) -> "Readers":
        """Return readers as the settings want them, for work of some modules."""
        limits = ReaderLimits(
            readers=settings.count,
            memory_bytes=settings.memory_bytes,
            wait_s=settings.wait_s,
            kept=min(settings.count, KEPT),
        )
        return cls(limits, log, modules)

    def warm(self) -> None:
        """Start the first one now, so that nobody waits for that later."""
        with self._places:
            self._done_with(self._nursery.fork())

    def ask(
        self, about: str, work: Callable[..., Any], arguments: tuple[Any, ...], named: Any = None
    ) -> Any:
        """Return what `work` returns, from a reader. Blocks.

        Args:
            about: What it looks into, for errors: "file a.parquet".
            work: A function of a module of ours, whose result is made of plain values.
            arguments: By place.
            named: Arguments by name.

        Raises:
            ReaderDeathError: It ended its readers, by crashes or by taking too long.
            RequestError: It needs too much memory, or failed in a way nobody expected.
            CompactionError: What it raised itself.
        """
        order = answers.packed(answers.Order(work, arguments, named or {}))
        how = ""
        for _ in range(TRIES):
            try:
                return self._meant(about, self._asked(order))
            except _DeathError as death:
                how = str(death)
                self._log("reader died", about=about, how=how)
                if death.too_late:
                    break
        raise ReaderDeathError(
            f"{about} cannot be read: the process that looked into it {how}; "
            "it is damaged, or was made to do that"
        )

    def close(self) -> None:
        """End all readers, whatever they do."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.link.close()
        self._nursery.close()

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Take a place, or a spare one after a while: all others may wait for one dead storage."""
        places = self._places
        while not places.acquire(timeout=self._limits.patience_s):
            if self._spare.acquire(blocking=False):
                places = self._spare
                break
        try:
            yield
        finally:
            places.release()

    def _asked(self, order: bytes) -> answers.Result:
        with self._place():
            reader = self._taken()
            try:
                send(reader.link, order)
                found = answers.unpacked(receive(reader.link, self._limits.answer_bytes))
            except (LinkError, TimeoutError) as error:
                end = self._nursery.end(reader)
                raise _DeathError(end.text, too_late=end.too_late) from error
            except answers.AnswerError as error:
                self._nursery.end(reader)
                raise _DeathError(f"gave an answer that is none ({error})") from error
            except BaseException:
                self._nursery.end(reader)
                raise
            self._done_with(reader)
            return found

    def _taken(self) -> Reader:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._nursery.fork()

    def _done_with(self, reader: Reader) -> None:
        reader.works += 1
        with self._lock:
            keeps = not self._closed and len(self._idle) < self._limits.kept
            if keeps and reader.works < self._limits.works:
                self._idle.append(reader)
                return
        self._nursery.end(reader)

    def _meant(self, about: str, result: answers.Result) -> Any:
        match result:
            case answers.Done(value):
                return value
            case answers.Refused(error):
                raise error
            case answers.Failed(cause):
                raise RequestError(f"{about} cannot be read: {cause}")
            case answers.Short():
                limit = self._limits.memory_bytes // 1024**2
                raise RequestError(
                    f"{about} cannot be read: to look into it takes more than {limit} MiB of memory"
                )


class _DeathError(Exception):
    """How a reader ended."""

    def __init__(self, how: str, *, too_late: bool = False) -> None:
        super().__init__(how)
        self.too_late = too_late
