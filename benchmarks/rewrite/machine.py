"""The machine on which a run took place, and how fast it is by itself.

Tables of two machines differ, because contenders use them differently: some sort with the widest
vector instructions, some wait for memory. The description and the yardstick go with every table.
"""

import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

GIB = 1024**3
TRIES = 3
VERSIONS = ("numpy", "pyarrow", "polars", "duckdb", "datafusion", "deltalake", "pyspark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts about a machine and a run. Yardsticks are the least processor seconds of three."""

    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    vectors: str
    """Widest vector instructions that NumPy uses."""
    load: float
    """Running processes at the start, as an average over one minute."""
    date: str
    commit: str
    python: str
    versions: dict[str, str]
    sort_s: float
    """Sorting 4,194,304 random integers of 64 bits with NumPy."""
    compress_s: float
    """Compressing 32 MB of hex digits with zstd 1."""
    copy_s: float
    """Copying 256 MB."""

    @classmethod
    def now(cls) -> "Machine":
        """Look at this machine; takes about a second."""
        chance = np.random.default_rng(1)
        numbers = chance.integers(0, 1 << 62, 1 << 22)
        digits = np.frombuffer(b"0123456789abcdef", np.uint8)[
            chance.integers(0, 16, 32_000_000, dtype=np.uint8)
        ].tobytes()
        block = np.ones(256_000_000, np.uint8)
        target = np.empty_like(block)
        codec = pa.Codec("zstd", compression_level=1)
        return cls(
            processor=_processor(),
            cores=os.cpu_count() or 1,
            memory_bytes=psutil.virtual_memory().total,
            kernel=platform.release(),
            vectors=_vectors(),
            load=os.getloadavg()[0],
            date=time.strftime("%Y-%m-%d %H:%M"),
            commit=_commit(),
            python=platform.python_version(),
            versions={name: version for name in VERSIONS if (version := _version(name))},
            sort_s=_least(lambda: np.sort(numbers)),
            compress_s=_least(lambda: codec.compress(digits)),
            copy_s=_least(lambda: np.copyto(target, block)),
        )

    @property
    def text(self) -> str:
        """One line for a table."""
        return (
            f"{self.date}, {self.processor}, {self.cores} cores, "
            f"{self.memory_bytes / GIB:.0f} GiB, {self.vectors}, load {self.load:.1f}, "
            f"commit {self.commit}; yardstick: sort {self.sort_s:.3f} s, "
            f"zstd {self.compress_s:.3f} s, copy {self.copy_s:.3f} s"
        )

    def as_json(self) -> dict[str, object]:
        """Return it for a report."""
        return asdict(self)


def _least(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(TRIES):
        begun_s = time.process_time()
        work()
        seconds.append(time.process_time() - begun_s)
    return min(seconds)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _vectors() -> str:
    extensions = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return str(extensions[-1]) if extensions else "baseline"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
