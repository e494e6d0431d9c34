"""The messages between the compactor and its driver process: settings, orders and notices.

The settings are sent once, before anything else. Orders go to the driver process, notices come
back. Every message is pickled and framed by its length.
"""

import asyncio
import os
import pickle
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from common.compactor_needs import task_bytes, task_limit_bytes
from common.errors import ConfigError, RequestError
from common.settings import CompactorSettings
from common.units import parse_size_bytes
from compactor.core import RewriteProgress
from compactor.rewrite.memory_budget import TASK_BYTES

REWRITE_FUNCTION = "compactor.rewrite.attempt:rewrite"
LIGHT_DISTUTILS = {"SETUPTOOLS_USE_DISTUTILS": "stdlib"} if sys.version_info < (3, 12) else {}
"""Environment of processes that use PySpark, which compares versions with `distutils` when Arrow is
first used. With Python's own one a process does not load setuptools (0.2 s). Python 3.12 has
none."""


class EngineKind(StrEnum):
    """Where Spark's tasks run."""

    RAYDP = "raydp"
    """In executors that RayDP starts as Ray actors."""
    LOCAL = "local"
    """In the driver's own JVM: no Ray is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """One Spark application. Sent once, before anything else."""

    name: str
    """Name of the compactor, also used for the application and the Ray namespace."""
    engine: EngineKind = EngineKind.RAYDP
    ray_address: str = ""
    node_ip: str = "127.0.0.1"
    """Address of the compactor's node, by which Ray knows it."""
    session_folder: str = ""
    """Folder of Ray's session on the node, where executors look for Ray's native library."""
    node_resource: str = ""
    """A Ray resource of the compactor's node only; it pins executors."""
    executors: int = 1
    executor_resource: str = ""
    """A Ray resource; each executor takes 1 unit on any node; empty: `node_resource` is used."""
    scratch: str = ""
    """Folder for temporary files of rewrites; empty: the system's folder."""
    page_cache: str = "keep"
    """`drop`: the pages of a job's files are released after the job."""
    secret_file: str = ""
    """File of JVM options with the shared secret, on every node; empty: one is generated."""
    executor_cores: int = 2
    executor_memory: str = "1g"
    driver_memory: str = "512m"
    task_bytes: int = TASK_BYTES
    """Memory for the Python process of a task."""
    task_limit_bytes: int = 0
    """Memory above which a task's process is ended; 0: no limit."""
    start_timeout_s: float = 300.0
    log_file: str = os.devnull
    executor_logs: str = ""
    """Folder for the log files of executors; empty: Ray's folder."""
    executor_log_bytes_max: int = 16 * 1024**2
    work: str = REWRITE_FUNCTION
    """`module:function`, called with Spark session, payload, progress and cancelled."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings; they take precedence."""
    lake_access: str = ""
    """How lake tables are reached, as `packed_access` returns it."""


def driver_settings(
    settings: CompactorSettings,
    *,
    name: str,
    ray_address: str = "",
    node_ip: str = "127.0.0.1",
    session_folder: str = "",
    node_resource: str = "",
    log_file: str = os.devnull,
    executor_logs: str = "",
    executor_log_bytes_max: int = 16 * 1024**2,
    lake_access: str = "",
) -> DriverSettings:
    """Return a driver's settings from the compactor's.

    Args:
        settings: The section `compactor` of the settings.
        name: Name of the compactor.
        ray_address: The cluster of its actor.
        node_ip: Address of the actor's node, by which Ray knows it.
        session_folder: Folder of Ray's session on the node.
        node_resource: A resource of the actor's node.
        log_file: File for the driver's output.
        executor_logs: Folder for the output of executors; empty: Ray's folder.
        executor_log_bytes_max: Largest size of each of those files.
        lake_access: How lake tables are reached, as `packed_access` returns it.

    Raises:
        ConfigError: A size is malformed.
    """
    return DriverSettings(
        name=name,
        engine=EngineKind(settings.engine),
        ray_address=ray_address,
        node_ip=node_ip,
        session_folder=session_folder,
        node_resource=node_resource,
        executors=settings.executors,
        executor_resource=settings.executor_resource,
        scratch=str(Path(settings.scratch) / name) if settings.scratch else "",
        page_cache=settings.page_cache,
        secret_file=settings.spark_secret_file,
        executor_cores=settings.executor_cores,
        executor_memory=_heap(settings.executor_memory, "executor_memory"),
        driver_memory=_heap(settings.driver_memory, "driver_memory"),
        task_bytes=task_bytes(settings),
        task_limit_bytes=task_limit_bytes(settings),
        start_timeout_s=settings.start_timeout_s,
        log_file=log_file,
        executor_logs=executor_logs,
        executor_log_bytes_max=executor_log_bytes_max,
        lake_access=lake_access,
    )


