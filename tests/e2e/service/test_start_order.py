"""Which queued job starts next: by priority, whatever the table, unless an operator decides."""

from __future__ import annotations

from typing import Any

import pytest

from neve.api import PlannedJob
from neve.client.errors import NotFoundError
from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

TABLETS = 3


def waiting(
    service: Service, stem: str, *, files: int, settings: dict[str, Any] | None = None
) -> LedgerTable:
    """Return a table of three tablets with so many files each."""
    splits = [str(100 * number - 1) for number in range(1, TABLETS)]
    table = LedgerTable(
        service.client,
        service.folder,
        keyed=True,
        stem=stem,
        splits=splits,
        settings=settings or {},
    )
    for version in range(files):
        table.append(keyed_rows(range(100 * TABLETS), version))
    return table


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        pytest.param((4, 4), {"maintenance_priority": 5}, id="maintenance_priority"),
        pytest.param((4, 8), {}, id="files per tablet", marks=pytest.mark.long),
        pytest.param((4, 4), {"gain_points": 100}, id="gain_points", marks=pytest.mark.long),
    ],
)
def test_the_jobs_of_the_higher_priority_start_first(
    service: Service, files: tuple[int, int], settings: dict[str, Any]
) -> None:
    client = service.client
    client.pause_group("default")
    try:
        low = waiting(service, "low", files=files[0])
        high = waiting(service, "high", files=files[1], settings=settings)

        def listed() -> list[str]:
            jobs = [job for job in client.queue() if job.table in (low.name, high.name)]
            whole = {low.name: files[0], high.name: files[1]}
            return [job.table for job in jobs if len(job.files) == whole[job.table]]

        service.wait("six jobs", lambda: len(listed()) == 2 * TABLETS)
        assert listed() == [high.name] * TABLETS + [low.name] * TABLETS
    finally:
        client.resume_group("default")
    for table in (low, high):
        service.wait("commits", lambda at=table: len(at.commits()) == TABLETS, table=table)
    started = sorted(
        (attempt.started_s, table.name)
        for table in (low, high)
        for attempt in client.history(table.name)
    )
    names = [name for _, name in started]
    # Two compactors may get the third and the fourth job in the same moment.
    assert (names[:2], names[-2:]) == ([high.name] * 2, [low.name] * 2), started
    for table in (low, high):
        table.check_rows()
        client.drop(table.name, delete_files=True)


def gated_table(service: Service, stem: str) -> LedgerTable:
    """Return a table of two tablets with four files each that wait for a trigger."""
    client, settings = service.client, {"triggers": "admin"}
    table = LedgerTable(
        client, service.folder, keyed=True, stem=stem, splits=["99"], settings=settings
    )
    for version in range(4):
        table.append(keyed_rows(range(200), version))

    def left() -> int:
        return sum(len(explained.left) for explained in client.explain(table.name))

    service.wait("eight files wait for a trigger", lambda: left() == 8)
    return table


def queued(service: Service, table: LedgerTable) -> list[PlannedJob]:
    return [job for job in service.client.queue() if job.table == table.name]


def test_an_operator_triggers_one_tablet_and_pauses_and_resumes_its_job(service: Service) -> None:
    client, table = service.client, gated_table(service, "held")
    first, second = (tablet.tablet for tablet in client.tablets(table.name))
    client.pause_group("default")
    try:
        (answer,) = client.trigger(table.name, first).tablets
        assert (answer.tablet, answer.verdict, answer.files) == (first, "accepted", 4)
        (job,) = queued(service, table)
        assert (job.tablet, job.paused) == (first, False), "the other tablet was not triggered"
        client.pause_job(str(job.id))
        service.wait("a paused job", lambda: any(job.paused for job in queued(service, table)))
        (paused,) = queued(service, table)
        assert (paused.id, paused.place) == (job.id, None)
    finally:
        client.resume_group("default")
    client.trigger(table.name, second)
    service.wait("the other job", lambda: len(table.commits()) == 1, table=table)
    (inputs,) = table.commits()
    assert not set(inputs) & set(job.files), "a compactor is free, and the paused job waits"
    client.resume_job(str(job.id))
    service.wait("the resumed job", lambda: len(table.commits()) == 2, table=table)
    table.check_rows()
    client.drop(table.name, delete_files=True)


def test_an_operator_cancels_a_queued_job(service: Service) -> None:
    client, table = service.client, gated_table(service, "ended")
    client.pause_group("default")
    try:
        client.trigger(table.name, "last")
        (job,) = queued(service, table)
        client.cancel_queued_job(str(job.id))
        service.wait("an empty queue", lambda: not queued(service, table))
        with pytest.raises(NotFoundError, match="no queued job has id"):
            client.cancel_queued_job(str(job.id))
        sentences = " ".join(client.explain(table.name, "last")[0].sentences)
        assert "a job on these files was cancelled: cancelled by the operator" in sentences
    finally:
        client.resume_group("default")
    service.wait("the job after its back-off", lambda: len(table.commits()) == 1, table=table)
    table.check_rows()
    client.drop(table.name, delete_files=True)
