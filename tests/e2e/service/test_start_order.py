"""Jobs of different tables start in the order of their priorities, which is the order listed."""

from __future__ import annotations

from typing import Any

import pytest

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
    [((4, 4), {"maintenance_priority": 5}), ((4, 8), {})],
    ids=["maintenance_priority", "files per tablet"],
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
