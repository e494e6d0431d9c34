"""Which planner costs what, on four kinds of tables?

    python -m benchmarks.bench_planners [--arrivals N] [--seed S] [--svg FOLDER] [PLANNER…]

Files are real sets of rows (numpy), so that what a merge leaves is exact: replaced rows go, and
tombstones as soon as nothing older is outside. After each arrival the planner is asked and its
jobs are done until it wants nothing. That is compaction without a limit on capacity: what differs
is the planner alone.

    write amplification   bytes written, arrivals included, per byte that arrived
    read amplification    files that a reader opens for one key, or for one hour of a time series
    space amplification   bytes stored per byte that a reader could see

The last two are means over all moments after the first fifth of the arrivals.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.errors import ConfigError, PluginError
from common.model.file import DataFile
from common.model.job import Job, JobAction, Kind
from common.model.key_values import KeyType
from common.model.keys import decode_value, encode_value
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, TabletId
from common.plugins import PLANNERS, load_planner
from common.spi.planner import Planner, PlanParameters
from coordinator.core.planning import checked_jobs

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

ROW_BYTES = 10_000
"""Of a row as it is stored: 1,000 rows are a file of 10 MB."""
ARRIVAL_ROWS = 1000
ARRIVAL_S = 60.0
HOUR_S = 3600.0
TABLET = TabletId("t", PLUS_INFINITY)
JOBS_MAX = 200
"""After one arrival; more are a planner that runs in circles."""
PROBES = 50
SETTINGS = TableSettings(target_bytes=128 * 1024**2)
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "time-chunk": {"granularity": "1h", "skip_offset": "1h"},
}
"""Of planners whose defaults are made for more time than passes here."""
GO_BY_LIVE_BYTES = {"log-segment"}
"""Planners for which live bytes are counted before each plan."""


# ------------------------------------------------------------------------------------------- Tables


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one file, ascending by key."""

    keys: Numbers
    versions: Numbers
    dead: Flags
    times: Numbers

    def where(self, chosen: Flags | Numbers) -> "Rows":
        return Rows(self.keys[chosen], self.versions[chosen], self.dead[chosen], self.times[chosen])

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class Workload:
    """What arrives, and what kind of table takes it."""

    name: str
    keyed: bool
    arrive: Callable[[np.random.Generator, int], Rows]
    """Rows of an arrival by its number, in any order."""
    ttl_s: float | None = None


def _rows(keys: Numbers, number: int, dead: Flags | None = None) -> Rows:
    count = len(keys)
    return Rows(
        keys,
        np.full(count, number),
        np.zeros(count, np.bool_) if dead is None else dead,
        np.full(count, int(number * ARRIVAL_S)),
    )


def _time_series(chance: np.random.Generator, number: int) -> Rows:
    """Return rows of the last minute; one arrival in ten brings rows up to a day late."""
    made = _rows(np.arange(ARRIVAL_ROWS) + number * ARRIVAL_ROWS, number)
    late = chance.integers(0, 86_400) if number % 10 == 9 else 0
    return replace(made, times=made.times + chance.integers(0, 60, ARRIVAL_ROWS) - late)


def _upserts(chance: np.random.Generator, number: int) -> Rows:
    """Return new values of 50,000 keys, few of which are written often."""
    keys = np.unique(chance.zipf(1.3, ARRIVAL_ROWS) * 7919 % 50_000)
    fresh = np.unique(chance.integers(0, 50_000, ARRIVAL_ROWS - len(keys)))
    return _rows(np.union1d(keys, fresh), number)


def _deletes(chance: np.random.Generator, number: int) -> Rows:
    """Return rows of which a third delete their key."""
    keys = np.unique(chance.integers(0, 50_000, ARRIVAL_ROWS))
    return _rows(keys, number, chance.random(len(keys)) < 1 / 3)


def _wide(chance: np.random.Generator, number: int) -> Rows:
    """Return new keys, all over a wide range."""
    return _rows(np.unique(chance.integers(0, 1 << 40, ARRIVAL_ROWS)), number)


