"""What a stack is told: its size, where it listens, and where its tables may be."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.errors import ConfigError
from common.model.location_identity import is_system_path
from common.settings import CompactorCount, CompactorSettings, GatewaySettings, Settings
from common.units import parse_size_bytes
from compactor.spark.application import executor_bytes
from compactor.spark.driver_protocol import driver_settings
from neve.local.redis_server import AppendSync
from neve.local.stack_folder import StackFolder, make_private, write_secret

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
    """Where tables may be, besides what `neve.local.options` says."""
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
                f"object_store_bytes is {self.object_store_bytes}, expected at least 80 MB for Ray"
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
        wanted = sum(
            settings.executors * settings.executor_cores + APP_CPUS for settings in self._most()
        )
        return wanted + SPARE_CPUS

    @property
    def logical_bytes(self) -> int:
        """Memory that Ray is told of, likewise: what all executors ask for, and some more.

        That the machine has it is looked at before: see `require_memory`.
        """
        asked = (
            settings.executors * executor_bytes(driver_settings(settings, name=""))
            for settings in self._most()
        )
        return sum(asked) + SPARE_BYTES

    @property
    def heap_bytes(self) -> list[int]:
        """Heaps of each compactor's driver and executors."""
        if not self.actors:
            return []
        return [
            parse_size_bytes(settings.driver_memory)
            + settings.executors * parse_size_bytes(settings.executor_memory)
            for settings in self._each()
        ]

    def with_slots(self, slots: int | None) -> "StackOptions":
        """Return the options with another number of slots per compactor, if one is given."""
        if slots is None:
            return self
        return replace(self, settings=with_group(self.settings, "slots", slots=slots))

    def _most(self) -> Iterator[CompactorSettings]:
        """Yield the settings of every compactor that may run at the same time."""
        service = self.service
        for group in service.compactors_max():
            yield service.compactor_of(group)

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


# ------------------------------------------------------------------------------ Where tables may be


REMEMBERED_MAX = 100


def with_locations(
    given: GatewaySettings,
    folder: StackFolder,
    private: Path,
    allow: Iterable[str],
    environ: Mapping[str, str],
) -> GatewaySettings:
    """Return the gateway's settings with the places that tables may be in.

    Args:
        given: By the operator.
        folder: The stack's; what is named here is remembered there.
        private: Its folder of what lives as long as it runs: sockets, scratch.
        allow: Named for this start and later ones: folders, buckets, prefixes.
        environ: Of the user, where home and temporary files are looked up.

    Raises:
        ConfigError: One of them is none, or is the system's.
    """
    # Here, so that what only names a stack's folder starts fast.
    from neve.gateway.table_locations import locations_of

    make_private(folder.tables)
    named = [*_remembered_locations(folder), *map(absolute_location, allow)]
    own = [*_own_folders(environ)]
    usual = [] if given.locations else [each for each in own if not _is_hidden(each, environ)]
    every = dict.fromkeys((*given.locations, *usual, *named, str(folder.tables)))
    closed = (*given.private_folders, str(folder.path), str(private))
    shared = tuple(dict.fromkeys((*given.shared_folders, *own)))
    settings = replace(given, locations=tuple(every), private_folders=closed, shared_folders=shared)
    locations_of(settings)
    kept = [fromkey for fromkey in dict.fromkeys((*named, *usual)) if fromkey in every]
    write_secret(folder.locations_file, json.dumps(kept[-REMEMBERED_MAX:]))
    return settings


def absolute_location(written: str) -> str:
    """Return a folder or prefix as the service names it; a relative path is meant from here."""
    return written if "://" in written else os.path.abspath(os.path.expanduser(written))


def _own_folders(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders of the user who starts the stack, but none that holds everything."""
    try:
        working = os.getcwd()
    except OSError:  # It has been removed under us.
        working = ""
    temporary = environ.get("TMPDIR") or tempfile.gettempdir()
    for path in (environ.get("HOME", ""), working, temporary):
        if path.strip("/") and not is_system_path(os.path.realpath(path)):
            yield os.path.realpath(path)


def _is_hidden(path: str, environ: Mapping[str, str]) -> bool:
    """Return whether a folder lies in a hidden folder of the user's home."""
    home = os.path.realpath(environ.get("HOME") or "/")
    inside = path.removeprefix(f"{home.rstrip('/')}/")
    return inside != path and any(part.startswith(".") for part in inside.split("/"))


def _remembered_locations(folder: StackFolder) -> list[str]:
    try:
        known = json.loads(folder.locations_file.read_text("utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder.locations_file} is not readable: {error}") from None
    return [str(each) for each in known]
