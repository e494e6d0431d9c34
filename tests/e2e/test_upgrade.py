"""A service of an older release is replaced by this one under load: nothing is lost or repeated.

Both releases are installed from their wheels. The older one has started Redis, Ray, coordinator,
gateway and two compactors. `neve serve` of this release replaces coordinator and gateway while
rows are appended and while an older compactor is in the middle of a job; the older compactors end
their jobs for the new coordinator and are drained, and compactors of this release take over.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from common.wire import COORDINATOR_NAME, GATEWAY_NAME, compactor_actor_name
from neve import new_call_id
from neve.api import Job
from neve.client import Client
from neve.client.errors import UnavailableError
from neve.local import LocalStack
from tests.support.installed import Installation, has_commit, installation
from tests.support.ledger import LedgerTable, bag_rows, keyed_rows
from tests.support.module_origins import folders_of_actors
from tests.support.patience import SERVICE_S
from tests.support.redis_server import free_port
from tests.support.serving import TOKEN, Cluster
from tests.support.stack import SLOW, Service

OLDER = "61053eeb"
"""The release that is replaced: the newest commit of the release before this one."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not has_commit(OLDER), reason=f"the wheel of {OLDER} is built from Git: it needs history"
    ),
]

SETTINGS = """
[coordinator]
tick_s = 0.2
full_scan_interval_s = 5
garbage_grace_s = 5
collect_interval_s = 0.5
clock_skew_max_s = 0.1
[compactor]
slots = 1
executor_cores = 1
executor_memory = "512m"
driver_memory = "512m"
beat_interval_s = 0.5
take_wait_max_s = 5
[autoscaler]
grow_after_s = 1
[groups.default]
compactors = { min = 2, max = 2 }
[gateway]
locations = ["/"]
"""
NEW_SETTINGS = SETTINGS.replace("[coordinator]", "[coordinator]\ngeneration_interval_s = 0.8")
"""With one that the older release does not know."""
OLD_COMPACTORS = {"default-1", "default-2"}
START = (
    "import sys; from pathlib import Path; from neve.local import LocalStack, StackOptions;"
    " LocalStack.start(home=Path(sys.argv[1]), options=StackOptions(actors=False, compactors=4))"
)
ROWS = 200
APPENDS = 10
"""Appends of each writer in each phase, at least."""


class Writer(threading.Thread):
    """Appends to a table until it is stopped; repeats a call whose outcome it does not know."""

    def __init__(self, table: LedgerTable, *, keyed: bool) -> None:
        super().__init__(name=f"writer of {table.name}", daemon=True)
        self.table, self.keyed = table, keyed
        self.calls: list[tuple[str, pa.Table]] = []
        """Acknowledged."""
        self.sent = self.repeated = 0
        self.problem = ""
        self._stopped = threading.Event()

    def run(self) -> None:
        """Append one batch after the other; the ledger has what was acknowledged."""
        try:
            while not self._stopped.is_set():
                self.sent += 1
                rows, call = self._rows(self.sent), new_call_id()
                while not self._appended(rows, call):
                    self.repeated += 1
                self.calls.append((call, rows))
                self.table.note(rows)
                self._stopped.wait(0.2)
        except Exception as error:  # the test's thread raises it
            self.problem = f"{type(error).__name__}: {error}"

    def _appended(self, rows: pa.Table, call: str) -> bool:
        try:
            self.table.client.append(self.table.name, rows, call=call)
        except UnavailableError:
            self._stopped.wait(0.2)
            return False
        return True

    def _rows(self, number: int) -> pa.Table:
        """Return new rows; of a keyed table, every fifth batch deletes keys."""
        if self.keyed:
            first = number % 7 * ROWS // 2
            return keyed_rows(range(first, first + ROWS), number, gone=number % 5 == 0)
        return bag_rows(ROWS, number)

    def stop(self) -> None:
        """Let the writer end its last append."""
        self._stopped.set()
        self.join(SERVICE_S)
        assert not self.is_alive(), f"{self.name} does not end"
        assert not self.problem, self.problem


@contextmanager
def older_stack(older: Installation, folder: Path) -> Iterator[LocalStack]:
    """Start Redis and Ray by the older release; end them by this one."""
    command = [sys.executable, "-c", START, str(folder / "home")]
    environ = older.environ(with_tests=True)
    subprocess.run(command, env=environ, cwd=Path.home(), timeout=SERVICE_S, check=True)
    stack = LocalStack.attach(home=folder / "home")
    assert stack is not None
    try:
        yield stack
    finally:
        stack.stop()


def wait_for_appends(service: Service, writers: list[Writer], count: int) -> None:
    """Return when every writer has that many more acknowledged appends."""
    wanted = {writer: len(writer.calls) + count for writer in writers}
    service.wait(
        "appends",
        lambda: all(len(w.calls) >= n or w.problem for w, n in wanted.items()),
        within_s=SERVICE_S,
    )


