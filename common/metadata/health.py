"""What an operator must know of the store itself: room, eviction, durability, replicas."""

from dataclasses import dataclass

from common.errors import ConfigError
from common.units import format_bytes

NO_EVICTION = "noeviction"
NEARLY_FULL = 0.85
"""Share of `maxmemory` from which on the store is nearly full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """What the store says of itself. The default is a store without faults or bounds."""

    policy: str = NO_EVICTION
    """Which keys it throws away when it is full."""
    memory_bytes: int = 0
    memory_max_bytes: int = 0
    """0: as much as the machine has."""
    full: bool = False
    """Whether it was full and adds wait until there is room again."""
    append_only: bool = True
    """Whether it would still know everything after a restart."""
    write_failure: str = ""
    """What it could not write to its disk; empty: it could."""
    replicas: int = 0
    replicas_wanted: int = 0

    def check(self) -> None:
        """Refuse a store that forgets.

        Raises:
            ConfigError: It throws keys away when it is full.
        """
        if self.policy != NO_EVICTION:
            raise ConfigError(
                f"setting store.url: the store has maxmemory-policy {self.policy} and would throw"
                " away files of tables when it is full: `CONFIG SET maxmemory-policy noeviction`"
            )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should change; a sentence each."""
        return tuple(
            sentence
            for sentence in (
                self._eviction(),
                self._room(),
                "" if self.append_only else _NO_LOG,
                self.write_failure and f"the store (Redis) {self.write_failure}: see its disk",
                self._replicas(),
            )
            if sentence
        )

    def _eviction(self) -> str:
        if self.policy == NO_EVICTION:
            return ""
        return (
            f"the store (Redis) has maxmemory-policy {self.policy} and will throw away files of"
            " tables when it is full: set it to noeviction now"
        )

    def _room(self) -> str:
        if not self.memory_max_bytes:
            return ""
        of = f"{format_bytes(self.memory_bytes)} of maxmemory {format_bytes(self.memory_max_bytes)}"
        if self.full:
            return (
                f"the store (Redis) was full and uses {of}: adds, new tables and requests wait"
                " until there is room; raise maxmemory"
            )
        if self.memory_bytes < NEARLY_FULL * self.memory_max_bytes:
            return ""
        return f"the store (Redis) is nearly full, {of}: raise maxmemory before adds have to wait"

    def _replicas(self) -> str:
        if self.replicas >= self.replicas_wanted:
            return ""
        return (
            f"the store (Redis) has {self.replicas} replicas, and store.wait_replicas wants"
            f" {self.replicas_wanted}: no add is acknowledged"
        )


_NO_LOG = (
    "the store (Redis) keeps no append-only file (appendonly no): a restart forgets what was added"
)
