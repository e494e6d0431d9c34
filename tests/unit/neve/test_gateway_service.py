"""The door itself: who may pass, how errors are told, and that it answers while it works."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from common.control_settings import IngestSettings
from common.errors import CompactionError, ConflictError, MetadataError, UnknownOutcomeError
from common.metadata.changes import (
    Applied,
    Refused,
    ReserveFiles,
    Unknown,
)
from common.metadata.changes.days import DailySums, StoreDays, day_of
from common.model.file import ChunkGrid
from common.model.job import Job, Kind, PlannedInterval, TabletPlan
from common.model.outcome import RefusalCode
from common.model.table import Table
from common.model.tablet import (
    PLUS_INFINITY,
    Analysis,
    ChunkHead,
    ChunkNote,
    StoredChunks,
    TabletId,
)
from common.settings import Settings
from common.telemetry import METRICS
from coordinator.registry import planner_for
from neve import api
from neve.api import ARROW_STREAM, PROBLEM
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NotFoundError,
    UnavailableError,
)
from neve.gateway import problems
from neve.gateway.access.audit import AuditCounts
from neve.gateway.access.callers import OPEN_PATHS
from neve.gateway.access.quotas import BufferUse, ScanSlots
from neve.gateway.authentication import LIST_BYTES_MAX
from neve.gateway.planning import plan_view
from neve.gateway.service import RequestMetrics
from neve.local.supervisor import ask_actors
from tests.support.gateway import QUEUED, TOKEN, Gateway, serving
from tests.support.patience import PATIENCE_S
from tests.support.shell import Shell

SCHEMA = pa.schema([("x", pa.int64())])
TIMED = pa.schema([("at", pa.int64())])
TRUSTED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving(body_bytes_max=LIST_BYTES_MAX + 1000) as served:
        yield served


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made


@pytest.fixture(autouse=True)
def up(gateway: Gateway) -> None:
    gateway.coordinator.up = True
    gateway.coordinator.told.clear()


def routes(gateway: Gateway) -> list[tuple[str, str]]:
    paths = httpx.get(f"{gateway.url}/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


def test_the_schema_says_which_routes_want_the_token(gateway: Gateway) -> None:
    paths = httpx.get(f"{gateway.url}/openapi.json").json()["paths"]
    open_ones = {
        path
        for path, methods in paths.items()
        for told in methods.values()
        if told.get("security") != [{"HTTPBearer": []}]
    }
    assert open_ones == OPEN_PATHS & paths.keys()


def test_every_route_but_the_open_ones_wants_the_token(gateway: Gateway) -> None:
    known = routes(gateway)
    assert len(known) > 25
    shown = ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"})
    with httpx.Client(base_url=gateway.url) as http:
        for method, path in [*known, ("get", "/v1/nothing"), ("get", "/"), ("put", "/metrics")]:
            for headers in shown:
                answer = http.request(method, path, headers=headers)
                if path in OPEN_PATHS:
                    assert answer.status_code == 200, path
                    continue
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"] == "UnauthorizedError"


@pytest.mark.parametrize("shown", ["", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"])
def test_nearly_the_token_is_not_the_token(gateway: Gateway, shown: str) -> None:
    assert (
        httpx.get(f"{gateway.url}/v1/tables", headers={"Authorization": shown}).status_code == 401
    )


def test_the_token_may_be_shown_in_any_case_of_its_scheme(gateway: Gateway) -> None:
    answer = httpx.get(f"{gateway.url}/v1/tables", headers={"Authorization": f"bearer {TOKEN}"})

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v1/nothing", 404, "UnknownRouteError"),
        ("PUT", "/v1/tables", 405, "MethodNotAllowedError"),
        ("POST", "/v1/tables", 422, "BodyError"),
        ("GET", "/v1/tables/none", 404, "UnknownTableError"),
        ("GET", "/v1/tables/N%2F..", 404, "UnknownRouteError"),
        ("GET", "/v1/tables/NONE", 400, "RequestError"),
        ("GET", "/v1/queue?count=many", 422, "BodyError"),
        ("GET", "/v1/queue?count=0", 400, "RequestError"),
        ("GET", "/v1/queue?group=A+B", 400, "RequestError"),
    ],
)
def test_every_error_is_a_problem(
    gateway: Gateway, method: str, path: str, status: int, error: str
) -> None:
    answer = httpx.request(method, gateway.url + path, headers=TRUSTED)
    told = answer.json()

    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    assert (told["error"], told["status"]) == (error, status)
    assert told["type"] == f"urn:neve:error:{error}"
    assert told["title"]
    assert told["detail"]


def test_a_body_that_is_no_json_is_a_problem(gateway: Gateway) -> None:
    headers = TRUSTED | {"Content-Type": "application/json"}
    answer = httpx.post(f"{gateway.url}/v1/tables", content=b'{"name": ', headers=headers)

    assert (answer.status_code, answer.json()["error"]) == (422, "BodyError")


@pytest.mark.parametrize("kind", ["application/json", ARROW_STREAM])
@pytest.mark.parametrize("honest", [True, False])
def test_a_body_that_is_too_large_is_refused(gateway: Gateway, kind: str, *, honest: bool) -> None:
    body = b" " * (LIST_BYTES_MAX + 2000)
    path = "/v1/tables" if kind != ARROW_STREAM else "/v1/tables/none/append"
    if kind == ARROW_STREAM:
        honest = True  # The table is looked up before the body is read.
    chunks = body if honest else iter([body[: 1 << 20]] * 17)
    answer = httpx.post(
        gateway.url + path, content=chunks, headers=TRUSTED | {"Content-Type": kind}
    )

    assert (answer.status_code, answer.json()["error"]) == (413, "TooLargeError")


def test_an_unexpected_error_is_logged_and_its_text_hidden(gateway: Gateway) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("password: secret")

    before = gateway.coordinator.status
    gateway.coordinator.status = fail  # type: ignore[assignment, method-assign]  # the fake fails
    try:
        answer = httpx.get(f"{gateway.url}/v1/status", headers=TRUSTED)
    finally:
        gateway.coordinator.status = before  # type: ignore[method-assign]  # as it was
    assert (answer.status_code, answer.json()["error"]) == (500, "InternalError")
    assert "secret" not in answer.text
    assert gateway.log[-1][0] == "request failed"
    assert "ZeroDivisionError" in str(gateway.log[-1][1]["cause"])


@pytest.mark.parametrize(
    ("outcome", "error", "status"),
    [
        (Refused(code=RefusalCode.PAUSED, reason="it is paused"), "RefusedError", 409),
        (Unknown(reason="silence"), "UnknownOutcomeError", 503),
    ],
)
def test_outcomes_of_changes_are_told(outcome: Refused | Unknown, error: str, status: int) -> None:
    with pytest.raises(CompactionError) as caught:
        problems.require_applied(outcome)

    answer = problems.problem_response(caught.value)
    assert (answer.status_code, f'"error":"{error}"' in bytes(answer.body).decode()) == (
        status,
        True,
    )
    assert problems.require_applied(Applied()) == Applied()


def test_each_branch_has_its_status() -> None:
    assert problems.status_of(ConflictError("x")) == 409
    assert problems.status_of(UnknownOutcomeError("x")) == 503
    assert problems.status_of(MetadataError("x")) == 500


def how_actors_are(url: str) -> tuple[bool | None, bool | None]:
    """Return whether gateway and coordinator answer, as a supervisor sees them."""
    sights = ask_actors(url)
    return sights["gateway"].answers, sights["coordinator"].answers


def test_readiness_is_that_of_the_parts(gateway: Gateway, client: Client) -> None:
    assert httpx.get(f"{gateway.url}/readyz").status_code == 200
    assert how_actors_are(gateway.url) == (True, True)

    gateway.coordinator.up = False
    end_s = time.monotonic() + PATIENCE_S
    while (answer := httpx.get(f"{gateway.url}/readyz")).is_success and time.monotonic() < end_s:
        time.sleep(0.05)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert how_actors_are(gateway.url) == (True, False)
    assert how_actors_are("http://127.0.0.1:9") == (False, None)
    assert httpx.get(f"{gateway.url}/healthz").status_code == 200
    assert "neve_coordinator_up 0.0" in httpx.get(f"{gateway.url}/metrics", headers=TRUSTED).text


def test_metrics_are_those_of_the_table(gateway: Gateway) -> None:
    httpx.get(f"{gateway.url}/v1/tables/none", headers=TRUSTED)
    text = httpx.get(f"{gateway.url}/metrics", headers=TRUSTED).text

    told = {line.split()[2]: line.split()[3] for line in text.splitlines() if "# TYPE" in line}
    assert told == {metric.name: metric.kind for metric in METRICS}
    assert 'neve_queue_jobs{group="default"} 1.0' in text
    compactor = 'compactor="local-1"'
    for line in (
        'neve_table_small_files{table="events"} 7.0',
        f'neve_compactor_attempts_total{{{compactor},end="committed",group="default"}} 3.0',
        f'neve_compactor_slots{{{compactor},group="default"}} 2.0',
        f'neve_compactor_rewrite_seconds_bucket{{{compactor},group="default",le="0.5"}} 1.0',
        f'neve_compactor_rewrite_seconds_count{{{compactor},group="default"}} 4.0',
        f'neve_compactor_rewrite_seconds_sum{{{compactor},group="default"}} 9.5',
    ):
        assert line in text.splitlines(), line
    assert "of_another_release" not in text
    assert 'code="404",method="GET",route="/v1/tables/{table}"' in text


def test_a_route_label_is_never_a_path() -> None:
    metrics = RequestMetrics()
    metrics.answered("none", "BREW", 404, 0.1)

    text = metrics.text(None, ScanSlots(1, 1), AuditCounts(), BufferUse(IngestSettings()))
    assert b'code="404",method="other",route="none"' in text


def test_the_documents_load_nothing_from_elsewhere(gateway: Gateway) -> None:
    page = httpx.get(f"{gateway.url}/docs")

    assert page.status_code == 200
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_the_client_lists_jobs_queue_and_compactors(gateway: Gateway, client: Client) -> None:
    assert client.status().committed == 7
    assert [job.attempt for job in client.jobs()] == ["att-1"]
    (queued,) = client.queue("default")
    assert (queued.id, queued.input_bytes, queued.cost_bytes) == ("job-1", 2048, 4096)
    assert client.queue("other") == []
    assert [compactor.compactor for compactor in client.compactors()] == ["local-1"]


def test_the_tablets_that_owe_most_are_told_by_table(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    client.create_table("owing", str(tmp_path), schema=SCHEMA)
    (owed,) = client.owed_tablets("owing")
    assert (owed.tablet, owed.size_bytes, owed.group) == ("last", 90, "default")
    with pytest.raises(NotFoundError, match="oiwng"):
        client.owed_tablets("oiwng")
    with pytest.raises(CallerError, match="count 0 is out of range, expected 1 to 10000"):
        client.owed_tablets("owing", count=0)


def map_of(gateway: Gateway, table: str) -> api.TabletMap:
    answer = httpx.get(f"{gateway.url}/v1/tables/{table}/map", headers=TRUSTED)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    sizes = {int(power): count for power, count in document.pop("sizes").items()}
    return api.TabletMap(**document, sizes=sizes)


def test_the_map_of_a_small_table_has_a_cell_for_each_tablet(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    keyed = pa.schema([("x", pa.int64()), ("v", pa.int64())])
    client.create_table(
        "mapped", str(tmp_path), schema=keyed, key=["x"], version_column="v", splits=["10", "20"]
    )
    for x in (1, 2, 15):
        client.append("mapped", pa.table({"x": [x], "v": [1]}))
    drawn = map_of(gateway, "mapped")

    ends = [tablet.tablet for tablet in client.tablets("mapped")]
    assert (drawn.tablets, list(drawn.ends), drawn.counts) == (3, ends, [1, 1, 1])
    assert drawn.files == [2, 1, 0]
    assert drawn.backlog_bytes == [0, 0, 90]
    assert drawn.scans_s == [0.5, 0.5, 0.5]
    assert (drawn.sampled_tablets, sum(drawn.sizes.values())) == (3, 3)
    assert sum(drawn.size_bytes) == client.describe("mapped").size_bytes

    only = {"tablet": ends[1]}
    path = f"{gateway.url}/v1/tables/mapped"
    page = httpx.get(f"{path}/tablets", params=only, headers=TRUSTED).json()
    assert ([tablet["tablet"] for tablet in page["tablets"]], page["next"]) == ([ends[1]], None)
    page = httpx.get(f"{path}/files", params=only, headers=TRUSTED).json()
    assert ([file["tablet"] for file in page["files"]], page["next"]) == ([ends[1]], None)
    uncounted = httpx.get(path, params={"totals": False}, headers=TRUSTED).json()
    assert (uncounted["name"], uncounted["tablets"]) == ("mapped", None)


def test_a_cell_of_several_tablets_has_the_largest_backlog_of_them(
    gateway: Gateway,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyed = pa.schema([("x", pa.int64()), ("v", pa.int64())])
    splits = [str(number) for number in range(10, 60, 10)]
    client.create_table(
        "wide", str(tmp_path), schema=keyed, key=["x"], version_column="v", splits=splits
    )
    monkeypatch.setattr("neve.gateway.table_summaries.CELLS_MAX", 4)
    ends = [tablet.tablet for tablet in client.tablets("wide")]
    monkeypatch.setattr(gateway.coordinator, "busy_tablets", (ends[0],))
    drawn = map_of(gateway, "wide")

    assert (drawn.tablets, list(drawn.ends), drawn.counts) == (6, ends[1::2], [2, 2, 2])
    assert drawn.backlog_bytes == [70, 0, 90]
    assert drawn.overlapping_files == [9, 0, 4]
    assert drawn.garbage_shares == [0.25, 0.0, 0.0]


def test_daily_sums_and_their_report_are_of_the_days_asked_for(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    table = client.create_table("summed", str(tmp_path / "summed"), schema=SCHEMA)
    now_s = gateway.services.clock.now_s()
    days = tuple(
        api.TableDay(day=day_of(now_s - back * 86_400), jobs=back + 1) for back in (9, 1, 0)
    )
    sums = DailySums(position="5-0", since_s=now_s - 9 * 86_400, days=days)
    change = StoreDays(table=table.id, before="0-0", sums=sums)
    asyncio.run_coroutine_threadsafe(gateway.store.apply(change), gateway.loop).result(PATIENCE_S)

    assert [day.jobs for day in client.days("summed").days] == [2, 1]
    assert [day.jobs for day in client.days("summed", 10).days] == [10, 2, 1]
    with pytest.raises(CallerError, match="count 401 is out of range, expected 1 to 400"):
        client.days("summed", 401)
    with pytest.raises(NotFoundError, match="smumed"):
        client.days("smumed")
    neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    target = tmp_path / "summed.html"
    written = neve.run("report", "summed", "--days", "2", "--output", str(target)).stdout
    assert "2 days. Days are those of UTC" in " ".join(written.split())
    assert "<h1>Compaction of summed</h1>" in target.read_text("utf-8")
    assert [day["jobs"] for day in neve.json("report", "summed")["days"]] == [2, 1]
    neve.run("report", "summed", "--output", str(tmp_path), code=2, says="cannot be written")


def test_the_history_of_tablets_is_bounded_and_of_one_table(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    client.create_table("recorded", str(tmp_path), schema=SCHEMA)
    (found,) = client.tablet_backlog_history("recorded")
    assert [(found.tablet, point.size_bytes) for point in found.history] == [
        ("last", 90),
        ("last", 45),
    ]
    with pytest.raises(NotFoundError, match="recroded"):
        client.tablet_backlog_history("recroded")
    with pytest.raises(CallerError, match="count 101 is out of range, expected 1 to 100"):
        client.tablet_backlog_history("recorded", count=101)


def test_orders_reach_the_coordinator(gateway: Gateway, client: Client) -> None:
    client.drain("local-1")
    client.cancel_job("att-1")
    job = QUEUED.job.id
    client.pause_job(job[:4])
    client.resume_job(job)
    client.cancel_queued_job(job)
    client.pause_group("default")
    client.resume_group("default")

    assert gateway.coordinator.told == [
        ("drain", "local-1"),
        ("cancel", "att-1"),
        ("pause_job", job),
        ("resume_job", job),
        ("cancel_queued", job),
        ("pause_group", "default"),
        ("resume_group", "default"),
    ]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (
            lambda it: it.drain("local-9"),
            "no compactor 'local-9' is known, expected one of: local-1",
        ),
        (lambda it: it.cancel_job("att-9"), "no running job has attempt 'att-9'"),
        (lambda it: it.cancel_queued_job("job-9"), "no queued job has id 'job-9'"),
        (lambda it: it.pause_job("job-9"), "no queued job has id 'job-9'"),
        (lambda it: it.resume_job("job-9"), "no queued job has id 'job-9'"),
        (lambda it: it.pause_group("lagre"), "no compaction group 'lagre'; there are: default"),
        (lambda it: it.resume_group("lagre"), "no compaction group 'lagre'"),
        (lambda it: it.limit_group("lagre", "1MB"), "no compaction group 'lagre'"),
    ],
)
def test_an_order_about_what_is_not_there_is_refused(
    gateway: Gateway, client: Client, order: Callable[[Client], object], says: str
) -> None:
    before = [*gateway.coordinator.told]
    with pytest.raises(NotFoundError, match=says):
        order(client)
    assert gateway.coordinator.told == before


def test_limits_reach_the_coordinator(gateway: Gateway, client: Client) -> None:
    client.limit_group("default", "50MB")
    client.limit_volume("fast", 0)
    client.limit_volume("fast", None)

    assert gateway.coordinator.told == [
        ("set_limit", "group:default", str(50 * 1024**2)),
        ("set_limit", "volume:fast", "0"),
        ("set_limit", "volume:fast", "None"),
    ]
    (told,) = client.limits()
    assert (told.kind, told.name, told.limit_bytes_s) == ("group", "default", 50 * 1024**2)


@pytest.mark.parametrize(
    ("group", "limit", "says"),
    [
        ("default", "fast", "limit of group default 'fast' is not a size"),
        ("default", 1000, "limit of group default is 1000 bytes/s, expected 0"),
        ("No Group", "50MB", "group name 'No Group' must be a DNS label"),
    ],
)
def test_a_limit_that_cannot_be(client: Client, group: str, limit: int | str, says: str) -> None:
    with pytest.raises(CallerError, match=says):
        client.limit_group(group, limit)


def test_a_coordinator_that_is_away_is_told(gateway: Gateway, client: Client) -> None:
    gateway.coordinator.up = False

    with pytest.raises(UnavailableError, match=r"the coordinator does not answer"):
        gateway.client().status()


def test_a_table_is_explained_planned_and_replanned(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    client.create_table("events", str(tmp_path), schema=SCHEMA)
    table = client.describe("events")
    for number in range(2):
        client.append("events", pa.table({"x": [number]}))

    assert client.explain("events")[0].left == {"a.parquet": "larger than all others together"}
    assert client.explain("events", "last")[0].tablet == "last"
    started, failed = client.story("events", "last").entries
    assert started.sentence == (
        "the coordinator coord-1 started; what happened before is not known"
    )
    assert (failed.kind, failed.code, failed.attempt) == ("failed", "InputError", "att-1")
    with pytest.raises(NotFoundError, match=r"has no tablet '0100' \(any more\)"):
        client.story("events", "0100")
    with pytest.raises(NotFoundError, match=r"has no tablet '0100' \(any more\)") as caught:
        client.explain("events", "0100")
    assert caught.value.error == "UnknownTabletError"
    (job,) = client.plan("events").jobs
    assert job.cost_bytes == 2 * job.input_bytes > 0
    assert (job.tablet, len(job.files)) == ("last", 2)
    client.replan("events")
    asked = client.trigger("events")
    assert (asked.table, asked.trigger, asked.left) == (table.id, "admin", 3)
    assert [(tablet.tablet, tablet.verdict, tablet.reason) for tablet in asked.tablets] == [
        ("last", "refused", "2 files: too few")
    ]
    client.lift_quarantine("events", "last")
    client.lift_quarantine("events")
    assert gateway.coordinator.told == [
        ("replan", table.id),
        ("trigger", table.id),
        ("lift_quarantine", table.id, "last"),
        ("lift_quarantine", table.id, None),
    ]
    assert client.history("events") == []
    with pytest.raises(UnavailableError, match=r"within 0.1 s: jobs that run: 0, that wait: 1"):
        client.wait_until_at_rest("events", timeout_s=0.1)


@pytest.fixture(scope="module")
def planning() -> Iterator[Client]:
    with serving(plan=planner_for(Settings())) as served, served.client() as made:
        yield made


def create_hours(client: Client, name: str, folder: Path) -> None:
    """Create a table of hours; a file has rows of two of them, and one hour two files."""
    settings = {"planner": "time-chunk", "planner_options": "granularity=1h,skip_offset=0"}
    client.create_table(name, str(folder), schema=TIMED, time_column="at", settings=settings)
    for hours in ([0, 1], [0], [5]):
        client.append(name, pa.table({"at": [3600 * hour for hour in hours]}))


def test_the_plan_of_a_table_has_each_intervals_place_and_neighbours(
    planning: Client, tmp_path: Path
) -> None:
    create_hours(planning, "hours", tmp_path)

    assert [
        (each.index, each.previous, each.next, each.overlaps_previous, each.overlaps_next)
        for each in planning.plan("hours").intervals
    ] == [(0, None, 1, False, True), (1, 0, 5, True, False), (5, 1, None, False, False)]


def test_the_plan_of_a_table_has_the_stored_state_of_each_interval() -> None:
    table = Table(id="t", name="hours", location="file:///t", schema=())
    numbers = (1, 2)
    plan = TabletPlan(
        intervals=tuple(
            PlannedInterval(
                start_s=0, end_s=1, state="pending", reason="r", files=2, size_bytes=9, index=number
            )
            for number in numbers
        )
    )
    head = ChunkHead(epoch=1, grid=ChunkGrid(1.0), policy="p")
    notes = {1: ChunkNote(Analysis.DEFERRED, 3, 2)}
    stored = StoredChunks(head=head, versions={1: 4}, notes=notes)

    view = plan_view(table, [plan], 0, [TabletId("t", PLUS_INFINITY)], [stored])
    assert [(interval.stored, interval.changes) for interval in view.intervals] == [
        ("deferred", 4),
        ("", None),
    ]
    first = plan_view(table, [plan], 0, [TabletId("t", PLUS_INFINITY)], [stored], count=1)
    assert (first.intervals, first.interval_count) == (view.intervals[:1], 2)


def test_a_plan_names_the_windows_that_its_jobs_wait_for(tmp_path: Path) -> None:
    sentence = "system jobs wait for the window of table hours, which opens at 22:00"
    with serving(plan=planner_for(Settings())) as served, served.client() as client:
        served.coordinator.closed = (sentence,)
        create_hours(client, "hours", tmp_path / "hours")
        assert client.plan("hours").waits == (), "it has no windows"
        client.set("hours", settings={"windows": "0 22 * * * for 8h"})
        assert client.plan("hours").waits == (sentence,)
        client.create_table("empty", str(tmp_path / "empty"), schema=SCHEMA)
        assert client.plan("empty").waits == (), "no job waits"
        served.coordinator.up = False
        plan = client.plan("hours")
        assert (len(plan.jobs), plan.waits) == (1, ()), "a plan needs no coordinator"


def test_rules_of_a_table_decide_its_plan(planning: Client, tmp_path: Path) -> None:
    create_hours(planning, "ruled", tmp_path)
    assert [len(job.files) for job in planning.plan("ruled").jobs] == [2]

    def set_rules(rules: str) -> None:
        options = f"granularity=1h,skip_offset=0,rules={rules}"
        planning.set("ruled", settings={"planner_options": options})

    set_rules("stable if files = 2; compact 0.9 if files = 1 and overlap = no")
    plan = planning.plan("ruled")
    assert [(len(job.files), job.reason.partition("(")[2]) for job in plan.jobs] == [
        (1, "rule 'compact 0.9 if files = 1 and overlap = no')")
    ]
    assert [why.partition(": ")[2] for why in plan.left.values()] == [
        "rule 'stable if files = 2'"
    ] * 2
    with pytest.raises(
        CallerError, match="option rules: 'stable if file = 2': measure 'file' is unk"
    ):
        set_rules("stable if file = 2")


def test_a_plan_with_other_settings_changes_nothing(planning: Client, tmp_path: Path) -> None:
    create_hours(planning, "tried", tmp_path)
    ((tablet,),) = [[tablet.tablet for tablet in planning.tablets("tried")]]

    rules = "granularity=1h,skip_offset=0,rules=stable if files = 2"
    changed = planning.plan("tried", settings={"planner_options": rules})
    assert (changed.jobs, len(changed.left)) == ((), 3)
    (job,) = planning.plan("tried", tablets=[tablet]).jobs
    assert len(job.files) == 2
    assert "rules" not in planning.describe("tried").settings["planner_options"]
    with pytest.raises(CallerError, match="max_files is 1, expected"):
        planning.plan("tried", settings={"max_files": "1"})
    with pytest.raises(NotFoundError, match="no tablet 'zz'"):
        planning.plan("tried", tablets=["zz"])


def test_the_answer_of_a_large_plan_is_bounded_and_counts_all(
    planning: Client, tmp_path: Path
) -> None:
    create_hours(planning, "large", tmp_path)
    rules = {"planner_options": "granularity=1h,skip_offset=0,rules=stable if files = 2"}
    plan = planning.plan("large", settings=rules, count=1)
    assert (len(plan.left), plan.left_count) == (1, 3)
    assert sum(plan.left_reasons.values()) == 3
    with pytest.raises(CallerError, match="count 10001 is out of range"):
        planning.plan("large", count=10_001)

    jobs = tuple(
        Job(
            id=f"job-{number}",
            tablet=TabletId("t", PLUS_INFINITY),
            table_name="large",
            kind=Kind.SYSTEM,
            inputs=(f"in-{number}",),
            input_bytes=10,
            group="default",
            priority=1,
            reason="a full bin",
        )
        for number in range(300)
    )
    left = {f"f{number:05}": "is near the target" for number in range(2_000)}
    left |= {f"z{number:05}": f"reason {number}" for number in range(150)}
    table = Table(id="t", name="large", location="file:///t", schema=())
    view = plan_view(table, [TabletPlan(jobs=jobs, left=left)], 0, count=200)
    assert (len(view.jobs), view.job_count, view.input_bytes) == (200, 300, 3_000)
    assert (len(view.left), view.left_count) == (200, 2_150)
    assert {*view.left.values()} == {*left.values()}, "each reason has a file"
    assert len(view.left_reasons) == 100
    assert next(iter(view.left_reasons.items())) == ("is near the target", 2_000)


def test_a_setting_of_a_plan_has_a_value(gateway: Gateway, client: Client, tmp_path: Path) -> None:
    client.create_table("untried", str(tmp_path), schema=SCHEMA)
    url = f"{gateway.url}/v1/tables/untried/plan?setting=ratio"
    problem = httpx.get(url, headers=TRUSTED).json()["detail"]

    assert problem == "setting 'ratio' has no value, expected name=value"


def test_a_table_is_not_at_rest_while_its_only_job_runs(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    client.create_table("busy", str(tmp_path), schema=SCHEMA)
    client.append("busy", pa.table({"x": [1]}))
    client.wait_until_at_rest("busy", timeout_s=PATIENCE_S)
    reserve = ReserveFiles(
        tablet=TabletId(client.describe("busy").id, PLUS_INFINITY),
        attempt="att-1",
        job="job-1",
        kind=Kind.SYSTEM,
        inputs=tuple(file.path for file in client.files("busy")),
        output_prefix="_neve/last/out",
        outputs_max=1,
        group="default",
        compactor="c-1",
    )
    assert isinstance(gateway.ask(gateway.store.apply(reserve)), Applied)

    plan = client.plan("busy")

    # One answer says both: a job that stops waiting between two answers would be missed.
    assert (plan.jobs, plan.running) == ((), 1)
    with pytest.raises(UnavailableError, match=r"within 0.1 s: jobs that run: 1, that wait: 0"):
        client.wait_until_at_rest("busy", timeout_s=0.1)


def test_the_loop_answers_while_threads_work(gateway: Gateway) -> None:
    hold = threading.Event()
    busy = [gateway.services.rows.run(hold.wait, 2 * PATIENCE_S) for _ in range(8)]
    try:
        for work in busy:
            gateway.loop.call_soon_threadsafe(gateway.loop.create_task, work)
        assert httpx.get(f"{gateway.url}/healthz", timeout=PATIENCE_S).status_code == 200
    finally:
        hold.set()


def test_what_could_be_done_is_listed_and_reads_of_others_are_counted(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    client.create_table("tended", str(tmp_path), schema=SCHEMA)
    table = client.describe("tended")
    merging, _ = client.maintenance("tended", "last").operations
    assert (merging.kind, merging.rank, merging.why) == ("merging", 1, "4 files of a size")
    with pytest.raises(NotFoundError, match=r"has no tablet '0100' \(any more\)"):
        client.maintenance("tended", "0100")
    client.report_reads("tended", {"last": 3})
    with pytest.raises(CallerError, match="scans of tablet last 0 is out of range, expected 1"):
        client.report_reads("tended", {"last": 0})
    assert gateway.coordinator.told == [
        ("maintenance", table.id, "last"),
        ("note_scans", table.id, "last=3"),
    ]


def test_scans_are_counted_by_tablet_and_told_to_the_coordinator(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    client.create_table("scanned", str(tmp_path), schema=SCHEMA)
    client.append("scanned", pa.table({"x": [1]}))
    table = client.describe("scanned")
    for _ in range(3):
        assert client.scan("scanned").num_rows == 1

    def told() -> int:
        calls = [each for each in gateway.coordinator.told if each[:2] == ("note_scans", table.id)]
        return sum(int(str(call[2]).removeprefix("last=")) for call in calls)

    end_s = time.monotonic() + PATIENCE_S
    while told() < 3 and time.monotonic() < end_s:
        time.sleep(0.05)
    assert told() == 3


def test_a_status_shows_what_operators_see_and_no_figures_of_metrics(gateway: Gateway) -> None:
    """The coordinator's answer has more fields than the words of operators."""
    answer = httpx.get(f"{gateway.url}/v1/status", headers=TRUSTED).json()

    assert answer.keys() == {each.name for each in dataclasses.fields(api.Status)}
    assert answer["compactors"][0].keys() == {
        each.name for each in dataclasses.fields(api.Compactor)
    }
