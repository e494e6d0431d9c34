"""Ranges of a full scan as Ray tasks: on any node, without a CPU reservation.

The tasks reserve zero CPUs, so that they run on a cluster that consists of the head node only, and
take no CPUs from compactors. They are spread over the nodes to relieve the head node. Ray does not
retry them: the full scan does, and counts the retries.
"""

import asyncio

import ray

from common.errors import UnavailableError
from common.metadata.redis import connect
from common.runtime import ignore_what_is_loaded
from common.settings import Settings
from common.wire import PIN_AMOUNT
from coordinator.ports import PlanTablet
from coordinator.registry import planner_for
from coordinator.scan.full_scan import (
    LocalRangeScans,
    RangeFindings,
    ScanRange,
)

RANGE_SCAN_MAX_S = 300.0
"""Time after which a range has failed, because its node may hang."""


class RayRangeScans:
    """Scans each range in its own Ray task."""

    def __init__(self, settings: Settings) -> None:
        """Create scans whose tasks use these settings: the store's address, services, planners."""
        self._settings = settings
        resource = settings.cluster.service_resource
        # In a cluster that scales with the load, a scan must not keep a node from being removed.
        placement = (
            {"resources": {resource: PIN_AMOUNT}} if resource else {"scheduling_strategy": "SPREAD"}
        )
        self._task = ray.remote(scan_range).options(
            num_cpus=0, max_retries=0, name="neve full scan", **placement
        )

    async def scan(self, scan_range: ScanRange) -> RangeFindings:
        """Scan a range in a task.

        Raises:
            UnavailableError: The task failed, its node died, or it took too long.
        """
        ref = self._task.remote(self._settings, scan_range)
        try:
            async with asyncio.timeout(RANGE_SCAN_MAX_S):
                scanned: RangeFindings = await ref
        except TimeoutError:
            raise UnavailableError(f"a task did not end within {RANGE_SCAN_MAX_S:g} s") from None
        except ray.exceptions.RayError as error:
            cause = error.__cause__ if error.__cause__ is not None else error
            message = f"a task failed: {type(cause).__name__}: {str(cause).strip()}"
            raise UnavailableError(message) from error
        finally:
            ray.cancel(ref, force=True)  # Has no effect on a task that has ended.
        return scanned


class LoadedPlanners:
    """The planners for the settings of the last range, loaded once per process.

    A Ray worker scans many ranges. Plug-in discovery reads a file of every installed package, which
    takes half as long as reading the records of a range.
    """

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._plan: PlanTablet | None = None

    def of(self, settings: Settings) -> PlanTablet:
        """Return the function that plans a tablet."""
        if self._plan is None or settings != self._settings:
            self._settings, self._plan = settings, planner_for(settings)
            ignore_what_is_loaded()
        return self._plan


_loaded = LoadedPlanners()


def scan_range(settings: Settings, scan_range: ScanRange) -> RangeFindings:
    """Scan a range in this process, over its own connection."""

    async def scan() -> RangeFindings:
        store = connect(settings.store)
        scans = LocalRangeScans(store, _loaded.of(settings))
        try:
            return await scans.scan(scan_range)
        finally:
            await store.close()

    return asyncio.run(scan())