def _heap(text: str, name: str) -> str:
    """Return a heap size in a form that every JVM accepts, whatever its unit."""
    return f"{_size_bytes(text, name) >> 20}m"


def _size_bytes(text: str, name: str) -> int:
    try:
        return parse_size_bytes(text, f"compactor.{name}")
    except RequestError as error:
        raise ConfigError(str(error)) from error


# ----------------------------------------------------------------------------------------- Messages


FRAME_BYTES_MAX = 64 * 1024**2
"""An assignment of 100,000 files takes some 30 MB."""
_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Run:
    """Parent: run this work."""

    attempt: str
    payload: Any


@dataclass(frozen=True, slots=True)
class Cancel:
    """Parent: end this attempt."""

    attempt: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Parent: an attempt's limit in bytes/s from now on; None: no limit."""

    attempt: str
    bytes_s: float | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Parent: stop Spark and end."""


@dataclass(frozen=True, slots=True)
class Started:
    """Child: Spark is up."""

    application: str
    took_s: float
    jvm_pid: int


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Child: Spark has not started; the child ends."""

    cause: str


@dataclass(frozen=True, slots=True)
class LifeSign:
    """Child: its JVM has answered; it runs tasks of these attempts."""

    busy: frozenset[str]


@dataclass(frozen=True, slots=True)
class Progressed:
    """Child: the progress of an attempt."""

    attempt: str
    progress: RewriteProgress


@dataclass(frozen=True, slots=True)
class Done:
    """Child: an attempt's result."""

    attempt: str
    result: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """Child: an attempt failed; `error_class` is a name in `common.errors`."""

    attempt: str
    error_class: str
    cause: str


Order = Run | Cancel | Grant | Stop
Notice = Started | NotStarted | LifeSign | Progressed | Done | Failed


def frame(message: object) -> bytes:
    """Return a message in the form that the pipe carries.

    Raises:
        ValueError: It is larger than a frame may be.
    """
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(_checked_length(len(body))) + body


def receive(link: socket.socket) -> Any:
    """Return the next message of a blocking socket.

    Raises:
        EOFError: The other end is gone.
    """
    (length,) = _LENGTH.unpack(_read_exactly(link, _LENGTH.size))
    return pickle.loads(_read_exactly(link, _checked_length(length)))


async def read(stream: asyncio.StreamReader) -> Any:
    """Return the next message of a stream.

    Raises:
        EOFError: The other end is gone.
    """
    try:
        (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
        return pickle.loads(await stream.readexactly(_checked_length(length)))
    except ConnectionError as error:
        raise EOFError(str(error)) from error


def _read_exactly(link: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes."""
    parts = bytearray()
    while len(parts) < size:
        try:
            part = link.recv(min(size - len(parts), 1 << 20))
        except ConnectionError as error:
            raise EOFError(str(error)) from error
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _checked_length(length: int) -> int:
    """Return a length after a check of the bound."""
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"frame of {length} bytes, at most {FRAME_BYTES_MAX} are allowed")
    return length
