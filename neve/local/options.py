"""What a stack can be told, and what it wants of the machine."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from common.errors import ConfigError
from common.settings import CompactorCount, CompactorSettings, Settings
from common.units import parse_size_bytes
from compactor.spark.application import executor_bytes
from compactor.spark.driver_protocol import driver_settings
from neve.local.redis_server import AppendSync

SPARE_BYTES = 1024**3
APP_CPUS = 1
"""Logical CPUs that RayDP's app master takes."""
SPARE_CPUS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """How large a stack is and where it listens; ports left out are chosen."""

    compactors: int | None = None
    """Of the default group, or the only one; None: as many as the settings say."""
    redis_appendfsync: AppendSync = AppendSync.EVERYSEC
    ray_port: int | None = None
    dashboard_port: int | None = None
    """Where Ray's dashboard listens; None: no dashboard."""
    object_store_bytes: int = 200 * 1024**2
    allow: tuple[str, ...] = ()
    """Where tables may be, besides what `neve.local.locations` says."""
    actors: bool = True
    """False: only Redis and Ray are started."""
    supervised: bool = True
    """Whether a supervisor starts Redis and Ray again when they die."""
    settings: Settings = field(default_factory=Settings)
    """Settings of the service; addresses and the token are filled in."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.object_store_bytes < 80 * 1024**2:
            raise ConfigError(
                f"object_store_bytes is {self.object_store_bytes}, Ray wants at least 80 MB"
            )

    @property
    def service(self) -> Settings:
        """The settings with the number of compactors that was asked for."""
        if self.compactors is None:
            return self.settings
        count = CompactorCount(min=self.compactors, max=self.compactors)
        return with_group(self.settings, "compactors", compactors=count)

    @property
    def logical_cpus(self) -> int:
        """CPUs that Ray is told of: so many that every compactor's parts find a place.

        Ray only counts them. What runs at a time is bounded by slots and by the
        executors' cores, not by this number.
        """
        wanted = sum(each.executors * each.executor_cores + APP_CPUS for each in self._each())
        return wanted + SPARE_CPUS

    @property
    def logical_bytes(self) -> int:
        """Memory that Ray is told of, likewise: what all executors ask for, and some more.

        That the machine has it is looked at before: see `check_memory`.
        """
        asked = (
            each.executors * executor_bytes(driver_settings(each, name="")) for each in self._each()
        )
        return sum(asked) + SPARE_BYTES

    @property
    def heap_bytes(self) -> list[int]:
        """Heaps of each compactor's driver and executors."""
        if not self.actors:
            return []
        return [
            parse_size_bytes(each.driver_memory)
            + each.executors * parse_size_bytes(each.executor_memory)
            for each in self._each()
        ]

    def with_slots(self, slots: int | None) -> "StackOptions":
        """Return the options with another number of slots per compactor, if one is given."""
        if slots is None:
            return self
        return replace(self, settings=with_group(self.settings, "slots", slots=slots))

    def _each(self) -> Iterator[CompactorSettings]:
        """Yield the settings of every compactor that is started."""
        service = self.service
        for group, _ in service.compactor_names():
            yield service.compactor_of(group)


def with_group(settings: Settings, what: str, **values: object) -> Settings:
    """Return settings whose default group, or only one, differs in something.

    Args:
        settings: As they were.
        what: Differs, for the message.
        values: Settings of the group.
    """
    name = settings.only_group(what)
    group = replace(settings.groups[name], **values)  # type: ignore[arg-type]  # by name
    return replace(settings, groups={**settings.groups, name: group})
