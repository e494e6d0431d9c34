"""One run: a stack, load, faults, rest, checks. A story is written of it.

journal.jsonl   what was given and asked, forced to disk
story.jsonl     what happened when
result.json     what it came to
failed.txt      if it failed: why, and what everybody said
"""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from common.control_settings import IngestSettings
from common.settings import StoreSettings
from neve.client import Client
from neve.local import StackOptions
from neve.local.servers import AppendSync
from tests.chaos.batches import KINDS
from tests.chaos.disk import Disk, has_own_mounts
from tests.chaos.draw import draw
from tests.chaos.harm import Harmer
from tests.chaos.journal import Journal
from tests.chaos.load import Reader, Writer, connect
from tests.chaos.recoverer import Recoverer
from tests.chaos.rest import Rest, check_nobody_is_left
from tests.chaos.story import Story
from tests.chaos.wishes import User
from tests.support.installed_stack import InstalledStack
from tests.support.patience import SERVICE_S
from tests.support.stack import COMPACTORS, SETTINGS, Service

LOOK_S = 1.0
CHAOS_SETTINGS = replace(
    SETTINGS,
    # Redis frozen is given up while it is frozen.
    store=StoreSettings(timeout_s=3.0),
    # Who dies often is no reason to give files up: they are not bad.
    coordinator=replace(
        SETTINGS.coordinator,
        quarantine_failures=1000,
        backoff_max_s=3.0,
        garbage_grace_s=3.0,
        generation_interval_s=2.0,
    ),
    compactor=replace(SETTINGS.compactor, attempt_stall_s=60.0),
    # Buffered rows wait long enough to meet faults, and are flushed many times in a run.
    ingest=IngestSettings(flush_age_max_s=5.0),
)


Watch = Callable[[Story, Harmer], None]


def _unwatched(story: Story, harmer: Harmer) -> None:
    """Show nobody anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What run is wanted."""

    seed: int
    sync: AppendSync
    """With `everysec` Redis is not killed: it may lose what it has acknowledged."""
    faults_max: int
    length_s: float
    """No fault begins later."""
    compactors: int = len(COMPACTORS)
    patiently: bool = False
    """Wait until storage holds nothing but the tables' files, and no garbage either."""
    watch: Watch = _unwatched
    """Called every second while there are faults."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What a run came to."""

    seed: int
    sync: str
    numbers: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    faults: int = 0
    length_s: float = 0.0
    rest_s: float = 0.0
    clean_s: float = 0.0


def run(folder: Path, wanted: Wanted, hear: Callable[[str], None]) -> Result:
    """Do one run, write its files, and return what it came to.

    Args:
        folder: Is made; everything of the run goes there.
        wanted: Which run.
        hear: Is told what a person wants to read.
    """
    folder.mkdir(parents=True)
    story = Story(folder / "story.jsonl", hear)
    journal = Journal(folder / "journal.jsonl", KINDS)
    result = Result(seed=wanted.seed, sync=str(wanted.sync))
    story.say(f"seed {wanted.seed}, appendfsync {wanted.sync}: starting the stack")
    home = folder / "stack"
    home.mkdir()
    options = StackOptions(
        compactors=wanted.compactors,
        redis_appendfsync=wanted.sync,
        settings=CHAOS_SETTINGS,
        allow=(str(home),),
    )
    disk = Disk(home) if has_own_mounts() else None
    up = partial(InstalledStack.start, home=home, name="chaos", options=options)
    try:
        with up() as stack:
            service = Service(stack, home, compactors=wanted.compactors)
            harmer = Harmer(story, service, up, disk)
            _tried(story, folder, service, lambda: _lived(story, journal, harmer, wanted, result))
        check_nobody_is_left(story, service)
    except BaseException as error:
        # Whatever ends a run early, it has proven nothing.
        story.fail(f"{type(error).__name__}: {error}")
        if not isinstance(error, Exception):
            raise
    finally:
        if disk is not None:
            _leave(disk, folder, failed=bool(story.failures))
        journal.close()
        result.numbers, result.failures = dict(sorted(story.numbers.items())), story.failures
        result.length_s = round(story.age_s(), 1)
        (folder / "result.json").write_text(json.dumps(asdict(result), indent=1), "utf-8")
    return result


def _tried(story: Story, folder: Path, service: Service, live: Callable[[], None]) -> None:
    """Live, and describe the service while it runs if that has failed."""
    try:
        live()
    except Exception as error:  # told with everything that helps to understand it
        story.fail(f"{type(error).__name__}: {error}")
    if story.failures:
        said = [*story.failures, service.describe()]
        (folder / "failed.txt").write_text("\n".join(said), "utf-8")


def _leave(disk: Disk, folder: Path, *, failed: bool) -> None:
    """Unmount the disk; of a run that has failed, what is on it is kept."""
    if failed:
        shutil.copytree(disk.folder, folder / "kept", symlinks=True)
    disk.unmount()


def _lived(story: Story, journal: Journal, harmer: Harmer, wanted: Wanted, result: Result) -> None:
    """Load, hurt, let come to rest, check."""
    service = harmer.service
    clients = (connect(service.stack.gateway_url, service.stack.token) for _ in itertools.count())
    _create_tables(next(clients), service.folder)
    user = User(story, journal, next(clients), KINDS)
    threads = [story.thread("user", lambda: user.run(wanted.seed))]
    threads.append(story.thread("reader", Reader(story, journal, next(clients), KINDS).run))
    for kind in KINDS:
        writer = Writer(story, journal, next(clients), kind, service.folder / kind.name)
        threads.append(story.thread(f"writer of {kind.name}", lambda w=writer: w.run(wanted.seed)))

    recoverer = Recoverer(story, next(clients), service)
    threads.append(story.thread("recoverer", lambda: recoverer.run(wanted.seed)))
    until_s = story.age_s() + wanted.length_s
    faults = draw(
        wanted.seed,
        redis_dies=wanted.sync is AppendSync.ALWAYS,
        disk_fills=harmer.disk is not None,
    )
    harm = story.thread("faults", lambda: harmer.run(faults, wanted.faults_max, until_s))
    while harm.is_alive():
        wanted.watch(story, harmer)
        harm.join(LOOK_S)
    result.faults = harmer.faults
    story.over.set()
    story.say("no more faults; waiting for rest")
    rest = Rest(story, journal, service, next(clients))
    _come_to_rest(story, threads, rest, user, result)
    if not story.failures:
        rest.check_rows()
        rest.check_metadata()
        result.clean_s = round(rest.check_storage(service.folder, patiently=wanted.patiently), 1)
        rest.check_rows()


def _create_tables(client: Client, folder: Path) -> None:
    for kind in KINDS:
        location = folder / kind.name
        location.mkdir()
        more = {"schema": kind.schema, "settings": kind.settings, **kind.columns}
        client.create_table(kind.name, location.as_uri(), **more)


def _come_to_rest(
    story: Story, threads: list[threading.Thread], rest: Rest, user: User, result: Result
) -> None:
    began_s = time.monotonic()
    for thread in threads:
        thread.join(SERVICE_S)
        if thread.is_alive():
            story.fail(f"{thread.name} is still waiting for an answer")
    if not story.failures:
        rest.come(user)
    result.rest_s = round(time.monotonic() - began_s, 1)
    story.say(f"at rest after {result.rest_s:.0f} s")
