"""Processor time and memory of processes while something runs in them."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

INTERVAL_S = 0.05
LOOKS_PER_LIST = 20
"""Looking for processes takes milliseconds, which those who are measured would lack."""


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
        self._found: list[tuple[psutil.Process, bool]] = []
        self._before: dict[int, float] = {}
        self._after: dict[int, float] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._before = self._list()
        self._thread.start()

    def stop(self) -> Used:
        """End, and return what was used meanwhile."""
        self._done.set()
        self._thread.join()
        self._list()
        cpu_s = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in self._after.items())
        return Used(cpu_s, self._peak_bytes, self._largest_bytes)

    def _watch(self) -> None:
        looks = 0
        while not self._done.wait(INTERVAL_S):
            looks += 1
            if looks % LOOKS_PER_LIST:
                self._look()
            else:
                self._list()

    def _list(self) -> dict[int, float]:
        """Look up who lives, and note their time and memory; the dead keep their last figure."""
        self._found = []
        for process in self._processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._after[process.pid] = times.user + times.system
                self._found.append((process, process.name() == "java"))
        self._look()
        return dict(self._after)

    def _look(self) -> None:
        """Note the memory of those that were found."""
        resident_bytes = 0
        for process, is_jvm in self._found:
            with suppress(psutil.Error):
                own_bytes = process.memory_info().rss
                resident_bytes += own_bytes
                if not is_jvm:
                    self._largest_bytes = max(self._largest_bytes, own_bytes)
        self._peak_bytes = max(self._peak_bytes, resident_bytes)


def tree(pid: int) -> Callable[[], list[psutil.Process]]:
    """Return a process and its descendants, looked up anew at every call."""

    def look() -> list[psutil.Process]:
        try:
            root = psutil.Process(pid)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []

    return look
