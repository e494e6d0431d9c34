"""The remaining bytes of an attempt's grant: a token bucket that all its tasks share.

  asked      bytes that callers have requested or moved; only grows
  covered    bytes that the grant has paid for; grows with time, never far beyond `asked`

A caller continues when `covered` has reached the value that `asked` had at its arrival, so callers
are served in arrival order. The state is a mapped file in the attempt's folder, on the machine
where all its tasks run. A system lock guards it, which is released when its holder dies.
"""

import fcntl
import math
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from common.errors import AttemptCancelledError
from common.primitives import Budget
from common.runtime import SystemClock

NAME = "allowance"
_CANCELLED = "cancelled while it moved bytes"
SYNC_BYTES_MIN = 4 * 1024**2
"""Smaller syncs are not recorded, because recording takes as long."""
OPEN_MAX = 16
_UNLIMITED = math.inf
_FORM = struct.Struct("<dddddQdBQ")


@dataclass(slots=True)
class _State(Budget):
    """The content of the file."""

    synced_bytes: int = 0
    sync_s: float = 0.0
    stopped: int = 0
    read_bytes: int = 0
    """Part of `asked`."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of an allowance so far."""

    moved_bytes: int = 0
    waited_s: float = 0.0
    synced_bytes: int = 0
    sync_s: float = 0.0
    read_bytes: int = 0
    """Part of `moved_bytes` that came from inputs; the grant pays for it first."""

    @property
    def written_bytes(self) -> int:
        """Part of `moved_bytes` that went to outputs."""
        return self.moved_bytes - self.read_bytes


class Allowance:
    """One process's access to the allowance of an attempt; thread-safe."""

    def __init__(self, folder: str) -> None:
        """Open the allowance of the attempt with this folder; without one, nothing is limited.

        Args:
            folder: Empty: no attempt.
        """
        self._clock = SystemClock()
        self._thread = threading.Lock()
        self._pause = threading.Event()
        self._map: mmap.mmap | None = None
        self._descriptor = -1
        if not folder:
            return
        try:
            self._descriptor = os.open(Path(folder, NAME), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        weakref.finalize(self, os.close, self._descriptor)
        self._map = mmap.mmap(self._descriptor, _FORM.size)

    @classmethod
    def create(cls, folder: str, bytes_s: float | None) -> "Allowance":
        """Create the allowance of an attempt, with nothing saved up.

        Args:
            folder: Folder of the attempt.
            bytes_s: Its first grant; None: no limit.
        """
        rate = _UNLIMITED if bytes_s is None else bytes_s
        empty = _State(rate, SystemClock().now_s())
        Path(folder, NAME).write_bytes(_packed(empty))
        return cls(folder)

    def grant(self, bytes_s: float | None) -> None:
        """Apply another grant from now on; None: no limit."""
        with self._locked() as state:
            state.bytes_s = _UNLIMITED if bytes_s is None else bytes_s

    @property
    def limited(self) -> bool:
        """Whether there is a limit now."""
        with self._locked() as state:
            return state.bytes_s != _UNLIMITED

    def stop(self) -> None:
        """End every wait, because the attempt was cancelled."""
        with self._locked() as state:
            state.stopped = 1

    def pay(self, read_bytes: int = 0, *, written_bytes: int = 0) -> None:
        """Count bytes that are about to be moved, or just were; return when they are covered.

        Raises:
            AttemptCancelledError: The attempt was cancelled.
        """
        with self._locked() as state:
            state.asked += read_bytes + written_bytes
            state.read_bytes += read_bytes
            state.pass_time(state.at_s)
            asked, covered, stopped = state.asked, state.covered, state.stopped
        if stopped:
            raise AttemptCancelledError(_CANCELLED)
        if covered < asked:
            self._wait(asked)

    def settle(self) -> None:
        """Wait until all moved bytes are covered; errors as of `pay`."""
        self.pay()

    def synced(self, size_bytes: int, took_s: float) -> None:
        """Record how long the storage took to make bytes durable."""
        if size_bytes >= SYNC_BYTES_MIN:
            with self._locked() as state:
                state.synced_bytes += size_bytes
                state.sync_s += took_s

    def usage(self) -> Usage:
        """Return the use so far."""
        with self._locked() as state:
            moved, read = state.moved_bytes, min(state.moved_bytes, state.read_bytes)
            return Usage(moved, state.waited_s, state.synced_bytes, state.sync_s, read)

    def _wait(self, asked: float) -> None:
        last_s = self._clock.now_s()
        while True:
            with self._locked() as state:
                now_s = self._clock.now_s()
                state.waited_s, last_s = state.waited_s + now_s - last_s, now_s
                if state.stopped:
                    raise AttemptCancelledError(_CANCELLED)
                wait_s = state.wait_s(asked)
            if wait_s <= 0:
                return
            self._pause.wait(wait_s)

    @contextmanager
    def _locked(self) -> Iterator[_State]:
        """Yield the current state; changes are written, unless an error occurs."""
        if self._map is None:
            yield _State(_UNLIMITED, 0.0)
            return
        with self._thread:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                state = _State(*_FORM.unpack_from(self._map))
                state.pass_time(self._clock.now_s())
                yield state
                self._map[: _FORM.size] = _packed(state)
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)


@lru_cache(OPEN_MAX)
def allowance_of(folder: str) -> Allowance:
    """Return the allowance of the attempt with a folder, opened once per process.

    Args:
        folder: Folder of the attempt; empty: no attempt.
    """
    return Allowance(folder)


def _packed(state: _State) -> bytes:
    return _FORM.pack(
        state.bytes_s,
        state.at_s,
        state.asked,
        state.covered,
        state.waited_s,
        state.synced_bytes,
        state.sync_s,
        state.stopped,
        state.read_bytes,
    )
