"""What a stack can be told."""

from dataclasses import dataclass, field, replace

from common.errors import ConfigError
from common.settings import Settings
from common.units import parse_size_bytes
from compactor.spark.application import executor_bytes
from compactor.spark.settings import driver_settings
from neve.local.redis_server import AppendSync

SPARE_BYTES = 1024**3
APP_CPUS = 1
"""Logical CPUs that RayDP's app master takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """How large a stack is and where it listens; ports left out are chosen."""

    compactors: int = 2
    redis_appendfsync: AppendSync = AppendSync.EVERYSEC
    redis_port: int | None = None
    ray_port: int | None = None
    gateway_port: int | None = None
    dashboard_port: int | None = None
    """Where Ray's dashboard listens; None: no dashboard."""
    object_store_bytes: int = 200 * 1024**2
    actors: bool = True
    """False: only Redis and Ray are started."""
    settings: Settings = field(default_factory=Settings)
    """Settings of the service; addresses and the token are filled in."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not 0 <= self.compactors <= 64:
            raise ConfigError(f"compactors is {self.compactors}, wanted 0 to 64")
        if self.object_store_bytes < 80 * 1024**2:
            raise ConfigError(
                f"object_store_bytes is {self.object_store_bytes}, Ray wants at least 80 MB"
            )

    @property
    def logical_cpus(self) -> int:
        """CPUs that Ray is told of: so many that every compactor's parts find a place.

        Ray only counts them. What runs at a time is bounded by slots and by the
        executors' cores, not by this number.
        """
        executor = self.settings.compactor.executor_cores
        return self.compactors * (executor + APP_CPUS) + 4

    @property
    def logical_bytes(self) -> int:
        """Memory that Ray is told of, likewise: what all executors ask for, and some more.

        That the machine has it is looked at before: see `check_memory`.
        """
        asked = executor_bytes(driver_settings(self.settings.compactor, name=""))
        return self.compactors * asked + SPARE_BYTES

    @property
    def compactor_bytes(self) -> int:
        """Memory that one compactor wants."""
        compactor = self.settings.compactor
        heaps = (compactor.executor_memory, compactor.driver_memory)
        return sum(parse_size_bytes(heap) for heap in heaps)

    def with_slots(self, slots: int | None) -> "StackOptions":
        """Return the options with another number of slots per compactor, if one is given."""
        if slots is None:
            return self
        compactor = replace(self.settings.compactor, slots=slots)
        return replace(self, settings=replace(self.settings, compactor=compactor))
