"""What a compactor asks of the nodes of a Ray cluster, and whether any of them gives it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.errors import ConfigError, RequestError
from common.settings import CompactorSettings, Settings
from common.units import format_bytes, format_count, parse_size_bytes

OVERHEAD_BYTES_MIN, OVERHEAD_SHARE = 256 * 1024**2, 0.1
"""Of an executor's JVM beside its heap: code, stacks, buffers."""

Offers = Sequence[Mapping[str, float]]
"""Ray resources of each node, or of each type of node."""


def executor_memory_bytes(heap_bytes: int, cores: int, task_bytes: int) -> int:
    """Return what an executor takes with all its tasks: heap, what a JVM has besides, Python."""
    beside = max(OVERHEAD_BYTES_MIN, int(heap_bytes * OVERHEAD_SHARE))
    return heap_bytes + beside + cores * task_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeed:
    """What one node has to have at the same time, to be of use to a group."""

    resource: str
    """A custom resource of the node; empty: any node will do."""
    cpus: int = 0
    memory_bytes: int = 0

    def lack(self, offers: Offers) -> str:
        """Return what no node has, as a sentence without its end; empty: one has all of it.

        Args:
            offers: What nodes have in all, whoever uses it now.
        """
        having = [each for each in offers if not self.resource or each.get(self.resource)]
        if not having:
            return f"no node has the Ray resource {self.resource!r}" if offers else "no node is up"
        if any(self._fits(each) for each in having):
            return ""
        largest = max(having, key=lambda each: (each.get("CPU", 0.0), each.get("memory", 0.0)))
        which = f"no node with the Ray resource {self.resource!r}" if self.resource else "no node"
        return (
            f"{which} has the {format_count(self.cpus, 'CPU')} and"
            f" {format_bytes(self.memory_bytes)} that its Spark executors ask for: the largest has"
            f" {largest.get('CPU', 0.0):g} and {format_bytes(int(largest.get('memory', 0.0)))}"
        )

    def _fits(self, offer: Mapping[str, float]) -> bool:
        return offer.get("CPU", 0.0) >= self.cpus and offer.get("memory", 0.0) >= self.memory_bytes


def group_needs(settings: Settings, group: str, node_resource: str = "") -> Iterator[NodeNeed]:
    """Yield what nodes must have for compactors of a group, one need for each kind of node.

    Args:
        settings: Of the service.
        group: One of its groups.
        node_resource: The resource that takes the place of the group's own; empty: none does.

    Raises:
        ConfigError: A size is none.
    """
    own = settings.compactor_of(group)
    memory_bytes = _executor_bytes(own)
    resource = node_resource or settings.groups[group].resource
    if own.executor_resource:
        yield NodeNeed(resource=resource)
        yield NodeNeed(
            resource=own.executor_resource, cpus=own.executor_cores, memory_bytes=memory_bytes
        )
    else:
        count = own.executors
        yield NodeNeed(
            resource=resource, cpus=count * own.executor_cores, memory_bytes=count * memory_bytes
        )


def tasks_memory_bytes(settings: CompactorSettings) -> int:
    """Return the memory that all tasks of a compactor may have at a time, in Python."""
    task_bytes = parse_size_bytes(settings.task_memory, "compactor.task_memory")
    return settings.executors * settings.executor_cores * task_bytes


def _executor_bytes(settings: CompactorSettings) -> int:
    try:
        # A JVM is told whole megabytes.
        heap = parse_size_bytes(settings.executor_memory, "compactor.executor_memory") >> 20 << 20
        task_bytes = parse_size_bytes(settings.task_memory, "compactor.task_memory")
    except RequestError as error:
        raise ConfigError(str(error)) from error
    return executor_memory_bytes(heap, settings.executor_cores, task_bytes)
