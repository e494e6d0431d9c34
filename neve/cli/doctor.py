"""`neve doctor`: find what keeps Névé from working on this machine.

Each check returns its result or raises an error that says what to do.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from common.errors import CompactionError, ConfigError
from common.runtime import SystemClock
from common.units import format_count, parse_duration_s
from neve import api
from neve.cli import render
from neve.cli.session import Panel, Session, to_dictionaries, verb
from neve.client.connect import find_target
from neve.client.errors import NeveError, UnavailableError

if TYPE_CHECKING:
    from neve.serve.trial import Tried

# ------------------------------------------------------------------------------------------- Checks


OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
PYTHON_MIN, PYTHON_END = (3, 11), (3, 13)
SHARED_MEMORY_BYTES = 200 * 1024**2
GATEWAY_PORT = 8642
STORAGE_WAIT_S = 30.0
CLUSTER_VARIABLE = "RAY_ADDRESS"
DAY_S = 86_400
"""Environment variable that names the Ray cluster; set where `neve serve` runs."""


class SkippedError(CompactionError):
    """The check does not apply here."""


class WarningError(CompactionError):
    """Névé works, but something should be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    check: str
    state: str
    found: str


def check_python() -> str:
    """Check the Python version of this process."""
    if not PYTHON_MIN <= sys.version_info[:2] < PYTHON_END:
        raise ConfigError(
            f"Python {platform.python_version()} is not supported, expected 3.11 or 3.12"
        )
    return platform.python_version()


def check_java(environ: Mapping[str, str]) -> str:
    """Check for a Java version that Spark supports."""
    _needs("psutil")
    from neve.local.machine import find_java

    try:
        java = find_java(environ)
    except ConfigError as error:
        if environ.get(CLUSTER_VARIABLE):
            raise WarningError(
                f"{error}; compactors need it on their nodes, even if this machine does not"
            ) from error
        raise
    return f"version {java.version}{_age(java.released)} in {java.home}"


def _age(released: str) -> str:
    """Return the date and age of a release, or an empty text if the date is missing."""
    if not released:
        return ""
    since_s = SystemClock().now_s() - datetime.fromisoformat(f"{released}T00:00Z").timestamp()
    return f" of {released} ({format_count(int(since_s // DAY_S), 'day')} old)"


def check_redis_server(environ: Mapping[str, str], *, wheels: bool = True) -> str:
    """Check for a Redis server that a local stack can start."""
    _needs("psutil")
    from neve.local.machine import find_redis_server

    server = find_redis_server(environ, wheels=wheels)
    if server.missing_fixes:
        raise WarningError(f"{server}: {server.missing_fixes}")
    return str(server)


def check_ray() -> str:
    """Check that Ray, RayDP and Spark are installed, without importing them."""
    _needs("ray")
    try:
        return ", ".join(f"{name} {version(name)}" for name in ("ray", "raydp", "pyspark"))
    except PackageNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: install `neve[server]`") from error


def check_compactor_memory(compactors: int) -> str:
    """Check that this number of compactors fits into memory."""
    _needs("psutil")
    from common.units import format_bytes
    from neve.local import StackOptions
    from neve.local.machine import free_memory_bytes, machine_bytes, require_memory
    from neve.service_settings import load_service_settings

    options = StackOptions(compactors=compactors, settings=load_service_settings(None))
    require_memory(options.heap_bytes)
    chosen = options.task_memory(machine_bytes())
    return (
        f"{format_bytes(free_memory_bytes())} free, enough for "
        f"{format_count(compactors, 'compactor')}{f'; {chosen.text}' if chosen else ''}"
    )


def check_shared_memory() -> str:
    """Check where Ray's object store can be placed."""
    _needs("psutil")
    import tempfile
    from pathlib import Path

    from neve.local.machine import object_folder

    chosen = object_folder(SHARED_MEMORY_BYTES, Path(tempfile.gettempdir()))
    return (
        "/dev/shm is large enough"
        if chosen is None
        else f"/dev/shm is small; Ray will use {chosen}"
    )


def check_gateway_port() -> str:
    """Report whether the gateway's default port is free. A stack uses another port if not."""
    _needs("psutil")
    from neve.local.machine import is_free

    if is_free(GATEWAY_PORT):
        return f"port {GATEWAY_PORT}, the default of the gateway, is free"
    return f"port {GATEWAY_PORT} is in use; the gateway will use another port"


def check_storage(location: str, wait_s: float = STORAGE_WAIT_S) -> str:
    """Write, list, read and delete a small file in a location.

    Args:
        location: The location to test.
        wait_s: Maximum time for the whole check.
    """
    # Imported here so that verbs of the client start without loading the service.
    from neve.gateway.table_locations import normal_location

    uri = normal_location(location)
    search = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "neve.child_process", "location", uri]
    try:
        done = subprocess.run(
            command, env=search, capture_output=True, text=True, timeout=wait_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{location}: the storage did not answer within {wait_s:g} s; check its "
            "address, the network and the credentials, or allow more time with --timeout"
        ) from None
    if done.returncode:
        raise ConfigError(
            done.stderr.strip() or f"{location}: the storage check ended without a result"
        )
    return done.stdout


def _needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise SkippedError("only the client is installed")


# ----------------------------------------------------------------------------------------- The verb


Check = tuple[str, Callable[[], str]]


