"""The compactor as a Ray actor: options, wiring; no decisions.

The service's loop starts with the actor. A failure of the loop ends the process, so that Ray
restarts it: an actor that answers but no longer works is worse than none. The Spark driver is a
child process and ends with this one.

A compactor ends in an orderly way in two cases. After `shut_down`, Ray does not restart it. When
Ray drains its node, Ray restarts it on another node. Ray drains a node when its process gets
SIGTERM, for example from Kubernetes.
"""

import asyncio
import math
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import psutil
import ray

from common.compactor_needs import TaskMemory, given_task_memory, node_task_memory
from common.coordinator_proxy import compactor_calls
from common.errors import all_causes
from common.lake.open import catalog_access, packed_access
from common.log_files import LogFiles
from common.metadata.redis import connect
from common.model.outcome import AttemptEnd, RowCounts
from common.runtime import RandomIds, SystemClock, control_group_bytes
from common.settings import AUTO, CompactorSettings, Settings
from common.telemetry import event_log
from common.tracing import spans_of
from common.wire import NAMESPACE, Heartbeat, MetricValue, compactor_actor_name
from compactor.service import CompactorService, TableStorage
from compactor.spark.driver_protocol import DriverSettings, driver_settings
from compactor.spark.engine import SparkEngine

# ------------------------------------------------------------------------------------------ Metrics
# The compactor's metrics. Heartbeats take them to the coordinator, and the gateway exports them.


SAMPLE_INTERVAL_S = 5.0
"""Interval between measurements of memory."""
REST_SAMPLES = 6
"""Without attempts, memory is measured in one of so many intervals: it reads all processes."""
REWRITE_BUCKETS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class CountedMetrics:
    """The metrics of one compactor since it was started."""

    def __init__(self) -> None:
        self._counts = defaultdict[tuple[str, tuple[str, ...]], float](float)
        """Metric and its labels → value."""
        self._rewrites_s: list[int] = [0] * (len(REWRITE_BUCKETS_S) + 1)
        """Rewrites of each bucket; the last one has the longest."""
        self._rewrite_s = 0.0
        self._starts = 0
        """Counted starts of Spark drivers, including the first one."""

    def rewrite_ended(self, elapsed_s: float) -> None:
        """Count a rewrite, whatever its outcome."""
        self._rewrites_s[bisect_left(REWRITE_BUCKETS_S, elapsed_s)] += 1
        self._rewrite_s += elapsed_s

    def attempt_ended(
        self, end: AttemptEnd, *, read_bytes: int, written_bytes: int, waited_s: float
    ) -> None:
        """Count an attempt; see `CompactorMetrics`."""
        self._add("attempts_total", 1, end.value)
        self._add("read_bytes_total", read_bytes)
        self._add("written_bytes_total", written_bytes)
        self._add("throttled_seconds_total", waited_s)

    def rows_dropped(self, counts: RowCounts) -> None:
        """Count the rows that a committed attempt dropped, by reason."""
        for reason, rows in (
            ("superseded", counts.superseded),
            ("tombstone", counts.tombstones_dropped),
            ("expired", counts.expired_dropped),
            ("transform", counts.transform_dropped),
        ):
            self._add("rows_dropped_total", rows, reason)

    def values(self, slots: int, busy: int) -> tuple[MetricValue, ...]:
        """Return the current value of each metric; see `CompactorMetrics`."""
        counted = [
            MetricValue(f"neve_compactor_{name}", value, labels)
            for (name, labels), value in self._counts.items()
        ]
        until = (*map(str, REWRITE_BUCKETS_S), "+Inf")
        rewrites = [
            MetricValue("neve_compactor_rewrite_seconds", count, (bound,))
            for bound, count in zip(until, accumulate(self._rewrites_s), strict=True)
        ]
        return (
            *counted,
            *rewrites,
            MetricValue("neve_compactor_rewrite_seconds", self._rewrite_s, ("sum",)),
            MetricValue("neve_compactor_slots", slots),
            MetricValue("neve_compactor_slots_busy", busy),
        )

    async def sample_forever(
        self,
        engine_pid: Callable[[], int | None],
        starts: Callable[[], int],
        has_attempts: Callable[[], bool],
    ) -> None:
        """Measure memory and count starts at intervals.

        Args:
            engine_pid: Returns the process of the Spark driver.
            starts: Returns the number of started Spark drivers.
            has_attempts: Returns whether attempts run.
        """
        samples_at_rest = 0
        while True:
            samples_at_rest = 0 if has_attempts() else samples_at_rest + 1
            # The first sample after the last attempt is taken, too.
            if samples_at_rest == 0 or samples_at_rest % REST_SAMPLES == 1:
                memory_bytes = await asyncio.to_thread(tree_bytes, engine_pid())
                self._counts["memory_bytes", ()] = memory_bytes
            self._count_starts(starts())
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    def _count_starts(self, starts: int) -> None:
        """Count the starts after the first one."""
        if starts > self._starts:
            self._add("spark_restarts_total", starts - max(self._starts, 1))
            self._starts = starts

    def _add(self, name: str, amount: float, *labels: str) -> None:
        self._counts[name, labels] += amount


