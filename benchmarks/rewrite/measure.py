"""What a round used: processor time of the contender, of other programs and of the hypervisor.

Processor times are read before and after a round, when the contender rests. `MemorySampler` reads
one small file per process and knows what that costs. The many processes of a stack are sampled in
warm-ups only, whose times do not count.
"""

import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from compactor.spark.engine import SparkEngine

Processes = Callable[[], Iterable[psutil.Process]]
FOREIGN_FLOOR_S = 0.05
"""Processor time is counted in ticks of 10 ms, in dozens of processes: less is not significant."""
INTERVAL_S = 0.05
LOOKS_PER_LIST = 20
LOOKS_APART = 400
"""Time between two looks, in looks: with more processes, the sampler looks less often."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Load:
    """Processor seconds of the whole machine since its start."""

    busy_s: float
    steal_s: float

    @classmethod
    def now(cls) -> "Load":
        """Read the counters."""
        times = psutil.cpu_times()
        parts = ("user", "nice", "system", "irq", "softirq")
        busy_s = sum(getattr(times, name, 0.0) for name in parts)
        return cls(busy_s, getattr(times, "steal", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What was used while a contender ran, in processor seconds."""

    cpu_s: float
    """Of the contender."""
    foreign_s: float
    """Of programs that are no part of the benchmark."""
    steal_s: float
    """Given to other virtual machines while this one had work."""
    wall_s: float

    @property
    def disturbance(self) -> float:
        """Share of the machine that the benchmark did not get, from 0 to 1."""
        lost_s = self.foreign_s + self.steal_s
        if lost_s < FOREIGN_FLOOR_S or self.wall_s <= 0:
            return 0.0
        return lost_s / (self.wall_s * (os.cpu_count() or 1))


class Watch:
    """Processor time between `start` and `stop`."""

    def __init__(self, contender: Processes, others: Processes) -> None:
        """Remember which processes count.

        Args:
            contender: Processes that are measured.
            others: Further processes of the benchmark; their time is not foreign.
        """
        self._contender = contender
        self._others = others
        self._before: dict[psutil.Process, float] = {}
        self._load = Load(0.0, 0.0)
        self._begun_s = 0.0

    def start(self) -> None:
        """Begin; listing processes takes time, so the counters are read after it."""
        listed = {*self._contender(), *self._others()}
        self._before = _cpu_seconds(listed)
        self._begun_s = time.perf_counter()
        self._load = Load.now()

    def stop(self) -> Used:
        """End, and return what was used meanwhile."""
        load = Load.now()
        wall_s = time.perf_counter() - self._begun_s
        after = _cpu_seconds(self._before)  # First of all: listing costs time of this process.
        contender, others = set(self._contender()), set(self._others())
        after |= _cpu_seconds((contender | others) - after.keys())
        measured = contender | (self._before.keys() - others)
        cpu_s = self._spent(after, measured)
        foreign_s = load.busy_s - self._load.busy_s - self._spent(after, {*after, *self._before})
        return Used(
            cpu_s=cpu_s,
            foreign_s=max(0.0, foreign_s),
            steal_s=max(0.0, load.steal_s - self._load.steal_s),
            wall_s=wall_s,
        )

    def _spent(
        self, after: Mapping[psutil.Process, float], processes: set[psutil.Process]
    ) -> float:
        """Return the time of some processes; the dead are in the times of their parents."""
        late_s = sum(after.get(process, 0.0) for process in processes)
        early_s = sum(self._before.get(process, 0.0) for process in processes)
        return max(0.0, late_s - early_s)


def _cpu_seconds(processes: Iterable[psutil.Process]) -> dict[psutil.Process, float]:
    """Return the processor time of processes, with that of children that have ended."""
    seconds = {}
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            children_s = getattr(times, "children_user", 0.0) + getattr(
                times, "children_system", 0.0
            )
            seconds[process] = times.user + times.system + children_s
    return seconds


