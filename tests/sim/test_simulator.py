"""What `neve simulate` foretells, held against an hour of the whole service on a virtual clock.

The service is the production one, over a store in memory: coordinator, compactors, planner, queue.
What came to it is recorded and given to the simulator, which knows nothing else of that hour.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

import pytest

from common.metadata.store_values import HistoryEntry
from common.model.tablet import TabletId
from neve.simulate.figures import Outcome
from neve.simulate.recording import RecordedArrival, Recording, recording_document
from neve.simulate.specification import read_specifications
from neve.simulate.world import World
from tests.support.sim_cluster import Cluster
from tests.support.sim_disk import ROW_BYTES, key_bytes
from tests.support.sim_options import SERVICE, Options
from tests.support.sim_run import as_simulated, told_from

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HOUR_S = 3600.0
WORK_MAX_S = 2.0
LONG = [pytest.mark.slow, pytest.mark.long]
OPTIONS = Options(
    tablets=3, compactors=2, slots=2, readers=0, busy_s=HOUR_S, rewrite_max_s=WORK_MAX_S
)


@dataclass(frozen=True, slots=True)
class RealHour:
    """What the service did."""

    recording: Recording
    jobs: int
    rewritten_bytes: int
    files: int
    largest_bytes: int


def live(seed: int, length_s: float) -> RealHour:
    """Return what an hour of the service, or a part of one, came to, until it was at rest."""
    with as_simulated(replace(OPTIONS, busy_s=length_s)) as options:
        cluster = Cluster(seed, options)
        with told_from(cluster, seed):
            cluster.live()
            begun_s = cluster.world.now_s()
            cluster.world.run_until(begun_s + length_s)
            cluster._wait_for_rest()
            finished = history(cluster)
            tablets = cluster.truth.tablets("t0")
            files = [file for view in tablets.values() for file in view.files.values()]
            return RealHour(
                recording=recorded(cluster, list(tablets), begun_s, length_s),
                jobs=len(finished),
                rewritten_bytes=sum(each.bytes_out for each in finished),
                files=len(files),
                largest_bytes=max(file.size_bytes for file in files),
            )


def history(cluster: Cluster) -> list[HistoryEntry]:
    found: list[HistoryEntry] = []

    async def read() -> None:
        found.extend(await cluster.store().history("t0", 10_000))

    task = cluster.operator.start(read())
    while not task.done():
        cluster.world.run_until(cluster.world.now_s() + 1.0)
    assert all(each.end == "committed" for each in found)
    return found


def recorded(
    cluster: Cluster, tablets: list[TabletId], begun_s: float, length_s: float
) -> Recording:
    """Return what appenders have written, in its order."""
    disk, ends = cluster.truth.disk, sorted(tablet.end for tablet in tablets)
    arrivals = [
        RecordedArrival(
            at_s=max(0.0, at_s - begun_s),
            tablet=bisect_left(ends, min(file_keys(cluster, path))),
            size_bytes=len(disk.ever(path)) * ROW_BYTES,
            rows=len(disk.ever(path)),
        )
        for path, at_s in disk.written_s.items()
        if path.startswith("t0/app")
    ]
    length_s = max(length_s, max(arrival.at_s for arrival in arrivals) + 1.0)
    return Recording(table="t0", tablets=len(ends), length_s=length_s, arrivals=tuple(arrivals))


def file_keys(cluster: Cluster, path: str) -> list[bytes]:
    disk = cluster.truth.disk

    return [key_bytes(disk.key_of[row]) for row in disk.ever(path)]


def foretold(real: RealHour) -> Outcome:
    """Return what the simulator makes of the same arrivals."""
    document = {
        "simulation": {"days": real.recording.length_s / 86_400},
        "table": [
            {
                "name": "t0",
                "tablets": real.recording.tablets,
                "row_bytes": ROW_BYTES,
                "arrivals": {"recorded": recording_document(real.recording)},
            }
        ],
        "cluster": {
            # Jobs here take up to so long, whatever their size, and a moment for their output.
            "job_overhead": WORK_MAX_S / 2 + 0.1,
            "group": [
                {
                    "name": group.name,
                    "slots": OPTIONS.slots,
                    "compactors": 1,
                    "slot_bytes_s": "1000GB",
                    "max_size": group.max_bytes or 0,
                }
                for group in SERVICE.groups
            ],
        },
    }
    (specification,) = read_specifications(document, lambda name: name)
    world = World(specification)
    outcome = world.run()
    world.check()
    return outcome


@pytest.mark.parametrize(
    ("seed", "length_s"),
    [(1, HOUR_S / 2), *(pytest.param(seed, HOUR_S, marks=LONG) for seed in (1, 2))],
)
def test_an_hour_of_the_service_is_foretold(seed: int, length_s: float) -> None:
    """Chance decides when jobs end, so plans differ: of eight seeds by up to 2.2 % and 7 files."""
    real = live(seed, length_s)
    outcome = foretold(real)

    assert outcome.at_rest
    assert real.jobs > 300 * length_s / HOUR_S
    assert outcome.arrived_bytes == sum(arrival.size_bytes for arrival in real.recording.arrivals)
    assert outcome.rewritten_bytes == pytest.approx(real.rewritten_bytes, rel=0.03)
    assert sum(outcome.jobs.values()) == pytest.approx(real.jobs, rel=0.02)
    assert outcome.files == pytest.approx(real.files, abs=9)
