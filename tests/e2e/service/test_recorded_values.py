"""What a service records of its work: values of the last hour, daily sums, metrics."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.support.ledger import LedgerTable, bag_rows
from tests.support.shell import Shell
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

FILES = 12


def test_a_compaction_is_recorded_summed_and_measured(service: Service, tmp_path: Path) -> None:
    settings = {"planner": "bin-pack", "planner_options": "target=1MB,min_input_files=3"}
    table = LedgerTable(
        service.client, service.folder, keyed=False, stem="recorded", settings=settings
    )
    for number in range(FILES):
        table.append(bag_rows(50, seed=number))
    client, name = service.client, table.name

    service.wait("a file", lambda: len(client.files(name)) < FILES)

    def rewritten() -> float:
        line = client.series(tables=[name], measures=["rewritten_bytes_s"]).tables[0]
        return sum(value or 0.0 for value in line.values["rewritten_bytes_s"])

    service.wait("recorded values", lambda: rewritten() > 0)
    hour = client.series()
    assert name in {line.name for line in hour.tables}
    assert max(value or 0 for value in hour.total.values["compactors"]) >= 1
    assert [line.name for line in hour.groups] == sorted(
        group.group for group in client.status().groups
    )

    service.wait("daily sums", lambda: any(day.jobs for day in client.days(name).days))
    (today,) = client.days(name).days
    assert today.files_in > today.files_out > 0
    assert today.compactor_s > 0
    neve = Shell(
        tmp_path / "home", NEVE_URL=service.stack.gateway_url, NEVE_TOKEN=service.stack.token
    )
    neve.run("report", name, "--output", str(tmp_path / "report.html"))
    assert f"Compaction of {name}" in (tmp_path / "report.html").read_text("utf-8")

    token = {"Authorization": f"Bearer {service.stack.token}"}

    def metrics() -> str:
        return httpx.get(f"{service.stack.gateway_url}/metrics", headers=token).text

    committed = r'^neve_compactor_attempts_total{.*end="committed".*} [1-9]'
    service.wait("a heartbeat", lambda: bool(re.search(committed, metrics(), re.M)))
    assert re.search(r"^neve_compactor_memory_bytes{.*} \d", metrics(), re.M)
    assert re.search(r"^neve_series_bytes \d", metrics(), re.M)
    assert httpx.get(f"{service.stack.gateway_url}/metrics").status_code == 401
    table.check_rows()
