"""`GET /v1/control`, `POST /v1/reads`, `neve control`: what is shown, heard and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from neve import api
from neve.client import Client
from neve.client.errors import NotFoundError
from tests.support.gateway import CONTROL, STARTED_S, TOKEN, Gateway, serving
from tests.support.patience import PATIENCE_S
from tests.support.shell import Shell

SCHEMA = pa.schema([("x", pa.int64())])
TRUSTED = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made


@pytest.fixture(scope="module")
def table(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of the table `read`."""
    client.create_table("read", str(tmp_path_factory.mktemp("read")), schema=SCHEMA)
    return client.describe("read").id


def told(gateway: Gateway, count: int = 1) -> list[tuple[str | None, ...]]:
    """Return what the coordinator heard of latencies, once it has heard so often."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        calls = [each for each in gateway.coordinator.told if each[0] == "note_latencies"]
        if len(calls) >= count:
            return calls
        time.sleep(0.05)
    raise AssertionError(gateway.coordinator.told)


def report(gateway: Gateway, content: str) -> httpx.Response:
    return httpx.post(f"{gateway.url}/v1/reads", content=content, headers=TRUSTED | JSON)


def test_the_controller_is_shown_to_programs_and_people(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    found = client.control()
    assert (found.controller, found.slots, found.bytes_s) == ("drain-time", 5, CONTROL.bytes_s)
    assert found.classes[0].shares == 250.0
    neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    recent = neve.json("control", "--history")["series"]["total"]["values"]
    assert recent["shares_system"][-3:] == [240.0, None, 240.0]
    shown = " ".join(neve.run("control", "--history").stdout.split())
    for each in (
        *("drain-time", "30.0 GiB", "10.0 MiB/s", "5 of 8 busy, at most 20", "50.0 MiB/s"),
        *("events 120 ms; limit 100 ms", "250 shares", "20.0%", "25.0%", "events x 2"),
        *("1.0 KiB", "no limit", "READERS WAIT"),
        *("overlap 12 files in the deepest tablet", "garbage 12.5% of what is stored"),
    ):
        assert each in shown, each


@pytest.fixture(scope="module")
def recorded_tables(client: Client, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Create the tables of which values are recorded."""
    for name in ("events", "secret"):
        client.create_table(name, str(tmp_path_factory.mktemp(name)), schema=SCHEMA)


@pytest.mark.usefixtures("recorded_tables")
def test_recorded_values_are_those_of_tables_groups_and_the_service(client: Client) -> None:
    found = client.series(span_s=20.0)

    assert (found.count, found.step_s, found.start_s) == (4, 5.0, STARTED_S - 5.0)
    lines = {line.name: line.values["backlog_bytes"] for line in found.tables}
    assert lines == {"secret": [None, 1000.0, None, 1000.0], "events": [None, 90.0, None, 45.0]}
    assert found.total.values["backlog_bytes"] == [None, 1090.0, None, 1045.0]
    assert [line.name for line in found.groups] == ["default"]
    assert found.others is not None
    assert found.others.values["backlog_bytes"] == [None, 0.0, None, 0.0]

    one = client.series(span_s=20.0, tables=["events"], measures=["failures"], groups=False)
    assert [line.name for line in one.tables] == ["events"]
    assert one.tables[0].values == {"failures": [None, 0.0, None, 0.0]}
    assert (one.groups, one.others) == ((), None)

    few = client.series(span_s=20.0, points=2, count=1, measures=["backlog_bytes"])
    assert few.tables[0].values == {"backlog_bytes": [1000.0, 1000.0]}
    assert few.others is not None
    assert few.others.values == {"backlog_bytes": [90.0, 45.0]}


@pytest.mark.usefixtures("recorded_tables")
def test_the_history_of_a_backlog_is_that_of_a_table_or_of_all(
    gateway: Gateway, tmp_path: Path
) -> None:
    neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    points = neve.json("backlog", "events", "--history")
    assert [(point["at_s"], point["size_bytes"]) for point in points] == [
        (STARTED_S, 90),
        (STARTED_S + 10, 45),
    ]
    assert [point["size_bytes"] for point in neve.json("backlog", "--history")] == [1090, 1045]
    assert "1.1 KiB" in neve.run("backlog", "--history").stdout
    neve.run("backlog", "evnets", "--history", code=2, says="evnets")


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ("span_s=4", "span_s is 4, expected 5 to 86400 seconds"),
        ("span_s=nan", "span_s is nan"),
        ("points=0", "points 0 is out of range"),
        ("count=101", "101 tables are wanted, expected 0 to 100"),
        ("measure=backlog", "measure is 'backlog', expected one of backlog_bytes"),
        ("table=evnets", "evnets"),
    ],
)
def test_a_wrong_parameter_of_the_series_is_refused(
    gateway: Gateway, parameters: str, says: str
) -> None:
    answer = httpx.get(f"{gateway.url}/v1/series?{parameters}", headers=TRUSTED)
    assert answer.status_code in {400, 404}
    assert says in answer.json()["detail"]


