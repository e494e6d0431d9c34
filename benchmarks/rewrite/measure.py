"""Processor time and memory of processes while something runs in them."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Used:
    """What a run has used."""

    cpu_s: float
    peak_bytes: int
    """Largest sum of the processes' resident memory that was seen."""
    largest_bytes: int
    """Most resident memory of any one process that is no JVM."""


class Meter:
    """Watches processes and their children from `start` to `stop`."""

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]]) -> None:
        """Remember who is watched; asked again and again."""
        self._processes = processes
        self._done = threading.Event()
        self._peak_bytes = 0
        self._largest_bytes = 0
        self._before: dict[int, float] = {}
        self._after: dict[int, float] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._before = self._look()
        self._thread.start()

    def stop(self) -> Used:
        """End, and return what was used meanwhile."""
        self._done.set()
        self._thread.join()
        self._look()
        cpu_s = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in self._after.items())
        return Used(cpu_s, self._peak_bytes, self._largest_bytes)

    def _watch(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self._look()

    def _look(self) -> dict[int, float]:
        """Note memory and time of everybody who lives; the dead keep their last figure."""
        resident_bytes = 0
        for process in self._processes():
            try:
                times = process.cpu_times()
                own_bytes = process.memory_info().rss
                if process.name() != "java":
                    self._largest_bytes = max(self._largest_bytes, own_bytes)
            except psutil.Error:
                continue
            resident_bytes += own_bytes
            self._after[process.pid] = times.user + times.system
        self._peak_bytes = max(self._peak_bytes, resident_bytes)
        return dict(self._after)


def tree(pid: int) -> Callable[[], list[psutil.Process]]:
    """Return a process and its descendants, looked up anew at every call."""

    def look() -> list[psutil.Process]:
        try:
            root = psutil.Process(pid)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []

    return look
