"""`neve doctor`: what keeps Névé from working here? Each check says what to do."""

import os
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from common.errors import CompactionError, ConfigError
from neve.cli import doctor_checks as checks
from neve.cli import render
from neve.cli.session import Session, plain, verb
from neve.client_connect import find_target
from neve.client_errors import NeveError, UnavailableError

Check = tuple[str, Callable[[], str]]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app, "doctor")(doctor)


def doctor(
    session: Session,
    location: Annotated[
        str | None, typer.Option(help="Also try to read, list, write and delete there.")
    ] = None,
    compactors: Annotated[int, typer.Option(help="How many are to run on this machine.")] = 1,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="With --location: longest wait in seconds.")
    ] = checks.STORAGE_WAIT_S,
) -> None:
    """Check this machine, the service, and perhaps a storage location."""
    wanted = [*_checks(session, compactors)]
    if location is not None:
        wanted.append(("storage", lambda: checks.storage(location, timeout)))
    found = [_run(*check) for check in wanted]
    session.show(found, lambda: _rendered(found))
    if any(each.state == checks.FAILED for each in found):
        raise ConfigError("something is not as it should be; the lines above say what to do")


def _checks(session: Session, compactors: int) -> Iterator[Check]:
    yield "python", checks.python
    yield "java", lambda: checks.java(os.environ)
    yield "redis server", lambda: checks.redis_server(os.environ)
    yield "ray", checks.ray_version
    yield "memory", lambda: checks.memory(compactors)
    yield "shared memory", checks.shared_memory
    yield "ports", checks.ports
    yield "service", lambda: _service(session)
    yield "groups", lambda: _groups(session)
    yield "store", lambda: _store(session)


def _service(session: Session) -> str:
    """Ask the service that is meant, if there is one."""
    try:
        find_target(session.url, stack=session.stack)
    except UnavailableError as error:
        raise checks.SkippedError(str(error)) from error
    status = session.client.status()
    return f"{session.client.url} answers, {len(status.compactors)} compactors"


def _groups(session: Session) -> str:
    """Tell of compaction groups without compactors; jobs that wait for one are a failure."""
    try:
        status = session.client.status()
    except NeveError as error:
        raise checks.SkippedError("no service answers") from error
    unserved = [each.group for each in status.groups if not each.compactors and each.queued]
    if unserved:
        raise ConfigError("; ".join(status.warnings))
    return "; ".join(status.warnings) or f"{len(status.groups)} with compactors"


def _store(session: Session) -> str:
    """Tell what the service knows of its Redis: memory, eviction, durability, replicas."""
    try:
        status = session.client.status()
    except NeveError as error:
        raise checks.SkippedError("no service answers") from error
    if status.store_warnings:
        raise checks.WarningError("; ".join(status.store_warnings))
    return "has room, keeps everything, and writes it down"


def _run(name: str, check: Callable[[], str]) -> checks.Finding:
    try:
        return checks.Finding(check=name, state=checks.OK, found=check())
    except checks.SkippedError as error:
        return checks.Finding(check=name, state=checks.SKIPPED, found=str(error))
    except checks.WarningError as error:
        return checks.Finding(check=name, state=checks.WARNING, found=str(error))
    except (CompactionError, NeveError) as error:
        return checks.Finding(check=name, state=checks.FAILED, found=str(error))


def _rendered(found: list[checks.Finding]) -> RenderableType:
    return render.grid(
        [("CHECK", ""), ("STATE", ""), ("FOUND", "")],
        [tuple(plain(each).values()) for each in found],
    )
