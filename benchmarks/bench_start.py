"""Processor time of `neve up`, process by process, and of the stack at rest.

    python -m benchmarks.bench_start [--rest 60] [--runs 1] [--no-commands]

Starts a stack in a new home, samples every process that descends from it, and stops it. Processor
time is user and system time of a process; the part after its last sample (0.1 s) is missed. Run it
twice and take the second run: the first one compiles modules and fills the page cache.
"""

import argparse
import ctypes
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SAMPLE_S, SETTLE_S = 0.1, 10.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ROLES = (
    ("neve up", r"neve up|import main.*up"),
    ("ray start", r"ray\.scripts\.scripts.* start|-c import sys unused"),
    ("raylet", r"^\S*/raylet/raylet"),
    ("gcs_server", r"^\S*/gcs_server"),
    ("agent of the node", r"dashboard/agent\.py|DashboardAgent|metrics_export_port"),
    ("agent of environments", r"runtime_env/agent|RuntimeEnvAgent|runtime_env_agent_port_"),
    ("driver of the start", r"neve\.local\.actors"),
    ("coordinator", r"CoordinatorActor"),
    ("gateway", r"GatewayActor"),
    ("compactor", r"CompactorActor"),
    ("worker without actor", r"ray::IDLE|default_worker\.py"),
    ("driver's JVM", r"PythonGatewayServer"),
    ("executor's JVM", r"^\S*java -cp|io\.ray\.runtime"),
    ("driver of Spark", r"compactor\.spark\.child"),
    ("task processes", r"task_daemon"),
    ("readers", r"fork_server"),
    ("supervisor", r"neve\.local\.supervisor"),
    ("Redis", r"redis-server|valkey-server|redis\.conf"),
    ("archive of classes", r"ArchiveClassesAtExit|Xshare:dump"),
)


@dataclass
class Watch:
    """The descendants of this process, with the processor time of each."""

    cpu_s: dict[tuple[int, str], float] = field(default_factory=dict)
    """Process and its start → its time."""
    roles: dict[tuple[int, str], str] = field(default_factory=dict)
    living: set[tuple[int, str]] = field(default_factory=set)

    def look(self) -> None:
        """Read all processes once."""
        parents: dict[int, int] = {}
        times: dict[int, tuple[str, float]] = {}
        names: dict[int, str] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                command, _, rest = Path("/proc", name, "stat").read_text().rpartition(")")
            except OSError:
                continue
            fields, names[int(name)] = rest.split(), command.partition("(")[2]
            parents[int(name)] = int(fields[1])
            times[int(name)] = fields[19], (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        self.living = set()
        for pid in parents:
            if self._descends(pid, parents):
                start, cpu_s = times[pid]
                key = pid, start
                self.cpu_s[key] = cpu_s
                self.roles[key] = _role(pid) or self.roles.get(key, f"ended early: {names[pid]}")
                self.living.add(key)

    @staticmethod
    def _descends(pid: int, parents: dict[int, int]) -> bool:
        own = os.getpid()
        while pid in parents and pid != own:
            pid = parents[pid]
            if pid == own:
                return True
        return False

    def by_role(self) -> dict[str, float]:
        """Return the processor time of each role, in seconds."""
        sums: dict[str, float] = defaultdict(float)
        for key, cpu_s in self.cpu_s.items():
            sums[self.roles[key]] += cpu_s
        return sums

    def pss_mb(self) -> dict[str, float]:
        """Return the memory of each role, shared pages divided among their users."""
        sums: dict[str, float] = defaultdict(float)
        for pid, start in self.living:
            try:
                text = Path("/proc", str(pid), "smaps_rollup").read_text()
            except OSError:
                continue
            size = re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)
            sums[self.roles[pid, start]] += int(size[1]) / 1024 if size else 0.0
        return sums


