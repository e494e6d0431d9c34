"""What a compactor requires of a Ray node, and whether any node offers it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from common.errors import ConfigError, RequestError
from common.settings import AUTO, CompactorSettings, Settings
from common.units import format_bytes, format_count, parse_size_bytes

OVERHEAD_BYTES_MIN, OVERHEAD_SHARE = 256 * 1024**2, 0.1
"""Memory of an executor's JVM in addition to its heap: code, stacks, buffers."""

TASK_BYTES_USUAL = 768 * 1024**2
"""Memory of a task where `auto` does not know how much memory there is."""
TASK_BYTES_LEAST, TASK_BYTES_MOST = 512 * 1024**2, 4 * 1024**3
"""Bounds of a chosen memory. Above, jobs are not merged faster, and the page cache is useful."""
LIMIT_FACTOR, LIMIT_BYTES_LEAST = 1.25, 1536 * 1024**2
SERVICE_BYTES = 700 * 1024**2
"""Memory of Redis, Ray's own processes, coordinator and gateway of a stack on one machine."""
COMPACTOR_BYTES = 800 * 1024**2
"""Memory of a compactor's actor, driver and other Python processes."""
NODE_BYTES = 712 * 1024**2
"""Memory of Ray's processes on a node, and of its object store."""
MACHINE_SHARE = 0.75
"""Share of a machine that a stack uses, because other programs and the page cache need the rest."""

Offers = Sequence[Mapping[str, float]]
"""Ray resources of each node, or of each type of node."""


# ---------------------------------------------------------------------------- Memory of a task


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """Memory of the Python process of a task, and why it is that much."""

    task_bytes: int
    why: str

    @property
    def size(self) -> str:
        """The memory as a setting."""
        return f"{self.task_bytes >> 20}m"

    @property
    def text(self) -> str:
        """The memory, and the reason."""
        return f"{format_bytes(self.task_bytes)} per task ({self.why})"


def task_bytes(settings: CompactorSettings) -> int:
    """Return the memory of a task; of `auto` the usual one, until it is chosen."""
    if settings.task_memory == AUTO:
        return TASK_BYTES_USUAL
    return parse_size_bytes(settings.task_memory, "compactor.task_memory")


def task_limit_bytes(settings: CompactorSettings) -> int:
    """Return the memory at which the process of a task is ended; 0: no limit."""
    if settings.task_memory_max == AUTO:
        return max(int(LIMIT_FACTOR * task_bytes(settings)), LIMIT_BYTES_LEAST)
    return parse_size_bytes(settings.task_memory_max, "compactor.task_memory_max")


def _chosen(given_bytes: int, most_bytes: int) -> int:
    """Return the memory of a task out of its share: within bounds, whole megabytes."""
    most_bytes = min(TASK_BYTES_MOST, most_bytes or TASK_BYTES_MOST)
    return min(most_bytes, max(TASK_BYTES_LEAST, given_bytes)) >> 20 << 20