def tree_bytes(pid: int | None) -> int:
    """Return the resident memory of a process and its descendants; 0 without a process.

    Args:
        pid: The process, which may end at any moment.
    """
    if pid is None:
        return 0
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    return sum(map(_resident_bytes, tree))


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


# -------------------------------------------------------------------------------------------- Actor


ANSWER_MAX_S = 10.0
"""Longest wait for Ray's list of draining nodes."""
NODE_CHECK_INTERVAL_S = 2.0
"""Interval between checks whether Ray drains this compactor's node."""
HAND_BACK_S = 10.0
"""Time reserved before a node goes, for handing back jobs."""
ANSWER_PAUSE_S = 0.5
"""Time for replies to leave the process before it ends."""


class CompactorActor:
    """One compactor of a group."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        group: str,
        node_resource: str,
        log_folder: str,
        edition: str,
    ) -> None:
        """Connect the parts and start the loop."""
        self._log_files = LogFiles.of(log_folder, settings.log)
        self._log_files.take_output(_log_parts(name)[0])
        self._log_parts = _log_parts(name)
        context = ray.get_runtime_context()
        clock, ids = SystemClock(), RandomIds()
        store = connect(settings.store)
        self._log = event_log("compactor", settings.log.level)
        compactor_settings, memory = _with_task_memory(settings, group)
        self._engine = SparkEngine(
            _driver(settings, compactor_settings, name, node_resource, self._log_files)
        )
        metrics = CountedMetrics()
        self._service = CompactorService(
            name,
            compactor_settings,
            group=group,
            edition=edition,
            task_memory=memory.text,
            node=context.get_node_id(),
            coordinator=compactor_calls(),
            engine=self._engine,
            store=store,
            files=TableStorage(store.store_id, clock),
            metrics=metrics,
            spans=spans_of(settings.trace, "compactor"),
            catalog=catalog_access(settings),
            ids=ids,
            clock=clock,
            log=self._log,
        )
        loop = asyncio.get_running_loop()
        self._loop = loop.create_task(self._run())
        self._log("compactor begins", compactor=name, group=group, task_memory=memory.text)
        self._rotating = loop.create_task(self._log_files.rotate_forever(self._log_parts))
        self._name, self._node = name, context.get_node_id()
        self._drain_timeout_s = compactor_settings.drain_timeout_s
        self._measuring = loop.create_task(
            metrics.sample_forever(
                lambda: self._engine.pid,
                lambda: self._engine.starts,
                lambda: bool(self._service.status().attempts),
            )
        )
        self._endings = {loop.create_task(self._leave_draining_node())}

    async def _run(self) -> None:
        """Run the service; end the process if it fails."""
        try:
            await self._service.run()
            # It was drained. Ray would keep an actor that does nothing.
            if not self._service.stopping:
                await self._end_for_good()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._log("compactor fails", cause=all_causes(error))
            os._exit(1)

    async def ping(self) -> str:
        """Return the incarnation when Spark is up."""
        await self._service.wait_ready()
        return self._service.incarnation

    async def failed_starts(self) -> tuple[int, str]:
        """Return the number of consecutive failed starts of Spark, and the last cause."""
        return self._service.failed_starts()

    async def stay(self, incarnation: str) -> str:
        """Return when this incarnation has left; for another incarnation return at once.

        A caller that awaits it learns of the actor's death from Ray at once.
        """
        if incarnation != self._service.incarnation:
            return f"it was restarted as {self._service.incarnation}"
        await self._service.wait_ended()
        return "it has left"

    async def status(self) -> Heartbeat:
        """Return the current heartbeat."""
        return self._service.status()

    async def shut_down_max_s(self) -> float:
        """Return the longest duration of `shut_down`."""
        return self._service.stop_max_s

    async def shut_down(self, wait_max_s: float | None = None) -> None:
        """Take no more jobs, finish running ones or hand them back, and end for good.

        The shutdown continues without the caller. Repeated calls wait for the same end.

        Args:
            wait_max_s: Longest wait for running jobs; None: `compactor.drain_timeout_s`.
        """
        ending = asyncio.get_running_loop().create_task(self._shut_down(wait_max_s))
        self._endings.add(ending)
        await asyncio.shield(ending)

    async def _shut_down(self, wait_max_s: float | None) -> None:
        await self._service.stop(wait_max_s)
        self._endings.add(asyncio.get_running_loop().create_task(self._end_for_good()))

    async def _end_for_good(self) -> None:
        """End the process so that Ray does not restart it."""
        await asyncio.sleep(ANSWER_PAUSE_S)
        self._log("compactor ends", compactor=self._name)
        actor = await asyncio.to_thread(
            ray.get_actor, compactor_actor_name(self._name), namespace=NAMESPACE
        )
        await asyncio.to_thread(ray.kill, actor, no_restart=True)

    async def _leave_draining_node(self) -> None:
        """Hand back everything before the node goes, and end: Ray restarts the actor elsewhere."""
        deadline_s = None
        while deadline_s is None:
            await asyncio.sleep(NODE_CHECK_INTERVAL_S)
            deadline_s = await asyncio.to_thread(_drain_deadline_s, self._node)
        left_s = max(0.0, deadline_s - SystemClock().now_s() - HAND_BACK_S)
        wait_max_s = min(left_s, self._drain_timeout_s)
        self._log("node drains", node=self._node, wait_max_s=round(wait_max_s, 1))
        await self._service.stop(wait_max_s)
        os._exit(0)


def _drain_deadline_s(node: str) -> float | None:
    """Return when Ray removes a node, in seconds since the epoch; None: not as far as known."""
    client = ray._private.worker.global_worker.gcs_client  # noqa: SLF001 - Ray has no public API
    try:
        draining: dict[str, int] = client.get_draining_nodes(timeout=ANSWER_MAX_S)
    except ray.exceptions.RayError:
        return None
    deadline_ms = draining.get(node)
    if deadline_ms is None:
        return None
    return deadline_ms / 1000 if deadline_ms else math.inf  # 0: it has no deadline.


def _log_parts(name: str) -> tuple[str, str, str]:
    """Return the parts with log files of a compactor: itself, Spark's driver, executors."""
    return f"compactor-{name}", f"driver-{name}", f"executor-{name}"


