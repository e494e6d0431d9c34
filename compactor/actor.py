"""The compactor as a Ray actor: options, wiring, the adapter to the coordinator; no decisions.

The service's loop starts with the actor; its failure ends the process, so that Ray
restarts it: an actor that answers but no longer works is worse than none. The Spark
driver is a child process and ends with this one.
"""

import asyncio
import os
from typing import Any

import ray

from common.clock import SystemClock
from common.errors import UnavailableError
from common.ids import RandomIds
from common.log_events import LogLevel
from common.log_files import LogFiles
from common.metadata.redis import connect
from common.settings import DEFAULT_GROUP, CompactorSettings, Settings
from common.telemetry import event_log
from common.wire import (
    COORDINATOR_NAME,
    NAMESPACE,
    Assignment,
    AttemptReport,
    Heartbeat,
    HeartbeatReply,
    TakeRequest,
    compactor_actor_name,
)
from compactor.service import CompactorService
from compactor.service.table_storage import TableStorage
from compactor.spark.driver_protocol import DriverSettings, driver_settings
from compactor.spark.engine import SparkEngine

CALLS_AT_ONCE = 1000
"""`stay` and `ping` last; none of them blocks a thread."""
ANSWER_MAX_S = 10.0
"""Longest wait for the coordinator, beyond what a call is meant to last."""
PIN_AMOUNT = 0.001
"""Enough of a node's own resource to be placed on that node."""


class RayWorkSource:
    """The coordinator's actor, looked up by name whenever it does not answer.

    Everything that Ray may raise leaves as UnavailableError.
    """

    def __init__(self) -> None:
        self._actor: Any = None

    async def take(self, request: TakeRequest) -> Assignment | None:
        """Wait for a job."""
        answer: Assignment | None = await self._call(
            "take", request, within_s=request.wait_max_s + ANSWER_MAX_S
        )
        return answer

    async def withdraw(self, take: str) -> None:
        """Want no job for a take any more."""
        await self._call("withdraw", take)

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """Say that we live and what we hold."""
        reply: HeartbeatReply = await self._call("beat", beat)
        return reply

    async def report(self, report: AttemptReport) -> None:
        """Say how an attempt ended."""
        await self._call("report", report)

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        """Say goodbye."""
        await self._call("leave", compactor, incarnation, cause)

    async def _call(self, method: str, *values: object, within_s: float = ANSWER_MAX_S) -> Any:
        try:
            async with asyncio.timeout(within_s):
                if self._actor is None:
                    # Asks Ray's head, which may be slow; heartbeats must go on meanwhile.
                    self._actor = await asyncio.to_thread(
                        ray.get_actor, COORDINATOR_NAME, namespace=NAMESPACE
                    )
                return await getattr(self._actor, method).remote(*values)
        except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
            self._actor = None
            cause = str(error).strip().partition("\n")[0]
            message = f"coordinator does not answer {method}: {type(error).__name__} {cause}"
            raise UnavailableError(message) from error


class CompactorActor:
    """One compactor of a group."""

    def __init__(
        self, settings: Settings, name: str, group: str, node_resource: str, log_folder: str
    ) -> None:
        """Wire the parts and start the loop."""
        self._log_files = LogFiles.of(log_folder, settings.log)
        self._log_files.take_output(_log_parts(name)[0])
        self._log_parts = _log_parts(name)
        context = ray.get_runtime_context()
        clock, ids = SystemClock(), RandomIds()
        store = connect(settings.store)
        self._log = event_log("compactor", LogLevel(settings.log.level))
        own = settings.compactor_of(group)
        self._engine = SparkEngine(_driver(own, name, node_resource, self._log_files))
        self._service = CompactorService(
            name,
            own,
            group=group,
            node=context.get_node_id(),
            coordinator=RayWorkSource(),
            engine=self._engine,
            store=store,
            files=TableStorage(store.store_id, clock),
            ids=ids,
            clock=clock,
            log=self._log,
        )
        loop = asyncio.get_running_loop()
        self._loop = loop.create_task(self._run())
        self._log("compactor begins", compactor=name, group=group)
        self._rotating = loop.create_task(self._log_files.rotate_forever(self._log_parts))

    async def _run(self) -> None:
        """Run the service; if it fails, end the process."""
        try:
            await self._service.run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._log("compactor fails", cause=_all_causes(error))
            os._exit(1)

    async def ping(self) -> str:
        """Answer with the incarnation when Spark is up."""
        await self._service.wait_ready()
        return self._service.incarnation

    async def failed_starts(self) -> tuple[int, str]:
        """Return how often Spark has failed to start since it last did, and why."""
        return self._service.failed_starts()

    async def stay(self, incarnation: str) -> str:
        """Return when this incarnation has left; to another one at once.

        Who awaits this hears of the actor's death from Ray, at once.
        """
        if incarnation != self._service.incarnation:
            return f"it was started again as {self._service.incarnation}"
        await self._service.wait_ended()
        return "it has left"

    async def status(self) -> Heartbeat:
        """Return what a heartbeat would say now."""
        return self._service.status()

    async def drain(self) -> None:
        """Take nothing more; finish what is held."""
        self._service.drain()

    async def shut_down(self) -> None:
        """Drain, then leave for good: no restart."""
        await self._service.stop()
        ray.actor.exit_actor()

    async def pids(self) -> tuple[int, int | None]:
        """Return the process ids of actor and Spark driver, for tests that kill them."""
        return os.getpid(), self._engine.pid


def _log_parts(name: str) -> tuple[str, str, str]:
    """Return the parts whose log files a compactor keeps: itself, Spark's driver, executors."""
    return f"compactor-{name}", f"driver-{name}", f"executor-{name}"


def _driver(
    settings: CompactorSettings, name: str, node_resource: str, log_files: LogFiles
) -> DriverSettings:
    """Return the settings of the Spark driver: on this cluster, pinned to this node."""
    log_file, executor_logs = os.devnull, ""
    if log_files.folder is not None:
        _, driver, executor = _log_parts(name)
        log_file, executor_logs = str(log_files.path(driver)), str(log_files.folder / executor)
    return driver_settings(
        settings,
        name=name,
        ray_address=ray.get_runtime_context().gcs_address,
        # Every node has a resource that is named by its address.
        node_resource=node_resource or f"node:{ray.util.get_node_ip_address()}",
        log_file=log_file,
        executor_logs=executor_logs,
        executor_log_bytes_max=log_files.settings.file_bytes_max,
    )


def _all_causes(error: BaseException) -> str:
    """Return an error as a sentence; of a group, all its members."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_all_causes, error.exceptions))
    return f"{type(error).__name__}: {error}"


def start(
    settings: Settings,
    *,
    name: str,
    group: str = DEFAULT_GROUP,
    node_resource: str = "",
    log_folder: str = "",
    **options: Any,
) -> Any:
    """Start a compactor as a detached actor, or return the one that runs by this name.

    Args:
        settings: All settings of the service.
        name: The compactor's, unique in the cluster.
        group: The compaction group that it serves.
        node_resource: A Ray resource of the node that it shall run on, with its Spark
            executors; empty: on any node, with the executors beside it.
        log_folder: Where it and its Spark application keep their log files; empty: nowhere.
        options: Further Ray actor options.
    """
    pin = {"resources": {node_resource: PIN_AMOUNT}} if node_resource else {}
    return (
        ray.remote(CompactorActor)
        .options(
            name=compactor_actor_name(name),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=CALLS_AT_ONCE,
            num_cpus=0,
            **pin,
            **options,
        )
        .remote(settings, name, group, node_resource, log_folder)
    )
