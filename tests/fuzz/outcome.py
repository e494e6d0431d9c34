"""What became of the inputs, and how much memory the processes took."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

READ, REFUSED, READER_DIED = "accepted", "refused", "refused, its reader died"
WATCH_S = 0.02
DEATH = "has ended"
"""In the fact of a violation: a process did."""


@dataclass
class Outcome:
    """What has become of the inputs so far."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By target, or part of one, and end."""
    violations: list[str] = field(default_factory=list)
    peaks: Counter[str] = field(default_factory=Counter)
    """Largest resident memory by kind of process."""
    limits: Counter[str] = field(default_factory=Counter)

    def count(self, way: str, end: str, more: int = 1) -> None:
        """Count inputs of one kind that ended in the same way."""
        self.counts[way, end] += more

    def violated(self, replay: str, way: str, fact: str) -> None:
        """Note what must not be.

        Args:
            replay: What to give `make fuzz` to see it again.
            way: Where it came from, or what was done.
            fact: What happened.
        """
        self.violations.append(f"{replay} ({way}): {fact}")

    def of(self, way: str, end: str | None = None) -> int:
        """Return how many inputs came this way, or how many of them ended so."""
        found = {key: count for key, count in self.counts.items() if key[0] == way}
        return sum(found.values()) if end is None else found.get((way, end), 0)

    def require_memory(self) -> None:
        """Note which kinds of processes took more memory than they may."""
        for kind, limit in self.limits.items():
            if self.peaks[kind] > limit:
                mib = self.peaks[kind] // 1024**2
                self.violations.append(f"memory of the {kind}: {mib} MiB, over its limit")


class Watch:
    """Looks at the memory of processes all the time."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._watched: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def follow(self, kind: str, pid: int, room_bytes: int, reader_bytes: int) -> None:
        """Look at a process from now on, and hold it and its readers against their limits.

        Args:
            kind: What it is called.
            pid: Its id.
            room_bytes: What it may take besides what it has now.
            reader_bytes: What each of its readers may take besides that.
        """
        begun = resident_bytes(pid)
        self._watched[kind] = pid
        limits = self._outcome.limits
        limits[kind] = max(limits[kind], begun + room_bytes)
        limits["reader"] = max(limits["reader"], begun + reader_bytes)

    def _look(self) -> None:
        peaks = self._outcome.peaks
        while not self._stop.wait(WATCH_S):
            for kind, pid in [*self._watched.items()]:
                peaks[kind] = max(peaks[kind], resident_bytes(pid))
                for reader in _descendants(pid):
                    peaks["reader"] = max(peaks["reader"], resident_bytes(reader))


def resident_bytes(pid: int) -> int:
    """Return the largest memory of a process as far as the system tells, 0 if it has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