WORKLOADS = (
    Workload("append time series", False, _time_series, ttl_s=2 * 3600.0),
    Workload("upserts", True, _upserts),
    Workload("deletes", True, _deletes),
    Workload("wide key range", True, _wide),
)


# -------------------------------------------------------------------------------------- One tablet


@dataclass(slots=True)
class Figures:
    """What a planner cost; None in the place of a planner that does not take such tables."""

    jobs: int = 0
    arrived_bytes: int = 0
    written_bytes: int = 0
    reads: list[float] = field(default_factory=list)
    space: list[float] = field(default_factory=list)
    files_max: int = 0

    @property
    def write(self) -> float:
        return (self.arrived_bytes + self.written_bytes) / self.arrived_bytes

    def mean(self, values: Sequence[float]) -> float:
        settled = values[len(values) // 5 :]
        return sum(settled) / len(settled)


class SimulatedTablet:
    """Files of one tablet with their rows."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.rows: dict[str, Rows] = {}
        self.files: dict[str, DataFile] = {}
        self.now_s = 0.0
        self.names = 0

    def add(
        self, rows: Rows, job: str | None = None, tags: tuple[tuple[str, str], ...] = ()
    ) -> int:
        """Add a file; return its bytes, 0 for no rows."""
        if not len(rows):
            return 0
        rows = rows.where(np.argsort(rows.keys, kind="stable"))
        self.names += 1
        path, keyed = f"{self.names:05}.parquet", self.workload.keyed
        deleted = int(rows.dead.sum())
        self.rows[path] = rows
        self.files[path] = DataFile(
            path=path,
            size_bytes=len(rows) * ROW_BYTES,
            rows=len(rows),
            key_min=_bytes(rows.keys[0]) if keyed else None,
            key_max=_bytes(rows.keys[-1]) if keyed else None,
            version_min=_bytes(rows.versions.min()) if keyed else None,
            version_max=_bytes(rows.versions.max()) if keyed else None,
            time_min_s=float(rows.times.min()),
            time_max_s=float(rows.times.max()),
            tombstones=deleted,
            tombstones_since_s=self.now_s if deleted else None,
            clean=keyed and not deleted,
            added_at_s=self.now_s,
            job=job,
            tags=tags,
        )
        return self.files[path].size_bytes

    def commit(self, job: Job) -> int:
        """Do a job; return the bytes that it wrote."""
        if job.action == JobAction.MOVE:
            for path in job.inputs:
                self.files[path] = replace(self.files[path], tags=job.output_tags)
            return 0
        inputs = [self.rows.pop(path) for path in job.inputs]
        outside = [self.files[path] for path in self.files.keys() - set(job.inputs)]
        for path in job.inputs:
            del self.files[path]
        merged = self._merged(inputs, outside)
        if job.action == JobAction.DROP:
            assert not len(merged), f"{job.id} drops rows that are alive"
        return sum(self.add(part, job.id, job.output_tags) for part in self._parts(merged, job))

    def _merged(self, inputs: Sequence[Rows], outside: Sequence[DataFile]) -> Rows:
        rows = Rows(
            *(np.concatenate(column) for column in zip(*map(_columns, inputs), strict=True))
        )
        rows = rows.where(rows.times > self._expiry())
        if not self.workload.keyed:
            return rows.where(np.argsort(rows.times, kind="stable"))
        order = np.lexsort((-rows.versions, rows.keys))
        rows = rows.where(order)
        first = np.ones(len(rows), np.bool_)
        first[1:] = rows.keys[1:] != rows.keys[:-1]
        rows = rows.where(first)
        kept = ~rows.dead
        for at in np.flatnonzero(rows.dead):
            key, version = _bytes(rows.keys[at]), _bytes(rows.versions[at])
            kept[at] = any(_may_hold(file, key, version) for file in outside)
        return rows.where(kept)

    def count_live(self) -> None:
        """Write the live bytes of each file, as `neve analyze` does."""
        owners = np.repeat(np.arange(len(self.rows)), [len(rows) for rows in self.rows.values()])
        every = zip(*map(_columns, self.rows.values()), strict=True)
        rows = Rows(*(np.concatenate(column) for column in every))
        live = rows.times > self._expiry()
        if self.workload.keyed:
            order = np.lexsort((-rows.versions, rows.keys))
            keys = rows.keys[order]
            live[order[1:][keys[1:] == keys[:-1]]] = False
        counts = np.bincount(owners[live], minlength=len(self.rows))
        for path, count in zip(self.rows, counts.tolist(), strict=True):
            self.files[path] = replace(self.files[path], live_bytes=count * ROW_BYTES)

    def _parts(self, rows: Rows, job: Job) -> Iterator[Rows]:
        if self.workload.keyed:
            cuts = np.array([decode_value(cut, KeyType.INT) for cut in job.cuts], np.int64)
            ends = [*np.searchsorted(rows.keys, cuts, side="right"), len(rows)]
        elif job.cuts_at_s:
            ends = [*np.searchsorted(rows.times, job.cuts_at_s), len(rows)]
            ends = sorted({*ends, *_even_ends(ends, job.output_rows_max or len(rows))})
        else:
            each = -(-len(rows) // max(1, job.outputs_expected)) or 1
            ends = [*range(each, len(rows), each), len(rows)]
        start = 0
        for end in ends:
            yield rows.where(np.arange(start, max(start, end)))
            start = max(start, int(end))

    def _expiry(self) -> float:
        return -np.inf if self.workload.ttl_s is None else self.now_s - self.workload.ttl_s

    def read_files(self, chance: random.Random) -> float:
        """Return how many files a reader opens, on average."""
        if not self.workload.keyed:
            low = self.now_s - HOUR_S
            return float(sum((file.time_max_s or 0) >= low for file in self.files.values()))
        probes = [
            _bytes(rows.keys[chance.randrange(len(rows))])
            for rows in chance.choices([*self.rows.values()], k=PROBES)
        ]
        opened = [sum(_holds(file, key) for file in self.files.values()) for key in probes]
        return sum(opened) / len(opened)

    def stored_per_live(self) -> float:
        """Return stored rows per row that a reader could see."""
        live = len(self._merged([*self.rows.values()], []))
        return sum(map(len, self.rows.values())) / max(1, live)


def _even_ends(ends: Sequence[int], most: int) -> Iterator[int]:
    """Yield where parts with more than so many rows are divided evenly."""
    start = 0
    for end in ends:
        each = -(-(end - start) // max(1, -(-(end - start) // most))) or 1
        yield from range(start + each, end, each)
        start = end


def _columns(rows: Rows) -> tuple[Numbers, Numbers, Flags, Numbers]:
    return rows.keys, rows.versions, rows.dead, rows.times


def _bytes(value: int) -> bytes:
    return encode_value(int(value), KeyType.INT)


def _holds(file: DataFile, key: bytes) -> bool:
    return (file.key_min or b"") <= key <= (file.key_max or b"")


def _may_hold(file: DataFile, key: bytes, version: bytes) -> bool:
    return _holds(file, key) and (file.version_min or b"") <= version


# ----------------------------------------------------------------------------------------- The runs


def run(name: str, workload: Workload, arrivals: int, seed: int) -> Figures | str:
    """Return what a planner costs, or why it takes no such table."""
    planner, figures = load_planner(name), Figures()
    tablet, chance = SimulatedTablet(workload), np.random.default_rng(seed)
    probes = random.Random(seed)
    for number in range(arrivals):
        tablet.now_s = (number + 1) * ARRIVAL_S
        figures.arrived_bytes += tablet.add(workload.arrive(chance, number))
        try:
            _rest(planner, name, tablet, figures)
        except (ConfigError, PluginError) as error:
            return str(error)
        figures.files_max = max(figures.files_max, len(tablet.files))
        figures.reads.append(tablet.read_files(probes))
        figures.space.append(tablet.stored_per_live())
    return figures if figures.jobs else "plans no job for such a table"


def _rest(planner: Planner, name: str, tablet: SimulatedTablet, figures: Figures) -> None:
    """Plan and commit until nothing is wanted."""
    begun = figures.jobs
    while True:
        if name in GO_BY_LIVE_BYTES and tablet.rows:
            tablet.count_live()
        asked = PlanParameters(
            tablet=TABLET,
            table_name="events",
            kind=Kind.SYSTEM,
            settings=replace(SETTINGS, ttl_s=tablet.workload.ttl_s),
            options=OPTIONS.get(name, {}),
            files=dict(tablet.files),
            candidates=tuple(tablet.files.values()),
            now_s=tablet.now_s,
            keyed=tablet.workload.keyed,
            timed=True,
            key_types=(KeyType.INT,) if tablet.workload.keyed else (),
        )
        jobs = checked_jobs(name, planner.plan(asked), asked)
        if not jobs:
            return
        for job in jobs:
            if not job.depends_on:
                figures.written_bytes += tablet.commit(job)
                figures.jobs += 1
        if figures.jobs - begun > JOBS_MAX:
            raise PluginError(f"planner {name}: {JOBS_MAX} jobs after one arrival, and no rest")


# --------------------------------------------------------------------------------------- Presented


METRICS: Mapping[str, Callable[[Figures], float]] = {
    "write amplification": lambda found: found.write,
    "read amplification": lambda found: found.mean(found.reads),
    "space amplification": lambda found: found.mean(found.space),
}
COLOURS = ("#2f6f8f", "#c8743c", "#5b8c5a")


def bars(title: str, found: Mapping[str, Figures | str]) -> str:
    """Return a picture: planners from top to bottom, a bar for each kind of cost."""
    shown = {name: each for name, each in found.items() if isinstance(each, Figures)}
    most = max(metric(each) for each in shown.values() for metric in METRICS.values())
    left, width, step = 110, 420, 62
    height = 60 + step * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 70} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="10" y="20" font-size="14">'
        f"{title}</text>",
    ]
    for at, (label, colour) in enumerate(zip(METRICS, COLOURS, strict=True)):
        x = left + at * 150
        parts.append(
            f'<rect x="{x}" y="31" width="10" height="10" fill="{colour}"/>'
            f'<text x="{x + 14}" y="40">{label}</text>'
        )
    for row, (name, each) in enumerate(shown.items()):
        top = 56 + row * step
        parts.append(f'<text x="10" y="{top + 28}">{name}</text>')
        for at, (metric, colour) in enumerate(zip(METRICS.values(), COLOURS, strict=True)):
            value = metric(each)
            y, long = top + at * 17, max(1.0, value / most * width)
            parts.append(
                f'<rect x="{left}" y="{y}" width="{long:.1f}" height="13" fill="{colour}"/>'
                f'<text x="{left + long + 5:.1f}" y="{y + 11}">{value:.2f}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Measure and print; write pictures if a folder is named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("planners", nargs="*", default=PLANNERS.names())
    parser.add_argument("--arrivals", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path, help="folder for pictures")
    given = parser.parse_args()
    for workload in WORKLOADS:
        found = {name: run(name, workload, given.arrivals, given.seed) for name in given.planners}
        print(f"\n{workload.name}\n\n| planner | write | read | space | jobs | files at most |")
        print("|---|---|---|---|---|---|")
        for name, each in found.items():
            if isinstance(each, str):
                print(f"| `{name}` | {each} | | | | |")
                continue
            figures = " | ".join(f"{metric(each):.2f}" for metric in METRICS.values())
            print(f"| `{name}` | {figures} | {each.jobs} | {each.files_max} |")
        if given.svg:
            picture = given.svg / f"planners-{workload.name.replace(' ', '-')}.svg"
            picture.write_text(bars(workload.name, found), "utf-8")


if __name__ == "__main__":
    main()
