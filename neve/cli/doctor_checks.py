"""The checks of `neve doctor`: each returns what it found, or raises what to do."""

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from common.errors import CompactionError, ConfigError

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
PYTHON_MIN, PYTHON_END = (3, 11), (3, 13)
SHARED_MEMORY_BYTES = 200 * 1024**2
GATEWAY_PORT = 8642
STORAGE_WAIT_S = 30.0


class SkippedError(CompactionError):
    """The check has no meaning here."""


class WarningError(CompactionError):
    """Névé works, but something ought to be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check came to."""

    check: str
    state: str
    found: str


def python() -> str:
    """Check the Python of this process."""
    if not PYTHON_MIN <= sys.version_info[:2] < PYTHON_END:
        raise ConfigError(
            f"Python {platform.python_version()} is not supported, wanted 3.11 or 3.12"
        )
    return platform.python_version()


def java(environ: Mapping[str, str]) -> str:
    """Check for a Java that Spark runs on."""
    _needs("psutil")
    from neve.local.find import find_java

    found = find_java(environ)
    return f"version {found.major} in {found.home}"


def redis_server(environ: Mapping[str, str], *, wheels: bool = True) -> str:
    """Check for a Redis server that a local stack can start."""
    _needs("psutil")
    from neve.local.find import find_redis_server

    found = find_redis_server(environ, wheels=wheels)
    if found.missing_fixes:
        raise WarningError(f"{found}: {found.missing_fixes}")
    return str(found)


def ray_version() -> str:
    """Check for Ray, RayDP and Spark, without loading them."""
    _needs("ray")
    try:
        return ", ".join(f"{name} {version(name)}" for name in ("ray", "raydp", "pyspark"))
    except PackageNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: install `neve[server]`") from error


def memory(compactors: int) -> str:
    """Check that so many compactors fit into memory."""
    _needs("psutil")
    from common.units import format_bytes
    from neve.local import StackOptions
    from neve.local.checks import check_memory, free_memory_bytes

    check_memory(StackOptions(compactors=compactors).heap_bytes)
    return f"{format_bytes(free_memory_bytes())} free, enough for {compactors} compactors"


def shared_memory() -> str:
    """Check where Ray's object store can go."""
    _needs("psutil")
    import tempfile
    from pathlib import Path

    from neve.local.checks import object_folder

    chosen = object_folder(SHARED_MEMORY_BYTES, Path(tempfile.gettempdir()))
    return "/dev/shm is large enough" if chosen is None else f"/dev/shm is small; {chosen} is used"


def ports() -> str:
    """Tell whether the gateway's usual port is free; a stack takes another one if not."""
    _needs("psutil")
    from neve.local.ports import is_free

    if is_free(GATEWAY_PORT):
        return f"{GATEWAY_PORT}, the usual one of the gateway, is free"
    return f"{GATEWAY_PORT} is in use; another one will be chosen for the gateway"


def storage(location: str, wait_s: float = STORAGE_WAIT_S) -> str:
    """Write, list, read and delete a small file in a location.

    Args:
        location: Where.
        wait_s: How long it may take.
    """
    # Here, so that the client's verbs start without the parts of a service.
    from neve.gateway.storage import normal_location

    uri = normal_location(location)
    search = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "neve.storage_trial", uri]
    try:
        done = subprocess.run(
            command, env=search, capture_output=True, text=True, timeout=wait_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{location}: its storage has not answered for {wait_s:g} s; check its address, the "
            "network and the credentials, or give it longer with --timeout"
        ) from None
    if done.returncode:
        raise ConfigError(done.stderr.strip() or f"{location}: the trial ended with no answer")
    return done.stdout


def _needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise SkippedError("only the client is installed here")