def heard(client: Client) -> dict[str, str]:
    """Return the editions of the compactors that take jobs, by their names."""
    return {c.compactor: c.edition for c in client.compactors() if c.ready and not c.draining}


def new_ones(client: Client, editions: set[str]) -> list[str]:
    """Return the compactors that take jobs and have none of these editions."""
    return [name for name, edition in heard(client).items() if edition not in editions]


def slow_table(client: Client, folder: Path) -> LedgerTable:
    """Make a table with a job whose output takes a while."""
    table = LedgerTable(client, folder, keyed=True, stem="slow", settings=SLOW)
    table.add(*(keyed_rows(range(40_000), version) for version in range(4)))
    return table


def wheels(cluster: Cluster) -> dict[str, list[str]]:
    """Return the folders from which each actor of the cluster was loaded."""
    return folders_of_actors(cluster.stack.ray_address, cluster.environ(installation()))


def check_the_held_job(service: Service, slow: LedgerTable, job: Job) -> None:
    """Assert that the older compactor ended its job for the new coordinator, once."""
    service.wait("commit of the older compactor", slow.commits, table=slow)
    ends = [(e.attempt, e.end, e.compactor) for e in service.client.history(slow.name)]
    assert (job.attempt, "committed", job.compactor) in ends
    assert len([end for end in ends if end[0] == job.attempt]) == 1, ends


def check_table(service: Service, table: LedgerTable) -> None:
    """Assert that a table has every acknowledged row once, and no file but its own."""
    service.wait_until_at_rest(table)
    table.check_rows()
    assert table.commits()
    ends = {entry.end for entry in service.client.history(table.name)}
    assert ends <= {"committed", "conflicted", "released"}, ends
    assert service.client.fsck(table.name, deep=True).sound
    service.wait_until_clean(table)


def start_writers(service: Service) -> list[Writer]:
    """Start to append to a keyed and to an append-only table; return when both are compacted."""
    writers = [
        Writer(LedgerTable(service.client, service.folder, keyed=keyed), keyed=keyed)
        for keyed in (True, False)
    ]
    for writer in writers:
        writer.start()
    wait_for_appends(service, writers, APPENDS)
    service.wait("commits of the older release", lambda: all(w.table.commits() for w in writers))
    return writers


def stop_writers(service: Service, writers: list[Writer]) -> None:
    """End the load, and repeat a call that the older gateway has acknowledged."""
    wait_for_appends(service, writers, APPENDS)
    for writer in writers:
        writer.stop()
        call, rows = writer.calls[0]
        service.client.append(writer.table.name, rows, call=call)
        print(f"{writer.name}: {len(writer.calls)} appends, {writer.repeated} tries in vain")


def check_actors(cluster: Cluster, held: str) -> None:
    """Assert that coordinator and gateway are of this release, and a compactor of the older one."""
    origins = wheels(cluster)
    this, older = str(installation().packages), str(installation(OLDER).packages)
    assert origins[COORDINATOR_NAME] == origins[GATEWAY_NAME] == [this]
    assert origins[compactor_actor_name(held)] == [older]


def test_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    older, newer = installation(OLDER), installation()
    with older_stack(older, tmp_path) as stack, ExitStack() as running:
        cluster = Cluster(stack, tmp_path, SETTINGS, port=free_port())
        client = Client(f"http://127.0.0.1:{cluster.port}", token=TOKEN)
        service = Service(stack, tmp_path, compactors=0, client=client)
        serving = running.enter_context(cluster.serving(release=older))
        service.wait("older compactors", lambda: set(heard(client)) == OLD_COMPACTORS)
        writers = start_writers(service)
        coordinator, editions = client.status().coordinator, set(heard(client).values())

        with service.caught(lambda: slow_table(client, tmp_path)) as (slow, job):
            request = client.compact(writers[0].table.name)
            assert serving.end() == 0, "SIGTERM leaves the service running"
            assert all(origin == [str(older.packages)] for origin in wheels(cluster).values())
            running.enter_context(cluster.serving(release=newer, settings=NEW_SETTINGS))
            assert client.status().coordinator != coordinator
            service.wait("the job is known again", lambda: service.running(slow), table=slow)
            wait_for_appends(service, writers, APPENDS)
            check_actors(cluster, job.compactor)

        check_the_held_job(service, slow, job)
        service.wait("new compactors", lambda: len(new_ones(client, editions)) == 2)
        stop_writers(service, writers)
        request.wait(timeout_s=SERVICE_S)
        for table in (*(writer.table for writer in writers), slow):
            check_table(service, table)
        assert all(origin == [str(newer.packages)] for origin in wheels(cluster).values())