def test_a_grant_on_one_table_shows_its_recorded_values_only(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    with serving(access={"tokens_file": str(tokens)}) as served:
        owner = Shell(tmp_path / "home", NEVE_ACCESS_TOKENS_FILE=str(tokens))
        token = owner.run("token", "create", "one", "--grant", "read:events").stdout.strip()
        with served.client(TOKEN) as admin:
            for name in ("events", "secret"):
                admin.create_table(name, str(tmp_path / name), schema=SCHEMA)
        with served.client(token) as caller:
            found = caller.series(span_s=20.0)
            with pytest.raises(NotFoundError, match="secret"):
                caller.series(tables=["secret"])
            own = caller.series(span_s=20.0, tables=["events"])
        text = httpx.get(
            f"{served.url}/v1/series", headers={"Authorization": f"Bearer {token}"}
        ).text
    assert "secret" not in text
    assert "1000.0" not in text
    assert [line.name for line in found.tables] == ["events"]
    mine = [None, 90.0, None, 45.0]
    assert found.tables[0].values["backlog_bytes"] == mine
    assert found.total.values.keys() == set(api.SERIES_MEASURES), "nothing of the controller"
    assert found.total.values["backlog_bytes"] == own.total.values["backlog_bytes"] == mine
    assert found.groups == ()
    assert found.others is not None
    assert found.others.values["backlog_bytes"] == [None, 0.0, None, 0.0]


@pytest.mark.parametrize("as_json", [True, False])
def test_watching_the_controller_ends_with_ctrl_c(gateway: Gateway, *, as_json: bool) -> None:
    run = "from neve.cli.app import main; main()"
    command = [sys.executable, "-c", run, "control", "--watch", "--every", "0.2"]
    environ = {**os.environ, "NEVE_URL": gateway.url, "NEVE_TOKEN": TOKEN}
    with subprocess.Popen(
        command + ["--json"] * as_json,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        if as_json:
            looks = [json.loads(watching.stdout.readline()) for _ in range(3)]
            assert [look["controller"] for look in looks] == ["drain-time"] * 3
        else:
            lines = iter(watching.stdout.readline, "")
            heads = list(islice((line for line in lines if line.startswith("controller")), 3))
            assert [head.split() for head in heads] == [["controller", "drain-time"]] * 3
        watching.send_signal(signal.SIGINT)
        said = watching.communicate(timeout=PATIENCE_S)[1]
    assert watching.returncode == 130
    assert "Traceback" not in said


def test_reports_of_a_second_are_averaged_and_told_once(
    gateway: Gateway, client: Client, table: str
) -> None:
    gateway.coordinator.told.clear()
    for latency_s in (0.1, 0.2, 0.3):
        client.report_latency("read", latency_s, reads=2)
    (call,) = told(gateway)
    assert call == ("note_latencies", f"{table}=0.2x6")


def test_a_scan_tells_how_long_its_reader_waited(
    gateway: Gateway, client: Client, table: str
) -> None:
    gateway.coordinator.told.clear()
    client.append("read", pa.table({"x": [1]}))
    assert client.scan("read").num_rows == 1
    ((_, first),) = told(gateway)
    found, wait = str(first).split("=")
    assert found == table
    assert 0 <= float(wait.split("x")[0]) < PATIENCE_S


@pytest.mark.parametrize(
    ("body", "code", "why"),
    [
        ({"tables": {"read": {"reads": 0, "latency_s": 1}}}, 400, "reads of table 'read' 0 is out"),
        ({"tables": {"read": {"reads": 10**9, "latency_s": 1}}}, 400, "expected 1 to 1000000"),
        ({"tables": {"read": {"reads": 1, "latency_s": -1}}}, 400, "expected 0 to 3600 s"),
        ({"tables": {"read": {"reads": 1, "latency_s": 1e9}}}, 400, "expected 0 to 3600 s"),
        ({"tables": {"read": {"reads": 1, "latency_s": float("nan")}}}, 400, "is nan s"),
        ({"tables": {"read": {"reads": 1}}}, 422, "latency_s"),
        ({"tables": {"read": {"reads": 1, "latency_s": 1, "more": 1}}}, 422, "more"),
        ({"tables": {}}, 400, "number of tables 0 is out of range"),
        (
            {"tables": {f"t{n}": {"reads": 1, "latency_s": 1} for n in range(1001)}},
            422,
            "at most 1000 items",
        ),
        ({"tables": {"nowhere": {"reads": 1, "latency_s": 1}}}, 404, "nowhere"),
        ([], 422, ""),
    ],
)
def test_rubbish_is_refused_and_heard_by_nobody(
    gateway: Gateway, table: str, body: Any, code: int, why: str
) -> None:
    gateway.coordinator.told.clear()
    answer = report(gateway, json.dumps(body))
    assert answer.status_code == code, answer.text
    assert why in answer.text
    assert gateway.coordinator.told == []


def test_one_bad_line_leaves_nothing_of_a_report(
    gateway: Gateway, client: Client, table: str
) -> None:
    gateway.coordinator.told.clear()
    good = {"reads": 1, "latency_s": 1.0}
    body = {"tables": {"read": good, "nowhere": good}}
    assert report(gateway, json.dumps(body)).status_code == 404
    client.report_latency("read", 0.5)
    assert told(gateway) == [("note_latencies", f"{table}=0.5x1")]
    with pytest.raises(NotFoundError):
        client.report_latency("nowhere", 0.5)


def test_without_its_coordinator_a_report_is_taken_and_forgotten(
    gateway: Gateway, client: Client, table: str
) -> None:
    gateway.coordinator.told.clear()
    gateway.coordinator.up = False
    client.report_latency("read", 0.5)
    time.sleep(1.2)  # The second in which reports are averaged.
    gateway.coordinator.up = True
    client.report_latency("read", 0.7)
    assert told(gateway) == [("note_latencies", f"{table}=0.7x1")]
