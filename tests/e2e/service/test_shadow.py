"""Results of jobs correct the estimates of the next ones; a shadow planner is compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.shell import Shell
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

ROWS = 1000
LARGEST = 0.91
"""After one job that wrote about a quarter of what it read: 1 - 0.75 / 8, and some bytes."""


def shell(service: Service) -> Shell:
    url, token = service.client.url, service.stack.token
    return Shell(service.folder / "home", NEVE_URL=url, NEVE_TOKEN=token)


def shadowed(service: Service, stem: str) -> LedgerTable:
    """Return an empty table whose shadow planner merges sooner than its own."""
    settings = {"shadow_planner": "ratio", "shadow_planner_options": "ratio=1.5"}
    table = LedgerTable(service.client, service.folder, keyed=True, stem=stem, settings=settings)
    service.wait("begin", lambda: service.client.shadow_plan(table.name).tablets, table=table)
    return table


def add(table: LedgerTable, *versions: int) -> None:
    """Add files with the same keys."""
    table.add(*(keyed_rows(range(ROWS), version) for version in versions))


def wait_for_jobs(service: Service, table: LedgerTable, first: int, shadow: int) -> None:
    """Wait until the planners have had so many jobs, and nothing is left to do."""

    def had() -> bool:
        found = service.client.shadow_plan(table.name)
        return (found.first.jobs, found.shadow.jobs) == (first, shadow)

    service.wait("jobs of both planners", had, table=table)
    service.wait_until_at_rest(table)


def one_file(service: Service, table: LedgerTable) -> dict[str, Any]:
    """Return the comparison that the command line shows, once the table has one file."""

    def found() -> dict[str, Any] | None:
        shown: dict[str, Any] = shell(service).json("plan", table.name, "--shadow")
        return shown if shown["files"] == 1 else None

    return service.wait("a file", found, table=table) or {}


def test_a_shadow_planner_is_compared_and_starts_no_job(service: Service) -> None:
    """The planner merges four files; its shadow merges two, and their output with two others."""
    table = shadowed(service, "shadow")
    add(table, 1, 2)
    wait_for_jobs(service, table, 0, 1)
    assert not service.client.history(table.name), "the job of the shadow planner was started"

    add(table, 3, 4)
    wait_for_jobs(service, table, 1, 2)
    (inputs,) = service.wait("commit", table.commits, table=table)
    assert len(inputs) == 4
    found = one_file(service, table)
    assert (found["begin_files"], found["added_files"], found["partial"]) == (0, 4, False)
    first, shadow = found["first"], found["shadow"]
    (job,) = service.client.history(table.name)
    assert (first["files_left"], first["read_bytes"], first["problem"]) == (1, job.bytes_in, "")
    assert (shadow["files_left"], shadow["problem"]) == (1, "")
    assert shadow["read_bytes"] > job.bytes_in, "it read its own output again"
    shell(service).run("plan", table.name, "--shadow", says="ratio (shadow) 2")
    table.check_rows()
    service.client.drop(table.name, delete_files=True)


def test_results_correct_estimates_also_after_a_restart(service: Service) -> None:
    """A job writes a quarter of what it reads, because its files have the same keys."""
    client, neve, table = service.client, shell(service), shadowed(service, "results")
    assert not neve.json("plan", table.name)["correction"]["jobs"]
    add(table, 1, 2, 3, 4)
    service.wait("commit", table.commits, table=table)
    (job,) = neve.json("history", table.name)
    assert (job["expected_files"], job["expected_gain"], job["gain"]) == (1, 3, 3)
    assert job["expected_bytes"] == job["bytes_in"]
    assert job["bytes_out"] < job["bytes_in"] / 3
    correction = neve.json("plan", table.name)["correction"]
    assert (correction["jobs"], correction["files"], correction["gain"]) == (1, 1.0, 1.0)
    assert 0.75 < correction["written"] < LARGEST
    begun_s = one_file(service, table)["since_s"]

    before = client.status().coordinator
    service.kill(service.actor("CoordinatorActor"))
    service.wait("coordinator", lambda: client.status().coordinator not in ("", before))
    add(table, 5, 6, 7, 8)
    service.wait("another commit", lambda: len(table.commits()) == 2, table=table)
    newest = neve.json("history", table.name)[0]
    assert newest["expected_bytes"] == round(newest["bytes_in"] * correction["written"])
    assert newest["expected_s"] > 0
    neve.run("explain", table.name, says="correct estimates by: bytes written 0.")
    assert one_file(service, table)["since_s"] > begun_s
    table.check_rows()
    client.drop(table.name, delete_files=True)
    service.wait("two compactors", service.everybody_beats)