@dataclass(slots=True)
class Memory:
    """Largest private resident memory that was seen: pages of mapped files do not count."""

    peak_bytes: int = 0
    """Of all processes together."""
    process_bytes: int = 0
    """Of any one process that is no JVM."""
    cost_s: float = 0.0
    """Processor time of the sampler."""
    ended: bool = False
    """Whether a process was ended because it had more than the limit."""

    def include(self, other: "Memory") -> None:
        """Take the larger figures."""
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.process_bytes = max(self.process_bytes, other.process_bytes)


@dataclass(slots=True)
class _Sampled:
    """An open `statm` of a process."""

    pid: int
    is_jvm: bool
    file: int = field(default=-1)


class MemorySampler:
    """Samples the memory of processes, and ends one that exceeds a limit."""

    def __init__(self, processes: Iterable[psutil.Process], limit_bytes: int = 0) -> None:
        """List the processes; children that they start later are added.

        Args:
            processes: Processes that are sampled.
            limit_bytes: A process with more, a JVM excepted, is killed; 0: no limit.
        """
        self._limit_bytes = limit_bytes
        self._memory = Memory()
        self._samples = 0
        self._done = threading.Event()
        self._sampled: dict[int, _Sampled] = {}
        for process in processes:
            with suppress(psutil.Error):
                self._add(process.pid, process.name() == "java")
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def samples(self) -> int:
        """How often memory was looked at."""
        return self._samples

    def stop(self) -> Memory:
        """End, and return what was seen."""
        self._done.set()
        self._thread.join()
        for sampled in self._sampled.values():
            os.close(sampled.file)
        self._sampled.clear()
        return self._memory

    def _add(self, pid: int, is_jvm: bool) -> None:
        if pid not in self._sampled:
            with suppress(OSError):
                file = os.open(f"/proc/{pid}/statm", os.O_RDONLY)
                self._sampled[pid] = _Sampled(pid, is_jvm, file)

    def _watch(self) -> None:
        interval_s = INTERVAL_S
        while not self._done.wait(interval_s):
            if self._samples % LOOKS_PER_LIST == LOOKS_PER_LIST - 1:
                self._add_children()
            self._look()
            self._samples += 1
            interval_s = max(INTERVAL_S, LOOKS_APART * time.thread_time() / self._samples)
        self._memory.cost_s = time.thread_time()

    def _add_children(self) -> None:
        """Add children of processes that are no JVMs: listing all processes would cost too much."""
        for sampled in list(self._sampled.values()):
            children = Path(f"/proc/{sampled.pid}/task/{sampled.pid}/children")
            if not sampled.is_jvm:
                with suppress(OSError):
                    for pid in children.read_text().split():
                        self._add(int(pid), is_jvm=False)

    def _look(self) -> None:
        sum_bytes = 0
        for sampled in self._sampled.values():
            try:
                _, resident, shared, *_ = os.pread(sampled.file, 128, 0).split()
            except (OSError, ValueError):  # It has ended.
                continue
            own_bytes = (int(resident) - int(shared)) * PAGE_BYTES
            sum_bytes += own_bytes
            if not sampled.is_jvm:
                self._memory.process_bytes = max(self._memory.process_bytes, own_bytes)
                if 0 < self._limit_bytes < own_bytes:
                    self._memory.ended = True
                    with suppress(ProcessLookupError):
                        os.kill(sampled.pid, signal.SIGKILL)
        self._memory.peak_bytes = max(self._memory.peak_bytes, sum_bytes)


def tree(pid: int) -> Processes:
    """Return a process and its descendants, looked up anew at every call."""

    def look() -> list[psutil.Process]:
        try:
            root = psutil.Process(pid)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []

    return look


@asynccontextmanager
async def started(engine: SparkEngine) -> AsyncIterator[None]:
    """Start an application, and stop it in the end."""
    await engine.start()
    try:
        yield
    finally:
        await engine.stop()
