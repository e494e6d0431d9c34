"""Pressure of tablets: overlapping files where work waits, and garbage.

Pressure is measured with each plan of a tablet, so a look of the controller is cheap. Only the most
recently planned tablets are remembered, so memory is bounded.

The number of overlapping files corresponds to the sublevels of level 0 in Pebble
(`L0CompactionConcurrency`): a reader of one key may have to open that many files. Files without key
bounds may all overlap; those among them that jobs are to merge count. Garbage is the bytes that a
rewrite would leave out:

    live bytes are counted (`neve analyze`)   size - live bytes
    otherwise                                 size · tombstones / rows, from the file's footer

Garbage is therefore a lower bound: it lacks replaced rows that no analysis has counted.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from common.model.file import DataFile
from common.model.job import Job, Kind, TabletPlan, TabletPressure
from common.model.tablet import Tablet, TabletId

NONE: Final = TabletPressure()


# --------------------------------------------------------------------------------------- One tablet


def with_pressure(plan: TabletPlan, tablet: Tablet) -> TabletPlan:
    """Return a plan with the pressure of its tablet.

    Args:
        plan: Plan of the tablet; work waits if it has system jobs or attempts are running.
        tablet: The version that was planned.
    """
    reserved = tablet.reserved_files if tablet.running else ()
    files = [file for file in tablet.files.values() if not file.open]
    return replace(plan, pressure=tablet_pressure(files, plan.jobs, reserved))


def tablet_pressure(
    files: Collection[DataFile], jobs: Iterable[Job], reserved: Iterable[str]
) -> TabletPressure:
    """Return the pressure of a tablet.

    Args:
        files: Files of the tablet.
        jobs: Planned jobs; work waits if there are system jobs or reserved files.
        reserved: Paths that running jobs have reserved.
    """
    inputs = {path for job in jobs if job.kind is Kind.SYSTEM for path in job.inputs}
    inputs.update(reserved)
    stored = garbage = 0
    for file in files:  # One loop: it runs for each tablet of each full scan.
        stored += file.size_bytes
        if file.tombstones or file.live_bytes is not None:
            garbage += garbage_bytes(file)
    return TabletPressure(
        overlapping_files=overlapping_files(files, inputs) if inputs else 0,
        stored_bytes=stored,
        garbage_bytes=garbage,
    )


def overlapping_files(files: Iterable[DataFile], inputs: Collection[str]) -> int:
    """Return the maximum number of files that may hold the same key.

    Args:
        files: Files of a tablet.
        inputs: Input paths of jobs. Files without key bounds count only if they are inputs.
    """
    begins, ends, keyless = list[bytes](), list[bytes](), 0
    for file in files:
        if file.key_min is None or file.key_max is None:
            keyless += file.path in inputs
        else:
            begins.append(file.key_min)
            ends.append(file.key_max)
    ends.sort()
    most = ended = 0
    for begun, begin in enumerate(sorted(begins), 1):
        while ends[ended] < begin:
            ended += 1
        most = max(most, begun - ended)
    return most + keyless


def garbage_bytes(file: DataFile) -> int:
    """Return the known bytes of a file that a rewrite would leave out."""
    if file.live_bytes is not None:
        return max(0, file.size_bytes - file.live_bytes)
    return file.size_bytes * min(file.tombstones, file.rows) // file.rows if file.rows else 0


# -------------------------------------------------------------------------------------- All tablets


class Pressures:
    """The pressures of the most recently planned tablets.

    The cost of a change does not depend on the number of tablets; a look visits each distinct
    depth. Invariant: sums and depths are those of the stored tablets.
    """

    def __init__(self, count_max: int) -> None:
        """Create an empty registry of at most `count_max` tablets; the oldest plan is evicted."""
        self._count_max = count_max
        self._tablets: OrderedDict[TabletId, TabletPressure] = OrderedDict()
        self._of_table: dict[str, dict[TabletId, None]] = {}
        self._stored_bytes = self._garbage_bytes = 0
        self._depths: Counter[int] = Counter()
        """Number of overlapping files → number of tablets; zero counts are removed."""

    @property
    def deepest_files(self) -> int:
        """Maximum number of overlapping files in a tablet; 0 if no work waits."""
        return max(self._depths, default=0)

    @property
    def garbage_fraction(self) -> float:
        """Garbage as a fraction of all stored bytes, 0 to 1."""
        return self._garbage_bytes / self._stored_bytes if self._stored_bytes else 0.0

    def put(self, tablet: TabletId, pressure: TabletPressure | None) -> None:
        """Store the pressure of a tablet; None or an empty pressure removes the tablet."""
        self.discard(tablet)
        if pressure is None or pressure == NONE:
            return
        self._tablets[tablet] = pressure
        self._of_table.setdefault(tablet.table, {})[tablet] = None
        self._stored_bytes += pressure.stored_bytes
        self._garbage_bytes += pressure.garbage_bytes
        if pressure.overlapping_files:
            self._depths[pressure.overlapping_files] += 1
        if len(self._tablets) > self._count_max:
            self.discard(next(iter(self._tablets)))

    def discard(self, tablet: TabletId) -> None:
        """Remove a tablet."""
        before = self._tablets.pop(tablet, None)
        if before is None:
            return
        own = self._of_table[tablet.table]
        del own[tablet]
        if not own:
            del self._of_table[tablet.table]
        self._stored_bytes -= before.stored_bytes
        self._garbage_bytes -= before.garbage_bytes
        if before.overlapping_files:
            self._depths[before.overlapping_files] -= 1
            if not self._depths[before.overlapping_files]:
                del self._depths[before.overlapping_files]

    def forget_table(self, table: str) -> None:
        """Remove all tablets of a table."""
        for tablet in list(self._of_table.get(table, ())):
            self.discard(tablet)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        known = self._tablets.values()
        assert self._stored_bytes == sum(pressure.stored_bytes for pressure in known)
        assert self._garbage_bytes == sum(pressure.garbage_bytes for pressure in known)
        depths = Counter(
            pressure.overlapping_files for pressure in known if pressure.overlapping_files
        )
        assert self._depths == depths
        assert 0 not in self._depths.values()
        assert self.deepest_files == max(depths, default=0)
        assert sum(map(len, self._of_table.values())) == len(self._tablets) <= self._count_max