@verb("doctor", Panel.RUN, "neve doctor --location s3://lake/users")
def doctor(
    session: Session,
    location: Annotated[
        str | None,
        typer.Option(help="Location to test: write, list, read and delete a file there."),
    ] = None,
    compactors: Annotated[
        int, typer.Option(help="Number of compactors to run on this machine.")
    ] = 1,
    timeout: Annotated[
        str, typer.Option(help="With --location: maximum time to wait, such as 30s.")
    ] = f"{STORAGE_WAIT_S:g}s",
) -> None:
    """Check this machine, the service and, with --location, a storage location."""
    wait_s = parse_duration_s(timeout, "--timeout")
    checks = [*_checks(session, compactors)]
    if location is not None:
        checks.append(("storage", lambda: check_storage(location, wait_s)))
    results = [_run(*check) for check in checks]
    session.show(results, _render_results)
    if any(result.state == FAILED for result in results):
        raise ConfigError("some checks failed; the lines above say what to do")


def _checks(session: Session, compactors: int) -> Iterator[Check]:
    yield "python", check_python
    yield "java", lambda: check_java(os.environ)
    yield "ray", check_ray
    # With a named cluster, no stack runs on this machine, and the checks for one could fail in a
    # small pod.
    if not os.environ.get(CLUSTER_VARIABLE):
        yield "redis server", lambda: check_redis_server(os.environ)
        yield "memory", lambda: check_compactor_memory(compactors)
        yield "shared memory", check_shared_memory
        yield "ports", check_gateway_port
    for check in try_cluster():
        yield check.what, partial(_as_check, check)
    yield "service", lambda: _service(session)
    yield "groups", lambda: _groups(session)
    yield "store", lambda: _store(session)
    yield "tablets", lambda: _tablets(session)


def try_cluster() -> tuple[Tried, ...]:
    """Run the checks of what `neve serve` needs; return nothing if no Ray cluster is named."""
    if not os.environ.get("RAY_ADDRESS") or importlib.util.find_spec("ray") is None:
        return ()
    # Imported here so that verbs of the client start without loading the service.
    from neve.serve import trial

    return trial.try_cluster()


def _as_check(tried: Tried) -> str:
    if tried.refused:
        raise ConfigError(tried.found)
    if tried.odd:
        raise WarningError(tried.found)
    return tried.found


def _service(session: Session) -> str:
    """Check the configured service, if there is one."""
    try:
        faults = find_target(session.url, stack=session.stack).faults
    except UnavailableError as error:
        raise SkippedError(str(error)) from error
    try:
        status = session.client.status()
    except UnavailableError as error:
        raise ConfigError("; ".join((str(error), *faults))) from error
    answer = f"{session.client.url} answers, {format_count(len(status.compactors), 'compactor')}"
    if faults:
        raise WarningError("; ".join((answer, *faults)))
    return answer


def _groups(session: Session) -> str:
    """Report groups without compactors. It is a failure if jobs wait for such a group."""
    try:
        status = session.client.status()
    except NeveError as error:
        raise SkippedError("no service answers") from error
    waiting = [group for group in status.groups if not group.compactors and group.queued]
    stuck = [group for group in waiting if not _gets_compactors(group)]
    scalings = [
        (group.group, group.scaling) for group in status.groups if group.scaling is not None
    ]
    blocked = [
        f"group {group}: {scaling.blocked}" for group, scaling in scalings if scaling.blocked
    ]
    missing = [
        f"group {group}: {scaling.missing}" for group, scaling in scalings if scaling.missing
    ]
    unobtainable = any(scaling.unobtainable for _, scaling in scalings)
    failing = any(compactor.start_problem for compactor in status.compactors)
    problems = "; ".join((*blocked, *missing, *status.warnings))
    if stuck:
        raise ConfigError(problems)
    if waiting or blocked or unobtainable or failing:
        raise WarningError(problems)
    return problems or f"{len(status.groups)} with compactors"


def _gets_compactors(group: api.Group) -> bool:
    """Return whether compactors of a group are starting without a problem."""
    scaling = group.scaling
    if scaling is None or scaling.blocked or scaling.unobtainable:
        return False
    return scaling.desired > 0


def _store(session: Session) -> str:
    """Report the memory, eviction, durability and replicas of the service's Redis."""
    try:
        status = session.client.status()
    except NeveError as error:
        raise SkippedError("no service answers") from error
    if status.store_warnings:
        raise WarningError("; ".join(status.store_warnings))
    return "has free memory, no eviction, and is durable"


def _tablets(session: Session) -> str:
    """Report quarantined tablets, which wait for an operator."""
    try:
        status = session.client.status()
    except NeveError as error:
        raise SkippedError("no service answers") from error
    if status.quarantined:
        raise ConfigError("; ".join(render.quarantine_texts(status)))
    return "no tablet is quarantined"


def _run(name: str, check: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(check=name, state=OK, found=check())
    except SkippedError as error:
        return CheckResult(check=name, state=SKIPPED, found=str(error))
    except WarningError as error:
        return CheckResult(check=name, state=WARNING, found=str(error))
    except (CompactionError, NeveError) as error:
        return CheckResult(check=name, state=FAILED, found=str(error))


def _render_results(results: list[CheckResult]) -> RenderableType:
    return render.grid(
        [("CHECK", ""), ("STATE", ""), ("FOUND", "")],
        [tuple(to_dictionaries(result).values()) for result in results],
    )
