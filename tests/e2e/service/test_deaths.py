"""Who dies in the middle of a job, what is left, and who repairs it: real processes, SIGKILL.

Every test ends alike: readers see exactly the rows of the ledger, no file was the input
of two commits, and storage holds nothing but the table's files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import redis

from common.runtime import call_id
from neve import Client
from tests.support.ledger import LedgerTable, bag_rows, keyed_rows
from tests.support.shell import Shell
from tests.support.stack import QUARANTINE_FAILURES, SLOW, Service

pytestmark = [pytest.mark.slow]

FILES = 6
ROWS = 5_000
"""Per file: the job takes some seconds, on a busy machine more."""
SPARK_PROCESSES = 3
"""Of a compactor: the driver with its JVM, an executor."""


@pytest.fixture(autouse=True)
def _everybody_is_back(service: Service) -> Iterator[None]:
    yield
    service.wait("two compactors", service.everybody_beats)


def slow_table(service: Service, **more: Any) -> LedgerTable:
    """Return a table with one job under way, or about to be."""
    table = LedgerTable(service.client, service.folder, keyed=False, settings=SLOW, **more)
    table.add(*(bag_rows(ROWS, seed) for seed in range(FILES)))
    return table


def owes(service: Service, table: LedgerTable) -> list[int]:
    return [each.size_bytes for each in service.client.backlog(table.name)]


def finish(service: Service, table: LedgerTable, commits: int = 1) -> None:
    """Wait for rest and check what must hold, whoever has died."""
    service.wait_until_at_rest(table)
    assert len(table.commits()) == commits, service.describe(table)
    table.check_rows()
    service.wait_until_clean(table)


def ends(table: LedgerTable) -> dict[str, tuple[str, str, str]]:
    """Return how each attempt ended: attempt → (end, compactor, cause)."""
    done = table.client.history(table.name)
    return {each.attempt: (each.end, each.compactor, each.cause) for each in done}


def story_by_command(service: Service, table: LedgerTable, tablet: str) -> list[dict[str, Any]]:
    """Return what `neve explain TABLE TABLET --history` shows; print it as people see it."""
    command = [sys.executable, "-c", "from neve.cli import main; main()"]
    command += ["explain", table.name, tablet, "--history"]
    own = {"NEVE_URL": service.stack.gateway_url, "NEVE_TOKEN": service.stack.token}
    ask = partial(subprocess.run, env=os.environ | own | {"COLUMNS": "100"}, check=True, text=True)
    print(ask(command, capture_output=True).stdout)
    return json.loads(ask([*command, "--json"], capture_output=True).stdout)["entries"]


def check_story_of_quarantine(service: Service, table: LedgerTable, bad: str) -> None:
    """Nothing is wrong any more, and the story still shows what was."""
    story = story_by_command(service, table, service.client.tablets(table.name)[0].tablet)
    bad_tries = [each for each in story if each["kind"] == "failed"]
    assert [bad_try["quarantined"] for bad_try in bad_tries] == [False, False, True]
    assert {bad_try["code"] for bad_try in bad_tries} == {"InputError"}
    assert all(bad in bad_try["reason"] for bad_try in bad_tries)
    after = [each["kind"] for each in story[story.index(bad_tries[-1]) :]]
    assert [each for each in after if each in ("lifted", "assigned", "committed")] == [
        "lifted",
        "assigned",
        "committed",
    ]


def test_a_compactor_is_killed(service: Service) -> None:
    before = service.spark()
    assert len(before) >= 2 * SPARK_PROCESSES
    with service.caught(lambda: slow_table(service)) as (table, job):
        (owed,) = service.client.backlog(table.name)
        service.kill(service.compactor(job.compactor))
        whole = sum(file.size_bytes for file in service.client.files(table.name))
        assert owed.size_bytes <= whole
        service.wait("what was lost to be owed again", lambda: owes(service, table) == [whole])

    finish(service, table)
    service.wait("no backlog", lambda: not service.client.backlog(table.name))
    service.wait("end of its Spark", lambda: len(before & service.spark()) <= len(before) // 2)
    told = ends(table)
    end, compactor, cause = told.pop(job.attempt)
    # By notice of its death or of its next life; on a very slow machine its silence comes first.
    assert (end, compactor) == ("lost", job.compactor)
    assert any(word in cause for word in ("died", "restarted", "silent")), cause
    assert [end for end, _, _ in told.values()] == ["committed"]
    story = story_by_command(service, table, "last")
    (began,) = [each for each in story if each["attempt"] == job.attempt][:1]
    assert (began["kind"], began["compactor"]) == ("assigned", job.compactor)
    (taken,) = [each for each in story if each["kind"] == "releasing"]
    assert (taken["attempt"], taken["code"], taken["reason"]) == (job.attempt, "lost", cause)
    (committed,) = [each for each in story if each["kind"] == "committed"]
    assert set(committed["files"]) == table.listed()
    kinds = [each["kind"] for each in story]
    assert kinds[0] == "coordinator-started"
    assert kinds.index("releasing") < kinds.index("committed")


@pytest.mark.long
def test_a_spark_driver_is_killed(service: Service) -> None:
    with service.caught(lambda: slow_table(service)) as (table, job):
        actor = service.compactor(job.compactor)
        service.kill(service.driver(job.compactor))

    finish(service, table)
    told = ends(table)
    end, compactor, cause = told.pop(job.attempt)
    assert (end, compactor) == ("failed", job.compactor)
    assert "Spark driver" in cause
    assert [end for end, _, _ in told.values()] == ["committed"]
    assert service.driver(job.compactor).parent() == actor


def test_a_commit_needs_no_coordinator(service: Service) -> None:
    with ExitStack() as stopped:
        with service.caught(lambda: slow_table(service)) as (table, job):
            before = service.client.status().coordinator
            coordinator = service.actor("CoordinatorActor")
            other = LedgerTable(service.client, service.folder, keyed=True, stem="meanwhile")
            stopped.enter_context(service.halted(coordinator))
            assert not table.commits()
        other.add(*(keyed_rows(range(200), version) for version in range(4)))
        service.wait("commit without a coordinator", table.commits)
        assert not other.commits()
        service.kill(coordinator)

    finish(service, other)
    finish(service, table)
    assert service.client.status().coordinator != before
    assert ends(table) == {job.attempt: ("committed", job.compactor, "")}


def test_a_new_coordinator_adopts_what_runs(service: Service) -> None:
    with service.caught(lambda: slow_table(service)) as (table, job):
        before = service.client.status().coordinator
        # What is paused is forgotten with the coordinator, and what was asked for is not.
        service.client.pause_group("default")
        (asked,) = service.client.analyze(table.name)
        assert asked.waiting
        service.kill(service.actor("CoordinatorActor"))
        service.wait("adoption", lambda: service.running(table), table=table)
        now = service.client.status()
        assert now.coordinator != before
        assert table.add(*(bag_rows(10, seed) for seed in range(FILES))).rows == 10 * FILES

    service.wait("analysis", lambda: not service.client.live_bytes(table.name)[0].waiting)
    assert service.client.live_bytes(table.name)[0].read_bytes is not None
    finish(service, table, commits=2)
    assert service.client.tablets(table.name)[0].compactions == 2, "and the two others"
    assert ends(table)[job.attempt] == ("committed", job.compactor, "")
    assert {end for end, _, _ in ends(table).values()} == {"committed"}


def test_a_zombie_commits_in_vain(service: Service) -> None:
    with ExitStack() as stopped:
        with service.caught(lambda: slow_table(service)) as (table, job):
            stopped.enter_context(service.halted(service.compactor(job.compactor)))
        # Its Spark goes on and finishes; the other compactor does the job anew.
        service.wait("release", lambda: job.attempt in ends(table), table=table)
        service.wait("commit by another", table.commits, table=table)

    (ended,) = service.wait(
        "end of the zombie's attempt",
        lambda: service.events("attempt ended", attempt=job.attempt),
        table=table,
    )
    # On a very slow machine the collector, or the order to end, comes before Spark has finished.
    failed = service.events("rewrite failed", attempt=job.attempt)
    assert ended["end"] in ("lost", "cancelled") or failed
    finish(service, table)
    told = ends(table)
    end, compactor, cause = told.pop(job.attempt)
    assert (end, compactor) == ("lost", job.compactor)
    assert "silent" in cause
    ((end, compactor, _),) = told.values()
    assert end == "committed"
    assert compactor != job.compactor


def test_a_call_counts_once_though_the_gateway_dies(service: Service) -> None:
    client = service.client
    table = LedgerTable(client, service.folder, keyed=False, paused=True)
    rows, call = bag_rows(2_000, 1), call_id()
    paths = table.write(rows, rows)
    first = client.add_files(table.name, paths, call=call)
    table.note(rows, rows)
    service.kill(service.actor("GatewayActor"))
    again = service.wait("answer", lambda: client.add_files(table.name, paths, call=call))
    assert again.repeated
    assert not first.repeated
    assert (again.rows, again.file_count) == (first.rows, first.file_count) == (len(rows) * 2, 2)
    assert {file.path for file in table.client.files(table.name)} == {
        file.path for file in first.files
    }

    rows, call = bag_rows(200_000, 2), call_id()
    gateway = service.actor("GatewayActor")
    hand = threading.Timer(0.1, gateway.kill)
    hand.start()
    service.wait("answer", lambda: client.append(table.name, rows, call=call))
    hand.join()
    service.wait("end of the gateway", lambda: not gateway.is_running())
    service.wait("answer", lambda: client.append(table.name, rows, call=call))
    table.note(rows)

    service.wait("answer", lambda: client.resume(table.name))
    service.wait_until_at_rest(table)
    table.check_rows()


@pytest.mark.long
def test_redis_is_killed_and_comes_back(service: Service) -> None:
    with service.caught(lambda: slow_table(service)) as (table, job):
        before = table.listed()
        service.restart_redis()
        assert service.wait("answer", table.listed) == before

    finish(service, table)
    assert ends(table)[job.attempt][0] == "committed"
    table.add(*(bag_rows(10, seed) for seed in range(FILES)))
    finish(service, table, commits=2)


def check_failures_of(
    client: Client, table: LedgerTable, inputs: set[str], failed_before: int
) -> None:
    failed = [attempt for attempt in client.history(table.name) if attempt.end == "failed"]
    assert len(failed) == QUARANTINE_FAILURES, failed
    assert {frozenset(attempt.inputs) for attempt in failed} == {frozenset(inputs)}
    assert client.status().failed >= failed_before + len(failed)


def test_a_job_that_always_fails_is_quarantined(service: Service) -> None:
    client = service.client
    table = LedgerTable(client, service.folder, keyed=True, splits=["999"], paused=True)
    table.add(*(keyed_rows(range(500), version) for version in range(4)))
    bad = min(table.listed())
    good_bytes = (table.location / bad).read_bytes()
    table.add(*(keyed_rows(range(1000, 1500), version) for version in range(4)))
    inputs = {file.path for file in client.files(table.name) if file.tablet != "last"}
    failed_before = client.status().failed
    (table.location / bad).write_bytes(b"\0" * len(good_bytes))
    client.resume(table.name)

    def reason() -> str:
        told = client.explain(table.name)[0].sentences
        return next((each for each in told if each.startswith("quarantined")), "")

    assert bad in service.wait("quarantine", reason, table=table)
    service.wait("compaction of the other tablet", table.commits, table=table)
    assert inputs <= table.listed()
    assert len(table.listed()) == len(inputs) + 1
    service.wait_until_clean(table)
    check_failures_of(client, table, inputs, failed_before)
    assert client.status().quarantined == 1

    table.add(*(keyed_rows(range(1000, 1500), version) for version in range(4, 8)))
    service.wait("more of the other tablet", lambda: len(table.commits()) > 1, table=table)
    (table.location / bad).write_bytes(good_bytes)
    client.lift_quarantine(table.name, client.tablets(table.name)[0].tablet)
    service.wait("compaction", lambda: not inputs & table.listed(), table=table)
    service.wait_until_at_rest(table)
    table.check_rows()
    assert client.status().quarantined == 0

    check_story_of_quarantine(service, table, bad)


def test_no_key_is_left_of_what_was_tried(service: Service) -> None:
    """After all these deaths no tablet holds a reservation, a hold or a marker."""
    with redis.Redis.from_url(service.stack.redis_url) as store:
        for kind in ("running", "selection", "waiting", "operation"):
            left = list(store.scan_iter(f"neve:*:tablet:*:{kind}", 1000))
            assert not left, left


def test_shortened_ids_are_accepted_by_the_command_line(service: Service) -> None:
    neve = Shell(
        service.folder / "home", NEVE_URL=service.client.url, NEVE_TOKEN=service.stack.token
    )
    with service.caught(lambda: slow_table(service)) as (table, job):
        assert table.name in [line["table"] for line in neve.json("activity")]
        neve.run("job", "cancel", job.attempt[:12], says="cancelling att-")
    asked = service.client.compact(table.name)
    neve.run("request", "show", table.name, asked.id[:12], says=asked.id)
    neve.run("request", "show", table.name, "req-x", code=2, says="has no request 'req-x'")
    neve.run("compactor", "drain", "no", code=2, says="no compactor 'no' is known")
    neve.run("request", "cancel", table.name, asked.id[:12], says="is being cancelled")
