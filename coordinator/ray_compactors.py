"""What the coordinator runs on Ray: compactors as actors, ranges of full scans as tasks."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.core.generated import autoscaler_pb2
from ray.experimental.internal_kv import _internal_kv_get

from common.compactor_needs import NodeNeed, Offers, group_needs
from common.coordinator_proxy import start_compactor
from common.errors import CompactionError, UnavailableError, actor_error
from common.metadata.redis import connect
from common.runtime import ignore_what_is_loaded
from common.settings import Settings
from common.wire import COORDINATOR_NAME, NAMESPACE, PIN_AMOUNT, compactor_actor_name
from coordinator.ports import Lack, PlanTablet
from coordinator.registry import planner_for
from coordinator.scan.full_scan import LocalRangeScans, RangeFindings, ScanRange

ANSWER_MAX_S = 5.0
SHUT_DOWN_ANSWER_MAX_S = 10.0
AUTOSCALER_REPORT = b"__autoscaling_status"
"""Key under which version 1 of Ray's autoscaler stores its reports."""
LOOK_AGE_MAX_S = 4.0
"""Maximum age of cached node data, so that two rounds share one query."""
_PREFIX = compactor_actor_name("")


def compactor_names() -> frozenset[str]:
    """Return the existing compactors: running, starting, or waiting for a node."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = (actor["name"] for actor in actors if actor["namespace"] == NAMESPACE)
    return frozenset(name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))


def shut_down_all() -> list[Any]:
    """Shut down all compactors concurrently, and wait for those that answer.

    The coordinator stops starting new compactors.

    Returns:
        The actors of all compactors, including those that did not answer.
    """
    _stop_scaling()
    names = sorted(map(compactor_actor_name, compactor_names()))
    compactors = [ray.get_actor(name, namespace=NAMESPACE) for name in names]
    calls = [compactor.shut_down.remote() for compactor in compactors]
    asked = [compactor.shut_down_max_s.remote() for compactor in compactors]
    answered: list[Any] = []
    if asked:
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=SHUT_DOWN_ANSWER_MAX_S)
    waits_s = [_longest_s(answer) for answer in answered]
    waited = [call for call, question in zip(calls, asked, strict=True) if question in answered]
    if waited:
        ray.wait(waited, num_returns=len(waited), timeout=max(waits_s))
    return compactors


def _stop_scaling() -> None:
    """Ask the coordinator to start no compactors; a dead or silent one starts none anyway."""
    with suppress(ValueError, TimeoutError, ray.exceptions.RayError):
        coordinator = ray.get_actor(COORDINATOR_NAME, namespace=NAMESPACE)
        ray.get(coordinator.stop_scaling.remote(), timeout=ANSWER_MAX_S)


def _longest_s(question: Any) -> float:
    """Return the maximum time that a compactor needs to shut down, or 0 if it has died."""
    try:
        return float(ray.get(question))
    except ray.exceptions.RayError:
        return 0.0


# ------------------------------------------------------------------------------- Resources of nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNodes:
    """Resources of Ray's nodes, and of nodes that its autoscaler may add."""

    nodes: Offers
    types: Offers | None = None
    """Resources of each node type; None if Ray does not know them, for example with KubeRay."""
    autoscaled: bool = False
    """Whether an autoscaler reports to Ray."""
    infeasible: Offers = ()
    """Requested resources that no node type has, according to the autoscaler."""


def known_nodes() -> KnownNodes:
    """Query Ray's head; works only in a process of the cluster."""
    nodes = tuple(node["Resources"] for node in ray.nodes() if node["Alive"])
    reply = autoscaler_pb2.GetClusterStatusReply()
    head = ray.get_runtime_context().gcs_address
    reply.ParseFromString(GcsClient(address=head).get_cluster_status(timeout_s=ANSWER_MAX_S))
    state = reply.autoscaling_state
    config = ray._private.state.state.get_cluster_config()  # noqa: SLF001 - Ray has no public API for it
    types = None
    if config is not None:
        node_types = config.node_group_configs
        types = tuple(dict(node_type.resources) for node_type in node_types if node_type.max_count)
    return KnownNodes(
        nodes=nodes,
        types=types,
        autoscaled=state.autoscaler_state_version > 0 or bool(_internal_kv_get(AUTOSCALER_REPORT)),
        infeasible=tuple(
            dict(request.resources_bundle) for request in state.infeasible_resource_requests
        ),
    )


def lack_of(missing: str, needs: Sequence[NodeNeed], nodes: KnownNodes) -> Lack:
    """Return the missing resources, and whether a node with them may be added. Pure.

    Args:
        missing: Description of the missing resources, from `NodeNeed.lack`.
        needs: Resources that nodes must have for the group.
        nodes: Ray's knowledge of nodes.
    """
    own_resources = {need.resource for need in needs if need.resource}
    if any(not own_resources.isdisjoint(request) for request in nodes.infeasible):
        return Lack(f"{missing}; Ray's autoscaler reports that no node type has it", final=True)
    if nodes.types is not None:
        if any(need.lack(nodes.types) for need in needs):
            return Lack(f"{missing}; no node type of Ray's autoscaler has it", final=True)
        return Lack(f"{missing}; Ray's autoscaler adds a node when compactors are needed")
    if nodes.autoscaled:
        return Lack(f"{missing}; Ray's autoscaler may add a node when compactors are needed")
    return Lack(f"{missing}; no autoscaler adds such a node, so start one", final=True)


