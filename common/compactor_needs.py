"""What a compactor requires of a Ray node, and whether any node offers it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.errors import ConfigError, RequestError
from common.settings import CompactorSettings, Settings
from common.units import format_bytes, format_count, parse_size_bytes

OVERHEAD_BYTES_MIN, OVERHEAD_SHARE = 256 * 1024**2, 0.1
"""Memory of an executor's JVM in addition to its heap: code, stacks, buffers."""

Offers = Sequence[Mapping[str, float]]
"""Ray resources of each node, or of each type of node."""


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
    task_bytes = parse_size_bytes(settings.task_memory, "compactor.task_memory")
    return settings.executors * settings.executor_cores * task_bytes


def _executor_bytes(settings: CompactorSettings) -> int:
    try:
        # JVM heap options take whole megabytes.
        heap = parse_size_bytes(settings.executor_memory, "compactor.executor_memory") >> 20 << 20
        task_bytes = parse_size_bytes(settings.task_memory, "compactor.task_memory")
    except RequestError as error:
        raise ConfigError(str(error)) from error
    return executor_memory_bytes(heap, settings.executor_cores, task_bytes)