def machine_task_memory(
    compactors: Sequence[CompactorSettings], machine_bytes: int
) -> TaskMemory | None:
    """Return the memory of a task of a stack on one machine; None: the settings give all sizes.

    Args:
        compactors: Settings of every compactor that may run at the same time.
        machine_bytes: Memory of the machine, or the limit of its control group.
    """
    automatic = [settings for settings in compactors if settings.task_memory == AUTO]
    if not automatic:
        return None
    tasks = sum(map(_tasks, automatic))
    others_bytes = SERVICE_BYTES + sum(
        _jvm_bytes(settings)
        + COMPACTOR_BYTES
        + (0 if settings.task_memory == AUTO else _tasks(settings) * task_bytes(settings))
        for settings in compactors
    )
    given_bytes = int(machine_bytes * MACHINE_SHARE) - others_bytes
    why = (
        f"auto: {MACHINE_SHARE:.0%} of the {format_bytes(machine_bytes)} of this machine, less"
        f" {format_bytes(others_bytes)} for Redis, coordinator, gateway and Spark, for"
        f" {format_count(tasks, 'task')}"
    )
    most_bytes = min(filter(None, map(_limit_given, automatic)), default=0)
    return TaskMemory(_chosen(given_bytes // tasks, most_bytes), why)


def with_task_memory(settings: Settings, memory: TaskMemory | None) -> Settings:
    """Return settings in which `auto` is replaced by a size, with its reason as the source.

    Args:
        settings: Settings of the service.
        memory: The chosen memory; None: no setting is `auto`.
    """
    if memory is None:
        return settings
    compactor, groups, sources = settings.compactor, dict(settings.groups), dict(settings.sources)
    if compactor.task_memory == AUTO:
        compactor = replace(compactor, task_memory=memory.size)
        sources["compactor.task_memory"] = memory.why
    for name, group in settings.groups.items():
        if group.task_memory == AUTO:
            groups[name] = replace(group, task_memory=memory.size)
            sources[f"groups.{name}.task_memory"] = memory.why
    return replace(settings, compactor=compactor, groups=groups, sources=sources)


def given_task_memory(settings: Settings, group: str) -> TaskMemory:
    """Return the memory of a group's tasks that its settings give, with their source."""
    names = [f"groups.{group}.task_memory", "compactor.task_memory"]
    source = next(filter(None, map(settings.sources.get, names)), "default")
    return TaskMemory(task_bytes(settings.compactor_of(group)), source)


def node_task_memory(
    settings: CompactorSettings, node: Mapping[str, float], limit_bytes: int, *, alone: bool
) -> TaskMemory:
    """Return the memory of a task of a compactor on a node of a cluster.

    Args:
        settings: Settings of the compactor; its task memory is `auto`.
        node: Ray resources of its node.
        limit_bytes: Memory limit of the node's control group; 0: none.
        alone: Whether the node has no other compactor; otherwise they share it by CPUs.
    """
    if settings.executor_resource:
        return TaskMemory(TASK_BYTES_USUAL, "auto: executors run on other nodes")
    node_bytes = min(filter(None, (int(node.get("memory", 0)), limit_bytes)), default=0)
    if not node_bytes:
        return TaskMemory(TASK_BYTES_USUAL, "auto: the memory of the node is unknown")
    tasks = _tasks(settings)
    share = 1.0 if alone else min(1.0, tasks / max(1.0, node.get("CPU", 1.0)))
    others_bytes = _jvm_bytes(settings) + COMPACTOR_BYTES
    given_bytes = int(max(0, node_bytes - NODE_BYTES) * share) - others_bytes
    part = "" if share == 1.0 else f"{share:.0%} of "
    why = (
        f"auto: {part}{format_bytes(node_bytes)} of the node, less"
        f" {format_bytes(NODE_BYTES + others_bytes)} for Ray and Spark, for"
        f" {format_count(tasks, 'task')}"
    )
    return TaskMemory(_chosen(given_bytes // tasks, _limit_given(settings)), why)


def _tasks(settings: CompactorSettings) -> int:
    return settings.executors * settings.executor_cores


def _limit_given(settings: CompactorSettings) -> int:
    """Return the limit that an operator has set; 0: none, or `auto`."""
    return 0 if settings.task_memory_max == AUTO else task_limit_bytes(settings)


def _jvm_bytes(settings: CompactorSettings) -> int:
    """Return the memory of a compactor's JVMs: driver and executors with what is not heap."""
    heap_bytes = parse_size_bytes(settings.executor_memory, "compactor.executor_memory")
    executor_bytes = executor_memory_bytes(heap_bytes, 0, 0)
    driver_bytes = parse_size_bytes(settings.driver_memory, "compactor.driver_memory")
    return settings.executors * executor_bytes + driver_bytes


# ------------------------------------------------------------------------------- Needs of a node


def executor_memory_bytes(heap_bytes: int, cores: int, task_bytes: int) -> int:
    """Return the memory of an executor with all its tasks: heap, JVM overhead and Python."""
    overhead_bytes = max(OVERHEAD_BYTES_MIN, int(heap_bytes * OVERHEAD_SHARE))
    return heap_bytes + overhead_bytes + cores * task_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeed:
    """Resources that a single node must have for it to serve a group."""

    resource: str
    """A custom Ray resource that the node must have; empty: none is required."""
    cpus: int = 0
    memory_bytes: int = 0

    def lack(self, offers: Offers) -> str:
        """Return why no node is large enough, as a clause; empty: at least one node is.

        Args:
            offers: Total resources of each node, whether in use or free.
        """
        suitable = [offer for offer in offers if not self.resource or offer.get(self.resource)]
        if not suitable:
            return f"no node has the Ray resource {self.resource!r}" if offers else "no node is up"
        if any(self._fits(offer) for offer in suitable):
            return ""
        largest = max(suitable, key=lambda offer: (offer.get("CPU", 0.0), offer.get("memory", 0.0)))
        which = f"no node with the Ray resource {self.resource!r}" if self.resource else "no node"
        return (
            f"{which} has the {format_count(self.cpus, 'CPU')} and"
            f" {format_bytes(self.memory_bytes)} that its Spark executors require: the largest has"
            f" {largest.get('CPU', 0.0):g} and {format_bytes(int(largest.get('memory', 0.0)))}"
        )

    def _fits(self, offer: Mapping[str, float]) -> bool:
        return offer.get("CPU", 0.0) >= self.cpus and offer.get("memory", 0.0) >= self.memory_bytes


def group_needs(settings: Settings, group: str, node_resource: str = "") -> Iterator[NodeNeed]:
    """Yield the node requirements of a group's compactors, one for each kind of node.

    Args:
        settings: Settings of the service.
        group: One of its groups.
        node_resource: Resource that replaces the group's own; empty: the group's own is used.

    Raises:
        ConfigError: A size is malformed.
    """
    compactor = settings.compactor_of(group)
    memory_bytes = _executor_bytes(compactor)
    resource = node_resource or settings.groups[group].resource
    if compactor.executor_resource:
        yield NodeNeed(resource=resource)
        yield NodeNeed(
            resource=compactor.executor_resource,
            cpus=compactor.executor_cores,
            memory_bytes=memory_bytes,
        )
    else:
        count = compactor.executors
        yield NodeNeed(
            resource=resource,
            cpus=count * compactor.executor_cores,
            memory_bytes=count * memory_bytes,
        )


def tasks_memory_bytes(settings: CompactorSettings) -> int:
    """Return the Python memory that all concurrent tasks of a compactor may use together."""
    return _tasks(settings) * task_bytes(settings)


def _executor_bytes(settings: CompactorSettings) -> int:
    try:
        # JVM heap options take whole megabytes.
        heap = parse_size_bytes(settings.executor_memory, "compactor.executor_memory") >> 20 << 20
        # A node of any size from the least one on will do; the compactor takes what it gives.
        least_bytes = TASK_BYTES_LEAST if settings.task_memory == AUTO else task_bytes(settings)
    except RequestError as error:
        raise ConfigError(str(error)) from error
    return executor_memory_bytes(heap, settings.executor_cores, least_bytes)
