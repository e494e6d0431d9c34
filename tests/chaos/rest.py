"""The end of a run: the system comes to rest, and everything is as the journal says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil
import redis

from common.metadata.codec.table import LAST_SEGMENT
from common.parquet.location import open_location
from neve.client import Client
from neve.client.errors import UnavailableError
from neve.local.processes import MARK_VARIABLE, processes_of_stack
from tests.chaos.batches import KINDS
from tests.chaos.journal import Journal, replayed
from tests.chaos.load import answered
from tests.chaos.story import Story
from tests.chaos.wishes import User
from tests.support.living_folder import stored_below
from tests.support.patience import PATIENCE_S, SERVICE_S
from tests.support.readers import check_table
from tests.support.stack import COMPACTORS, Service

POLL_S = 0.2
HISTORY_MAX = 10_000
SWEPT = {"orphaned"}
"""What is found until a sweep: whoever dies cannot take its outputs away."""
LEFTOVERS = ("running", "selection", "waiting", "operation")


class Rest:
    """What must come true once nothing is hurt any more."""

    def __init__(self, story: Story, journal: Journal, service: Service, client: Client) -> None:
        self._story = story
        self._journal = journal
        self._service = service
        self._client = client

    def come(self, user: User) -> float:
        """Wait for rest, and return how long it took in seconds; what is not at rest has failed."""
        began_s = time.monotonic()
        self._until("compactors that beat", self._beats, SERVICE_S)
        self._until("end of all requests", user.finished, SERVICE_S)
        self._until("flush of all buffered rows", self._is_flushed, SERVICE_S)
        for kind in KINDS:
            self._until(f"rest of {kind.name}", lambda k=kind: self._rests(k.name), SERVICE_S)
        return time.monotonic() - began_s

    def check_rows(self) -> None:
        """Hold one more scan of each table against the file of the journal."""
        truths, moment = replayed(self._journal.path, KINDS)
        for kind in KINDS:
            began = self._journal.moment()
            found = answered(self._story, "scan", lambda k=kind: self._client.scan(k.name))
            # Once by what earlier scans have shown, once by the file alone.
            problems = self._journal.check(kind.name, found, began)
            problems += truths[kind.name].check(found, moment, moment + 1)
            if unanswered := truths[kind.name].unanswered():
                problems.append(f"{kind.name}: batches {unanswered} were never acknowledged")
            self._story.count("rows at the end", found.num_rows)
            for problem in problems:
                self._story.fail(f"at rest: {problem}")

    def check_metadata(self) -> None:
        """Nothing is left in the store of what was tried; fsck finds nothing but what is swept."""
        client, story = self._client, self._story
        if jobs := [*client.jobs(), *client.queue()]:
            story.fail(f"at rest: jobs run or wait: {jobs}")
        with redis.Redis.from_url(self._service.stack.redis_url) as store:
            for what in LEFTOVERS:
                if left := list(store.scan_iter(f"neve:*:tablet:*:{what}", 1000)):
                    story.fail(f"at rest: left in the store: {left}")
        for kind in KINDS:
            story.count(f"tablets of {kind.name} at the end", len(client.tablets(kind.name)))
            self._check(kind.name, SWEPT, deep=True)
            self._check_readers(kind.name)
            self._count_commits(kind.name)

    def check_storage(self, folder: Path, *, patiently: bool) -> float:
        """After a sweep nothing is stored but the table's files; return how long that took.

        Args:
            folder: Holds the tables' locations.
            patiently: Wait for the collector, which waits for pins of readers that died;
                else what it knows about may still be there.
        """
        began_s = time.monotonic()
        for kind in KINDS:
            location = folder / kind.name
            self._until(
                f"clean storage of {kind.name}",
                lambda n=kind.name, at=location: not self._extra(n, at, patiently=patiently),
                SERVICE_S,
            )
            if missing := self._listed(kind.name) - stored_below(location):
                self._story.fail(f"at rest: {kind.name} lists files that are not there: {missing}")
            self._check(kind.name, set(), deep=False)
        return time.monotonic() - began_s

    def _check_readers(self, table: str) -> None:
        """Fail if one of all readers, or a rule of one, misses rows of the table's files."""
        location = open_location(self._client.describe(table).location)
        try:
            check_table(self._client, table, location)
        except AssertionError as error:
            self._story.fail(f"files of {table}: {error}")

    def _check(self, table: str, tolerated: set[str], *, deep: bool) -> None:
        """Fail for every finding that is still there after a while: collectors are at work."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            report = answered(self._story, "fsck", lambda: self._client.fsck(table, deep=deep))
            found = [finding for finding in report.findings if finding.code not in tolerated]
            if not found or time.monotonic() > end_s:
                break
            time.sleep(POLL_S)
        for each in found:
            where = each.path or each.tablet
            self._story.fail(f"fsck of {table}: {each.code}: {each.sentence} ({where})")

    def _extra(self, table: str, location: Path, *, patiently: bool) -> set[str]:
        """Sweep, and return what is stored besides the table's files."""
        # Young files are left alone by a sweep, so there may have to be another.
        self._client.gc(table, delete=True)
        extra = stored_below(location) - self._listed(table)
        if extra and not patiently:
            table_id = self._client.describe(table).id
            with redis.Redis.from_url(self._service.stack.redis_url) as store:
                extra -= {path.decode() for path in store.hgetall(f"neve:{{{table_id}}}:garbage")}
        return extra

    def _listed(self, table: str) -> set[str]:
        return {file.path for file in self._client.files(table)}

    def _rests(self, table: str) -> bool:
        plan = self._client.plan(table)
        if plan.jobs or plan.running:
            return False
        return not any(tablet.operation for tablet in self._client.tablets(table))

    def _is_flushed(self) -> bool:
        """Return whether no row is buffered; count the segments that were flushed."""
        with redis.Redis.from_url(self._service.stack.redis_url) as store:
            if any(store.scan_iter("neve:*:rows:*", 1000)):
                return False
            buffers = [store.hgetall(key) for key in store.scan_iter("neve:*:rows", 1000)]
        segments = sum(int(buffer.get(LAST_SEGMENT.encode(), 0)) for buffer in buffers)
        self._story.count("segments flushed", segments)
        return True

    def _beats(self) -> bool:
        wanted = set(COMPACTORS[: self._service.compactors])
        return {compactor.compactor for compactor in self._client.compactors()} == wanted

    def _count_commits(self, table: str) -> None:
        history = self._client.history(table, count=HISTORY_MAX)
        for each in reversed(history):
            self._story.tell("attempt", table=table, **asdict(each))
        for end, count in Counter(each.end for each in history).items():
            self._story.count(f"attempts {end}", count)
        inputs = Counter(p for each in history if each.end == "committed" for p in each.inputs)
        if twice := [path for path, times in inputs.items() if times > 1]:
            self._story.fail(f"at rest: {table}: inputs of two commits: {twice}")

    def _until(self, what: str, true: Callable[[], bool], within_s: float) -> None:
        end_s = time.monotonic() + within_s
        error: Exception | None = None
        while time.monotonic() < end_s:
            try:
                if true():
                    return
            except UnavailableError as said:
                error = said
            time.sleep(POLL_S)
        self._story.fail(f"no {what} within {within_s:.0f} s ({error or 'the answer is no'})")


def check_nobody_is_left(story: Story, service: Service) -> None:
    """No process of a stack that was ended lives."""
    state = service.stack.state
    left = [*processes_of_stack(state.mark, state.processes), *_marked(state.mark)]
    if left:
        story.fail(f"after down: processes are left: {left}")


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK_VARIABLE) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