def _with_task_memory(settings: Settings, group: str) -> tuple[CompactorSettings, TaskMemory]:
    """Return the settings of a compactor on this node, and the memory of its tasks.

    It stays as long as the actor lives, so that all attempts at a job have the same plan.
    """
    compactor = settings.compactor_of(group)
    if compactor.task_memory != AUTO:
        return compactor, given_task_memory(settings, group)
    own = ray.get_runtime_context().get_node_id()
    nodes: dict[str, dict[str, float]] = {node["NodeID"]: node["Resources"] for node in ray.nodes()}
    alone = group in settings.groups and bool(settings.groups[group].resource)
    memory = node_task_memory(compactor, nodes.get(own, {}), control_group_bytes(), alone=alone)
    return replace(compactor, task_memory=memory.size), memory


def _driver(
    settings: Settings,
    compactor: CompactorSettings,
    name: str,
    node_resource: str,
    log_files: LogFiles,
) -> DriverSettings:
    """Return the settings of the Spark driver: on this cluster, pinned to this node."""
    log_file, executor_logs = os.devnull, ""
    if log_files.folder is not None:
        _, driver, executor = _log_parts(name)
        log_file, executor_logs = str(log_files.path(driver)), str(log_files.folder / executor)
    return driver_settings(
        compactor,
        name=name,
        ray_address=ray.get_runtime_context().gcs_address,
        node_ip=ray.util.get_node_ip_address(),
        session_folder=ray._private.worker.global_worker.node.get_session_dir_path(),  # noqa: SLF001 - Ray has no public API
        node_resource=node_resource,
        log_file=log_file,
        executor_logs=executor_logs,
        executor_log_bytes_max=log_files.settings.file_bytes_max,
        lake_access=packed_access(catalog_access(settings)),
    )
