"""What a driver process is told when it starts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.errors import ConfigError, RequestError
from common.settings import CompactorSettings
from common.units import parse_size_bytes
from compactor.rewrite.memory import TASK_BYTES

WORK = "compactor.rewrite.engine:rewrite"


class Engines(StrEnum):
    """Where Spark's tasks run."""

    RAYDP = "raydp"
    """In executors that RayDP starts as Ray actors."""
    LOCAL = "local"
    """In the driver's own JVM: no Ray is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """One Spark application. Crosses the pipe once, before anything else."""

    name: str
    """The compactor's: names application and Ray namespace."""
    engine: Engines = Engines.RAYDP
    ray_address: str = ""
    node_resource: str = ""
    """A Ray resource that only the compactor's node has: it pins app master and executors."""
    executors: int = 1
    executor_cores: int = 2
    executor_memory: str = "1g"
    driver_memory: str = "512m"
    task_bytes: int = TASK_BYTES
    """Memory that the Python process of a task may have."""
    task_limit_bytes: int = 0
    """One with more is ended; 0: none is."""
    start_timeout_s: float = 300.0
    log_file: str = os.devnull
    executor_logs: str = ""
    """Folder for the log files of executors; empty: where Ray keeps its own."""
    executor_log_bytes_max: int = 16 * 1024**2
    work: str = WORK
    """`module:function`, called with Spark session, payload, progress and cancelled."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings; they win."""


def driver_settings(
    settings: CompactorSettings,
    *,
    name: str,
    ray_address: str = "",
    node_resource: str = "",
    log_file: str = os.devnull,
    executor_logs: str = "",
    executor_log_bytes_max: int = 16 * 1024**2,
) -> DriverSettings:
    """Return a driver's settings from the compactor's.

    Args:
        settings: The compactor's section.
        name: The compactor's.
        ray_address: The cluster that its actor is part of.
        node_resource: A resource of the actor's node.
        log_file: Where the driver's output goes.
        executor_logs: Folder for what executors write; empty: where Ray keeps its own.
        executor_log_bytes_max: How large each of those files may become.

    Raises:
        ConfigError: A size is none.
    """
    return DriverSettings(
        name=name,
        engine=Engines(settings.engine),
        ray_address=ray_address,
        node_resource=node_resource,
        executors=settings.executors,
        executor_cores=settings.executor_cores,
        executor_memory=_heap(settings.executor_memory, "executor_memory"),
        driver_memory=_heap(settings.driver_memory, "driver_memory"),
        task_bytes=_size_bytes(settings.task_memory, "task_memory"),
        task_limit_bytes=_size_bytes(settings.task_memory_max, "task_memory_max"),
        start_timeout_s=settings.start_timeout_s,
        log_file=log_file,
        executor_logs=executor_logs,
        executor_log_bytes_max=executor_log_bytes_max,
    )


def _heap(text: str, name: str) -> str:
    """Return a heap's size in the form that every JVM reads, whichever unit it came in."""
    return f"{_size_bytes(text, name) >> 20}m"


def _size_bytes(text: str, name: str) -> int:
    try:
        return parse_size_bytes(text, f"compactor.{name}")
    except RequestError as error:
        raise ConfigError(str(error)) from error
