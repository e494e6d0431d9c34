"""Does the loop close on a real stack? Arrivals at 20, 50 and 80 % of capacity, each with a burst.

    python -m benchmarks.closed_loop [--phase 80] [--capacity 4MB] [--controller drain-time]
        [--option goal=20s] [--limit 0] [--csv FILE] [--svg FILE]

Starts two compactors of two slots. Their rewrites may move `--capacity` bytes per second together.
Small files are appended to tables of the planner `bin-pack`, which rewrites each byte about once:
arrivals of a part p are `p · capacity / 2` bytes per second, as a byte is read and written. In the
middle of each phase comes a burst, as much as all capacity rewrites in five seconds. Meanwhile
somebody scans a table that is never compacted, again and again.

Told for each phase: how long the backlog took to be back where it was before the burst, shares, and
the throughput of scans against that of the idle stack. `--limit` listens to readers
(`control.foreground_limit_s`).
"""

import argparse
import csv
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

import neve
from common.control_settings import ControlSettings
from common.settings import Settings
from common.units import format_bytes, parse_duration_s, parse_size_bytes
from neve.client import Client
from neve.local import LocalStack, StackOptions

PARTS = (0.2, 0.5, 0.8)
TABLES = 4
FILE_BYTES = 256 * 1024
BURST_S = 5.0
"""The burst is what all capacity rewrites in so long."""
IDLE_S = 15.0
STEP_S = 1.0
READ_BYTES = 8 * 1024**2
SETTINGS = {
    "planner": "bin-pack",
    "planner_options": "min_input_files=10,max_wait=1h",
    "target_bytes": "3MB",
    "max_files": 12,
    "file_limit": 0,
    "codec": "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A moment."""

    at_s: float
    phase: str
    arrived_bytes: int
    backlog_bytes: float
    system_shares: float
    slots: int
    busy_slots: int
    bytes_s: float
    """What rewrites may move; 0: no limit."""
    moved_bytes: int
    """By rewrites since the start."""
    scanned_bytes: int
    """By the reader since the start."""


class Reader:
    """Scans a table again and again in a thread of its own."""

    def __init__(self, client: Client, table: str) -> None:
        self.scanned_bytes = 0
        self._client, self._table = client, table
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._ends.is_set():
            self.scanned_bytes += self._client.scan(self._table).nbytes


class Writer:
    """Appends files to tables in turn, at a rate."""

    def __init__(self, client: Client, tables: Sequence[str]) -> None:
        self.arrived_bytes = 0
        self._client, self._tables = client, tables
        self._chance = np.random.default_rng(1)
        self._files = 0
        self._owed = 0.0

    def write(self, size_bytes: float) -> None:
        """Append so many bytes in whole files; the rest is owed."""
        self._owed += size_bytes
        while self._owed >= FILE_BYTES:
            self._owed -= FILE_BYTES
            numbers = self._chance.integers(0, 2**62, FILE_BYTES // 8)
            name = self._tables[self._files % len(self._tables)]
            self._client.append(name, pa.table({"n": numbers}))
            self._files += 1
            self.arrived_bytes += FILE_BYTES


def main() -> None:
    """Run the phases, print what came of them, and write the samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase", type=float, default=80.0, help="seconds of each phase")
    parser.add_argument("--capacity", default="4MB", help="bytes per second of all rewrites")
    parser.add_argument("--controller", default="drain-time")
    parser.add_argument("--option", action="append", help="of the controller; default: goal=20s")
    parser.add_argument("--limit", default="0s", help="readers may wait for this time; 0s: any")
    parser.add_argument("--engine", default="raydp", choices=["raydp", "local"])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    samples = list(measured(given))
    report(samples, parse_size_bytes(given.capacity), given.phase)
    if given.csv:
        with given.csv.open("w", newline="") as file:
            lines = csv.DictWriter(file, [each.name for each in fields(Sample)])
            lines.writeheader()
            lines.writerows(asdict(each) for each in samples)
    if given.svg:
        given.svg.write_text(picture(samples, given.controller), "utf-8")


def measured(given: argparse.Namespace) -> Iterator[Sample]:
    """Yield a sample a second, of a stack that is started for it."""
    settings = Settings()
    control = ControlSettings(
        controller=given.controller,
        options=tuple(given.option or ["goal=20s"]),
        period_s=0.5,
        bytes_s_max=parse_size_bytes(given.capacity),
        bytes_s_min=256 * 1024,
        foreground_limit_s=parse_duration_s(given.limit, "--limit"),
    )
    compactor = replace(settings.compactor, slots=2, executor_memory="512m", engine=given.engine)
    settings = replace(settings, compactor=compactor, control=control)
    with tempfile.TemporaryDirectory(prefix="neve-closed-loop-") as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        options = StackOptions(settings=settings)
        with LocalStack.start(home=home, options=options, compactors=2) as stack:
            client = neve.Client(stack.gateway_url, token=stack.token)
            yield from _phases(client, Path(scratch), given)


def _phases(client: Client, scratch: Path, given: argparse.Namespace) -> Iterator[Sample]:
    tables = [f"t{number}" for number in range(TABLES)]
    for name in tables:
        _create(client, scratch, name)
    _create(client, scratch, "read", paused=True)
    client.append("read", pa.table({"n": np.arange(READ_BYTES // 8)}))
    writer, reader = Writer(client, tables), Reader(client, "read")
    capacity = parse_size_bytes(given.capacity) / 2
    begun_s = time.monotonic()
    try:
        for phase, seconds, part in _plan_of(given.phase):
            ends_s = time.monotonic() + seconds
            burst_at_s = ends_s - seconds / 2 if part else float("inf")
            while (now_s := time.monotonic()) < ends_s:
                if now_s >= burst_at_s:
                    burst_at_s = float("inf")
                    writer.write(BURST_S * capacity)
                writer.write(part * capacity * STEP_S)
                yield _sample(client, now_s - begun_s, phase, writer, reader)
                time.sleep(max(0.0, now_s + STEP_S - time.monotonic()))
    finally:
        reader.stop()


def _plan_of(phase_s: float) -> Iterator[tuple[str, float, float]]:
    yield "idle", IDLE_S, 0.0
    for part in PARTS:
        yield f"{part:.0%}", phase_s, part
    yield "after", phase_s, 0.0


def _create(client: Client, scratch: Path, name: str, *, paused: bool = False) -> None:
    folder = scratch / name
    folder.mkdir()
    schema = pa.schema([("n", pa.int64())])
    client.create_table(
        name, folder.as_uri(), schema=schema, settings=dict(SETTINGS), paused=paused
    )


def _sample(client: Client, at_s: float, phase: str, writer: Writer, reader: Reader) -> Sample:
    found = client.control()
    limits = [each for each in client.limits() if each.kind == "control"]
    shares = {each.name: each.shares for each in found.classes}
    return Sample(
        at_s=round(at_s, 2),
        phase=phase,
        arrived_bytes=writer.arrived_bytes,
        backlog_bytes=found.backlog_bytes,
        system_shares=round(shares["system"], 1),
        slots=found.slots or 0,
        busy_slots=found.busy_slots,
        bytes_s=round(found.bytes_s or 0.0),
        moved_bytes=sum(each.moved_bytes for each in limits),
        scanned_bytes=reader.scanned_bytes,
    )


# ---------------------------------------------------------------------------------- What came of it


def report(samples: Sequence[Sample], capacity: int, phase_s: float) -> None:
    """Print each phase: backlog, time to recover from the burst, shares, scans."""
    idle = _scan_rate([each for each in samples if each.phase == "idle"])
    print(f"scans of the idle stack: {format_bytes(idle)}/s; capacity {format_bytes(capacity)}/s")
    for phase in dict.fromkeys(each.phase for each in samples):
        own = [each for each in samples if each.phase == phase]
        moved = (own[-1].moved_bytes - own[0].moved_bytes) / max(1.0, own[-1].at_s - own[0].at_s)
        shares = statistics.mean(each.system_shares for each in own)
        print(
            f"{phase:>5}  backlog {format_bytes(own[0].backlog_bytes)} at first,"
            f" {format_bytes(max(each.backlog_bytes for each in own))} at most,"
            f" {format_bytes(own[-1].backlog_bytes)} at last; {_recovery(own, phase_s)}"
            f" shares {shares:.0f}; moved {moved / capacity:.0%} of capacity;"
            f" scans {_scan_rate(own) / idle:.0%} of idle"
        )


def _recovery(own: Sequence[Sample], phase_s: float) -> str:
    """Return how long after its peak the backlog was back at what it was before the burst."""
    middle_s = own[0].at_s + phase_s / 2
    before = [each.backlog_bytes for each in own if each.at_s < middle_s - 1]
    if own[0].phase in {"idle", "after"} or not before:
        return ""
    usual = max(before)
    later = [each for each in own if each.at_s > middle_s]
    peak = max(later, key=lambda each: each.backlog_bytes)
    back = [each for each in later if each.at_s > peak.at_s and each.backlog_bytes <= usual]
    return f"back after {back[0].at_s - middle_s:.0f} s;" if back else "not back in the phase;"


def _scan_rate(own: Sequence[Sample]) -> float:
    passed_s = max(1.0, own[-1].at_s - own[0].at_s)
    return (own[-1].scanned_bytes - own[0].scanned_bytes) / passed_s


WIDTH, HEIGHT, LEFT = 640, 96, 96


def picture(samples: Sequence[Sample], controller: str) -> str:
    """Return the samples as an SVG of four curves, one above the other."""
    rates = [0.0, *(b.scanned_bytes - a.scanned_bytes for a, b in _pairs(samples, 5))]
    scans = [rate / 5 for rate in rates] + [rates[-1] / 5] * 4
    moves = [0.0, *(b.moved_bytes - a.moved_bytes for a, b in _pairs(samples, 5))]
    moved = [move / 5 for move in moves] + [moves[-1] / 5] * 4
    curves = [
        ("backlog, MiB", [each.backlog_bytes / 1024**2 for each in samples]),
        ("shares of system", [each.system_shares for each in samples]),
        ("rewrites, MiB/s", [each / 1024**2 for each in moved]),
        ("scans, MiB/s", [each / 1024**2 for each in scans]),
    ]
    height = len(curves) * (HEIGHT + 24) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 16} {height}" '
        'font-family="sans-serif" font-size="11" role="img">',
        f"<title>Closed loop, controller {controller}</title>",
        f'<rect width="{LEFT + WIDTH + 16}" height="{height}" fill="#fff"/>',
        *_phase_lines(samples, height),
    ]
    for number, (title, values) in enumerate(curves):
        parts += _curve(title, values, samples, 24 + number * (HEIGHT + 24))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _pairs(samples: Sequence[Sample], steps: int) -> Iterator[tuple[Sample, Sample]]:
    return zip(samples, samples[steps:], strict=False)


def _x(at_s: float, samples: Sequence[Sample]) -> float:
    return LEFT + WIDTH * at_s / max(1.0, samples[-1].at_s)


def _phase_lines(samples: Sequence[Sample], height: int) -> Iterator[str]:
    for phase in dict.fromkeys(each.phase for each in samples):
        first = next(each for each in samples if each.phase == phase)
        x = _x(first.at_s, samples)
        yield f'<path d="M{x:.1f} 16V{height - 16}" stroke="#ccc"/>'
        yield f'<text x="{x + 3:.1f}" y="14" fill="#555">{phase}</text>'


def _curve(
    title: str, values: Sequence[float], samples: Sequence[Sample], top: int
) -> Iterator[str]:
    most = max([*values, 1e-9])
    points = " ".join(
        f"{_x(each.at_s, samples):.1f},{top + HEIGHT * (1 - value / most):.1f}"
        for each, value in zip(samples, values, strict=False)
    )
    yield f'<text x="4" y="{top + HEIGHT / 2:.0f}" fill="#222">{title}</text>'
    yield f'<text x="{LEFT - 4}" y="{top + 10}" text-anchor="end" fill="#555">{most:.3g}</text>'
    yield f'<path d="M{LEFT} {top + HEIGHT}h{WIDTH}" stroke="#999"/>'
    yield f'<polyline points="{points}" fill="none" stroke="#1f6fb2" stroke-width="1.5"/>'


if __name__ == "__main__":
    main()
