"""Options of a stack: its size, its listening addresses, and the allowed table locations."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.compactor_needs import (
    TaskMemory,
    executor_memory_bytes,
    machine_task_memory,
    task_bytes,
    with_task_memory,
)
from common.errors import ConfigError
from common.model.location_identity import is_system_path
from common.settings import CompactorCount, CompactorSettings, GatewaySettings, Settings
from common.units import parse_size_bytes
from neve.local.servers import AppendSync
from neve.local.stack_folder import StackFolder, make_private, write_secret

SPARE_BYTES = 1024**3
SPARE_CPUS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """Size and ports of a stack; omitted ports are chosen automatically."""

    compactors: int | None = None
    """Compactors of the default or only group; None: the number in the settings."""
    redis_appendfsync: AppendSync = AppendSync.EVERYSEC
    ray_port: int | None = None
    dashboard_port: int | None = None
    """Port of Ray's dashboard; None: no dashboard."""
    object_store_bytes: int = 200 * 1024**2
    allow: tuple[str, ...] = ()
    """Table locations to allow in addition to those that `with_locations` allows."""
    actors: bool = True
    """If False, only Redis and Ray are started."""
    supervised: bool = True
    """Whether a supervisor restarts Redis, Ray and the actors when they die."""
    settings: Settings = field(default_factory=Settings)
    """Settings of the service; addresses and the token are filled in."""

    def __post_init__(self) -> None:
        """Reject invalid values."""
        if self.object_store_bytes < 80 * 1024**2:
            raise ConfigError(
                f"object_store_bytes is {self.object_store_bytes}, expected at least 80 MB for Ray"
            )

    @property
    def service(self) -> Settings:
        """The settings with the requested number of compactors."""
        if self.compactors is None:
            return self.settings
        count = CompactorCount(min=self.compactors, max=self.compactors)
        return with_group(self.settings, "compactors", compactors=count)

    @property
    def logical_cpus(self) -> int:
        """Number of CPUs to declare to Ray: enough to schedule all parts of every compactor.

        Ray only counts them. Concurrency is bounded by slots and the executors' cores, not by this
        number.
        """
        wanted = sum(settings.executors * settings.executor_cores for settings in self._most())
        return wanted + SPARE_CPUS

    @property
    def logical_bytes(self) -> int:
        """Memory to declare to Ray: the sum of all executors' requests, plus a margin.

        `require_memory` checks beforehand that the machine has enough memory.
        """
        asked = (settings.executors * _executor_bytes(settings) for settings in self._most())
        return sum(asked) + SPARE_BYTES

    @property
    def heap_bytes(self) -> list[int]:
        """Total heap size of driver and executors, for each compactor."""
        if not self.actors:
            return []
        return [
            parse_size_bytes(settings.driver_memory)
            + settings.executors * parse_size_bytes(settings.executor_memory)
            for settings in self._each()
        ]

    def task_memory(self, machine_bytes: int) -> TaskMemory | None:
        """Return the memory of a task that `auto` chooses; None: the settings give it.

        Args:
            machine_bytes: Memory of the machine.
        """
        return machine_task_memory(list(self._most()), machine_bytes)

    def with_task_memory(self, machine_bytes: int) -> "StackOptions":
        """Return the options with the memory of a task chosen for this start; see `task_memory`."""
        memory = self.task_memory(machine_bytes)
        return replace(self, settings=with_task_memory(self.settings, memory))

    def with_slots(self, slots: int | None) -> "StackOptions":
        """Return the options with this number of slots per compactor, if one is given."""
        if slots is None:
            return self
        return replace(self, settings=with_group(self.settings, "slots", slots=slots))

    def _most(self) -> Iterator[CompactorSettings]:
        """Yield the settings of the maximum number of compactors."""
        service = self.service
        for group in service.compactors_max():
            yield service.compactor_of(group)

    def _each(self) -> Iterator[CompactorSettings]:
        """Yield the settings of every compactor to start."""
        service = self.service
        for group, _ in service.compactor_names():
            yield service.compactor_of(group)


def _executor_bytes(settings: CompactorSettings) -> int:
    """Return the memory that an executor requests from Ray."""
    heap_bytes = parse_size_bytes(settings.executor_memory, "compactor.executor_memory")
    return executor_memory_bytes(heap_bytes, settings.executor_cores, task_bytes(settings))


def with_group(settings: Settings, what: str, **values: object) -> Settings:
    """Return the settings with changed values in the default or only group.

    Args:
        settings: The settings to change.
        what: Name of the changed setting, for the error message.
        values: New values of the group's settings.
    """
    name = settings.only_group(what)
    group = replace(settings.groups[name], **values)  # type: ignore[arg-type]  # by name
    return replace(settings, groups={**settings.groups, name: group})


# ---------------------------------------------------------------------------------- Table locations


REMEMBERED_MAX = 100


def with_locations(
    given: GatewaySettings,
    folder: StackFolder,
    private: Path,
    allow: Iterable[str],
    environ: Mapping[str, str],
) -> GatewaySettings:
    """Return the gateway's settings with the allowed table locations.

    Args:
        given: The operator's settings.
        folder: The stack's folder; it remembers the allowed locations.
        private: The stack's temporary folder for sockets and scratch files.
        allow: Folders, buckets and prefixes to allow for this start and later ones.
        environ: The user's environment, with the home and temporary folders.

    Raises:
        ConfigError: A location is invalid or belongs to the system.
    """
    # Imported here, so that commands that only read a stack's folder start fast.
    from neve.gateway.table_locations import locations_of

    make_private(folder.tables)
    named = [*_remembered_locations(folder), *map(absolute_location, allow)]
    own = [*_own_folders(environ)]
    usual = (
        []
        if given.locations
        else [location for location in own if not _is_hidden(location, environ)]
    )
    every = dict.fromkeys((*given.locations, *usual, *named, str(folder.tables)))
    closed = (*given.private_folders, str(folder.path), str(private))
    shared = tuple(dict.fromkeys((*given.shared_folders, *own)))
    settings = replace(given, locations=tuple(every), private_folders=closed, shared_folders=shared)
    locations_of(settings)
    kept = [fromkey for fromkey in dict.fromkeys((*named, *usual)) if fromkey in every]
    write_secret(folder.locations_file, json.dumps(kept[-REMEMBERED_MAX:]))
    return settings


def absolute_location(written: str) -> str:
    """Return a location in absolute form; relative paths start at the working directory."""
    return written if "://" in written else os.path.abspath(os.path.expanduser(written))


def _own_folders(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the home, working and temporary folders of the user, except system folders."""
    try:
        working = os.getcwd()
    except OSError:  # The working directory has been removed.
        working = ""
    temporary = environ.get("TMPDIR") or tempfile.gettempdir()
    for path in (environ.get("HOME", ""), working, temporary):
        if path.strip("/") and not is_system_path(os.path.realpath(path)):
            yield os.path.realpath(path)


def _is_hidden(path: str, environ: Mapping[str, str]) -> bool:
    """Return whether a folder is inside a hidden folder of the user's home."""
    home = os.path.realpath(environ.get("HOME") or "/")
    inside = path.removeprefix(f"{home.rstrip('/')}/")
    return inside != path and any(part.startswith(".") for part in inside.split("/"))


def _remembered_locations(folder: StackFolder) -> list[str]:
    try:
        listed = json.loads(folder.locations_file.read_text("utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder.locations_file} is not readable: {error}") from None
    return [str(location) for location in listed]
