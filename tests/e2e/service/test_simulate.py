"""What if this table had another planner? Asked of a running service, from the door."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.shell import Shell
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]


def test_arrivals_are_recorded_and_a_planner_is_tried_beside_the_present_one(
    service: Service, tmp_path: Path
) -> None:
    url, token = service.stack.gateway_url, service.stack.token
    neve = Shell(tmp_path / "home", NEVE_URL=url, NEVE_TOKEN=token)
    settings = {"planner": "ratio"}
    table = LedgerTable(
        service.client, service.folder, keyed=True, stem="foretold", settings=settings
    )
    table.append(keyed_rows(range(1000), 0))
    recorded: list[str] = []
    recorder = threading.Thread(
        target=lambda: recorded.append(neve.run("record", table.name, "--for", "4s").stdout)
    )
    recorder.start()
    version = 0
    while recorder.is_alive():
        version += 1
        table.append(keyed_rows(range(1000), version))
        recorder.join(0.3)
    service.wait("compaction", table.commits, table=table)
    service.wait_until_at_rest(table)

    # All files that came in that time, whether a job has taken them meanwhile or not.
    (recording,) = map(json.loads, recorded)
    assert 1 <= len(recording["arrivals"]) <= version
    assert all(each["size"] > 0 for each in recording["arrivals"])

    words = ["--planner", "size-tiered", "--days", "0.02"]
    present, other = neve.json("simulate", "--from", table.name, *words)["variants"]
    assert (present["variant"], other["variant"]) == ("ratio (as it is)", "size-tiered")
    stored = sum(file.size_bytes for file in service.client.files(table.name))
    assert present["initial_bytes"] == other["initial_bytes"] == stored
    assert present["arrived_files"] > version
    assert present["at_rest"]
    assert present["jobs"]["rewrite"] > 0
    assert played_again(neve, recorded[0], tmp_path) > len(recording["arrivals"])


def played_again(neve: Shell, recording: str, folder: Path) -> int:
    """Return how many files come when a recording of some seconds is played for 864 s."""
    path = folder / "arrivals.json"
    path.write_text(recording)
    specification = folder / "spec.toml"
    specification.write_text(
        '[simulation]\ndays = 0.01\n[[table]]\nname = "again"\n'
        'arrivals = { recorded = "arrivals.json" }\n'
    )
    (again,) = neve.json("simulate", str(specification))["variants"]
    return int(again["arrived_files"])