def _role(pid: int) -> str:
    try:
        command = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
    command = " ".join(command.split())
    for role, pattern in ROLES:
        if re.search(pattern, command[:20000]):
            return role
    return command[:60]


def cpu_s(command: list[str], environ: dict[str, str]) -> float:
    """Return the processor time of a command and its children, in seconds."""
    child = os.posix_spawnp(
        command[0],
        command,
        environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)],
    )
    _, _, usage = os.wait4(child, 0)
    return usage.ru_utime + usage.ru_stime


def measure_commands(environ: dict[str, str], runs: int) -> float:
    """Print what commands take, in turns; return that of `import ray`."""
    neve = [sys.executable, "-c", "from neve.cli import main; main()"]
    commands = {
        "import ray": [sys.executable, "-c", "import ray"],
        "neve --version": [*neve, "--version"],
        "neve status": [*neve, "status"],
    }
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        for name, command in commands.items():
            times[name].append(cpu_s(command, environ))
    unit_s = statistics.median(times["import ray"])
    for name, measured in times.items():
        took_s = statistics.median(measured)
        print(f"{name:28} {took_s:7.2f} s {took_s / unit_s:7.2f} of import ray")
    return unit_s


@contextmanager
def sampled(watch: Watch) -> Iterator[None]:
    """Sample the processes in a thread until the context ends."""
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            watch.look()

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield
    finally:
        ended.set()
        sampler.join()
    watch.look()


def forget_the_ended() -> None:
    """Take the ended processes of the run before out of the process table.

    This process adopts them, so otherwise the next run would count their time.
    """
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def at_rest(watch: Watch, rest_s: float) -> dict[str, float]:
    """Return what each role takes at rest, in percent of a core."""
    threading.Event().wait(SETTLE_S)
    watch.look()
    before = dict(watch.cpu_s)
    threading.Event().wait(rest_s)
    watch.look()
    rest: dict[str, float] = defaultdict(float)
    for key in watch.living & before.keys():
        rest[watch.roles[key]] += (watch.cpu_s[key] - before[key]) / rest_s * 100
    return rest


def measure_stack(home: Path, *, rest_s: float, commands: bool) -> None:
    """Start a stack, rest, stop it, and print a table."""
    environ = {**os.environ, "NEVE_HOME": str(home)}
    neve = [sys.executable, "-c", "from neve.cli import main; main()"]
    forget_the_ended()
    watch = Watch()
    with sampled(watch):
        subprocess.run([*neve, "up"], env=environ, check=True)
    try:
        start = watch.by_role()
        unit_s = measure_commands(environ, 5) if commands else 0.0
        rest, memory = at_rest(watch, rest_s), watch.pss_mb()
        print(f"{'process':28} {'start s':>8} {'rest %':>8} {'PSS MB':>8}")
        for role in sorted({*start, *rest}, key=lambda role: -start.get(role, 0.0)):
            figures = start.get(role, 0.0), rest.get(role, 0.0), memory.get(role, 0.0)
            print(f"{role:28} {figures[0]:8.2f} {figures[1]:8.2f} {figures[2]:8.0f}")
        sums = sum(start.values()), sum(rest.values()), sum(memory.values())
        print(f"{'all':28} {sums[0]:8.2f} {sums[1]:8.2f} {sums[2]:8.0f}")
        if unit_s:
            print(f"neve up: {sums[0] / unit_s:.1f} times import ray")
    finally:
        subprocess.run([*neve, "down"], env=environ, check=True)


def main() -> None:
    """Measure on the command line's options."""
    options = argparse.ArgumentParser(description=measure_stack.__doc__)
    options.add_argument("--rest", type=float, default=60.0, help="seconds at rest")
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("--no-commands", action="store_true")
    given = options.parse_args()
    # Processes whose parents have ended become children of this one.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory(prefix="neve-start-") as home:
            measure_stack(Path(home), rest_s=given.rest, commands=not given.no_commands)


if __name__ == "__main__":
    main()