# --------------------------------------------------------------------------------------- The lever


class RayCompactorLever:
    """Starts and stops compactor actors. Every method raises `UnavailableError` if Ray fails."""

    def __init__(
        self, settings: Settings, *, node_resource: str, log_folder: str, edition: str
    ) -> None:
        """Create a lever with the options of new compactors.

        Args:
            settings: All settings of the service.
            node_resource: Ray resource of the node on which compactors run; empty means any node,
                or those with the resource of their group.
            log_folder: Folder of their log files.
            edition: Identifies the settings and the release.
        """
        self._settings = settings
        self._more = {
            "node_resource": node_resource,
            "log_folder": log_folder,
            "edition": edition,
        }
        self._handles: dict[str, Any] = {}
        """Handles of compactors that this process has started, to query the cause of a death."""
        self._looked: tuple[float, KnownNodes] | None = None
        self._had: set[str] = set()
        """Groups for which the cluster once had a suitable node."""

    @property
    def edition(self) -> str:
        """Edition of newly started compactors."""
        return self._more["edition"]

    async def names(self) -> frozenset[str]:
        """Return the existing compactors: running, starting, or waiting for a node."""
        try:
            return await asyncio.to_thread(compactor_names)
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise UnavailableError(f"Ray does not report its actors: {error}") from error

    async def start(self, group: str, name: str) -> None:
        """Start a compactor; it may wait for a node."""
        try:
            # The call checks the name with Ray's head.
            self._handles[name] = await asyncio.to_thread(self._start, group, name)
        except (ray.exceptions.RayError, RuntimeError, ValueError, CompactionError) as error:
            raise UnavailableError(f"compactor {name} cannot be started: {error}") from error

    def _start(self, group: str, name: str) -> Any:
        return start_compactor(self._settings, name=name, group=group, **self._more)

    async def shut_down(self, name: str, wait_max_s: float | None) -> None:
        """Ask a compactor to finish its jobs and to exit; return at once."""
        actor = await self._actor(name)
        if actor is not None:
            actor.shut_down.remote(wait_max_s)

    async def kill(self, name: str) -> None:
        """Kill a compactor at once, without a restart."""
        actor = await self._actor(name)
        if actor is not None:
            await asyncio.to_thread(ray.kill, actor, no_restart=True)

    async def why_gone(self, name: str) -> str:
        """Return why a compactor that no longer exists has died, as far as Ray reports it."""
        actor = self._handles.pop(name, None)
        if actor is None:
            return "its actor is gone"
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                await actor.ping.remote()
        except TimeoutError:
            return "its actor is gone"
        except ray.exceptions.RayError as error:
            return actor_error(error)
        return "its actor answers again"

    async def lack(self, group: str, *, asked: bool) -> Lack:
        """Return the resources that a group needs and no node has; see `CompactorLever`."""
        # At rest the answer is known: it costs no query of Ray.
        if group not in self._settings.groups or (group in self._had and not asked):
            return Lack()
        needs = tuple(group_needs(self._settings, group, self._more["node_resource"]))
        nodes = (await self._nodes()).nodes
        missing = next(filter(None, (need.lack(nodes) for need in needs)), "")
        if not missing:
            self._had.add(group)
            return Lack()
        return lack_of(missing, needs, await self._nodes())

    async def _nodes(self) -> KnownNodes:
        """Return the resources of the nodes; all groups of a round share one query."""
        now_s = asyncio.get_running_loop().time()
        if self._looked is None or now_s - self._looked[0] > LOOK_AGE_MAX_S:
            try:
                self._looked = now_s, await asyncio.to_thread(known_nodes)
            except (ray.exceptions.RayError, RuntimeError) as error:
                raise UnavailableError(
                    f"Ray does not report the resources of its nodes: {error}"
                ) from error
        return self._looked[1]

    async def _actor(self, name: str) -> Any:
        actor_name = compactor_actor_name(name)
        try:
            return await asyncio.to_thread(ray.get_actor, actor_name, namespace=NAMESPACE)
        except ValueError:
            return None
        except ray.exceptions.RayError as error:
            raise UnavailableError(f"Ray does not answer: {error}") from error


# ----------------------------------------------------------------------------- Ranges of full scans
# Ranges of a full scan as Ray tasks: on any node, without a CPU reservation.
#
# The tasks reserve zero CPUs, so that they run on a cluster that consists of the head node only,
# and take no CPUs from compactors. They are spread over the nodes to relieve the head node. Ray
# does not retry them: the full scan does, and counts the retries.


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
