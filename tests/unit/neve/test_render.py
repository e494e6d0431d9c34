"""What people see: golden pages of every listing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from common.model.job import IntervalState, PlannedInterval, TabletPlan
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.table import Table
from common.model.tablet import TabletId
from common.wire import AttemptProgress
from neve import api
from neve.cli import compactors, jobs, planning, recovery, render, requests, service, tablets
from neve.cli.render import KnownTables
from neve.client.http import decode
from neve.gateway.jobs import job_view
from neve.gateway.planning import plan_view, queued_view
from neve.gateway.services import whole_id
from tests.support.datadriven import Answer, Step
from tests.support.gateway import COMPACTOR, GROUP, QUEUED, RUNNING, SCOPE, STARTED_S

PAGES = Path(__file__).parent / "testdata" / "render.txt"
WIDE = 160

COLUMNS = (
    api.Column(name="id", type="int64", nullable=False),
    api.Column(name="note", type="string"),
)
SETTINGS = {"ratio": 3.0, "target_bytes": 512 * 1024**2, "ttl_s": None, "hold_expiry_s": 120.0}
TABLE = api.Table(
    id="t-1",
    name="events",
    location="s3://lake/events",
    state="live",
    schema=COLUMNS,
    key=("id",),
    version_column="v",
    settings=SETTINGS,
)
TABLET_ID = encode_key([100], [KeyType.INT]).hex()
KEYS = KnownTables(lambda: [TABLE])
FILE = api.File(path="a.parquet", tablet=TABLET_ID, size_bytes=2048, rows=1200, key_min="[1]")
TABLETS = (
    api.Tablet(tablet="0180", files=2, size_bytes=4096, rows=9, end="[100]", running=1),
    api.Tablet(tablet="last", files=0, size_bytes=0, rows=0, start="[100]", end="+inf", failures=1),
    api.Tablet(tablet="01", files=1, size_bytes=9, rows=1, partition="day=1", selected=True),
    api.Tablet(tablet="02", files=1, size_bytes=9, rows=1, end="[2]", waiting=1),
    api.Tablet(tablet="03", files=1, size_bytes=9, rows=1, end="[3]", operation="split (cut)"),
)
STATUS = api.Status(
    coordinator="coord-1",
    started_s=STARTED_S,
    now_s=STARTED_S + 4000,
    groups=(
        decode(api.Group, {name: getattr(GROUP, name) for name in GROUP.__slots__}),
        api.Group(
            group="large",
            queued=2,
            queued_bytes=1,
            queued_cost_bytes=10,
            running=0,
            compactors=0,
            waiting_takes=0,
            accepted=2,
            rejected=0,
            evicted=0,
            oldest_age_s=90,
        ),
    ),
    compactors=(COMPACTOR,),
    tables=1,
    tablets_known=1234,
    committed=7,
    failed=2,
    released=1,
    conflicts=4,
    quarantined=0,
    errors=("planner `ratio` failed for events",),
)
FINISHED = api.Finished(
    attempt="att-1",
    job="job-1",
    tablet="last",
    kind="SYSTEM",
    end="committed",
    group="default",
    compactor="local-1",
    inputs=("a", "b"),
    outputs=("c",),
    bytes_in=4096,
    bytes_out=2048,
    rows_in=2000,
    rows_out=1500,
    started_s=0.0,
    ended_s=2.5,
    reason="2 files of similar size",
)
EXPLAINED = api.Explanation(
    tablet="last",
    table="events",
    sentences=("nothing runs here", "its planner wanted nothing 5 s ago"),
    left={"a.parquet": "it is alone"},
    running=("att-1",),
    inputs=(("b.parquet", "c.parquet"),),
)
PLAN = api.Plan(jobs=(queued_view(QUEUED),), left={"c.parquet": "it is larger than the rest"})
DAY_S = 86_400.0
CUT = replace(
    QUEUED.job,
    id="cut",
    cuts_at_s=(DAY_S, 2 * DAY_S, 3 * DAY_S),
    output_rows_max=5_000_000,
    outputs_expected=5,
)
PLANNED = (
    CUT,
    replace(QUEUED.job, id="drop", action="drop", outputs_expected=0, reason="all have expired"),
    replace(QUEUED.job, id="move", action="move", output_tags=(("level", "2"),)),
    replace(CUT, id="later", cuts_at_s=(DAY_S,), depends_on=("cut", "move"), outputs_expected=3),
    replace(QUEUED.job, id="even", outputs_expected=4),
)
EVENTS = Table(id="t-1", name="events", location="s3://lake/events", schema=())
DAY = PlannedInterval(
    start_s=DAY_S,
    end_s=2 * DAY_S,
    state=IntervalState.SKIPPED,
    reason="is in an interval that is skipped (skip_offset)",
    files=3,
    size_bytes=4096,
)
CHAIN = plan_view(
    EVENTS,
    [TabletPlan(jobs=PLANNED[:3], intervals=(DAY,)), TabletPlan(jobs=PLANNED[3:])],
    0,
    [QUEUED.job.tablet, TabletId("t-1", b"\xff")],
)
OFFLINE = {
    "jobs": [
        {"files": ["a", "b"], "group": "small", "kind": "SYSTEM", "priority": 2, "reason": "alike"}
    ],
    "left": {"c": "too large"},
}
REQUEST = api.Request(
    id="req-1",
    table="events",
    state="active",
    submitted_at_s=STARTED_S,
    keys=api.Keys(start="[1]", end="[9]", end_included=False),
    selector=api.Plugin(name="age", options={"older_than": "1h"}),
    transform="set note = 'b'",
    output=api.Output(codec="gzip", row_group_bytes=64 * 1024**2),
    hints={"pace": "slow"},
    boost=5,
    deadline_at_s=STARTED_S + 600,
    cancelled=(api.Keys(end="[2]"),),
    progress=api.Progress(
        tablets=2,
        selected=1,
        done=1,
        files_left=3,
        running=1,
        bytes_left=4096,
        fraction=0.5,
        eta_s=65.0,
    ),
    tablets=(
        api.RequestTablet(
            tablet="0180",
            state="selected",
            reason="one job runs of it",
            end="[5]",
            files_left=3,
            bytes_left=4096,
            running=1,
        ),
        api.RequestTablet(tablet="last", state="done", reason="done here", end="+inf"),
    ),
)
FAILED = api.Request(
    id="req-0",
    table="events",
    state="failed",
    submitted_at_s=STARTED_S,
    cause="its deadline has passed",
    ended_at_s=STARTED_S + 90,
)
NEEDLESS = replace(FAILED, state="done", cause="", result=api.Result())
DRY_RUN = api.DryRun(
    table="events",
    tablets=2,
    files=5,
    size_bytes=8192,
    rows=2000,
    rows_in_range=None,
    transform="delete where id > 1",
    per_tablet=(
        api.DryTablet(
            tablet="0180", files=3, size_bytes=4096, rows=1500, rows_in_range=7, end="[5]"
        ),
        api.DryTablet(
            tablet="02",
            files=2,
            size_bytes=4096,
            rows=500,
            rows_in_range=None,
            partition="day=1",
            held=True,
        ),
    ),
)

LIMITS = [
    decode(api.Limit, asdict(SCOPE)),
    api.Limit(kind="volume", name="default", limit_bytes_s=None, moved_bytes=5),
]
WAITING = replace(
    RUNNING,
    throttled=True,
    progress=AttemptProgress(
        attempt="att-1", state="rewriting", fraction=0.25, granted_bytes_s=2.5 * 1024**2
    ),
)

SHOWN: dict[str, Callable[[], RenderableType]] = {
    "tables": lambda: render.render_tables([TABLE]),
    "nothing": lambda: render.render_tables([]),
    "table": lambda: render.render_table(TABLE),
    "files": lambda: render.render_files([FILE], "events", KEYS),
    "tablets": lambda: render.render_tablets(TABLETS),
    "added": lambda: render.add_sentence(
        api.Added(
            call="c",
            files=(FILE,),
            rows=1200,
            size_bytes=2048,
            file_count=1,
            tablets=(FILE.tablet,),
        )
    ),
    "added-again": lambda: render.add_sentence(
        api.Added(call="c", files=(), rows=1200, size_bytes=2048, file_count=1, repeated=True)
    ),
    "call-append": lambda: render.call_sentence(
        api.Call(
            call="c",
            state="accepted",
            kind="append",
            at_s=STARTED_S,
            rows=1200,
            file_count=2,
            size_bytes=2048,
            tablets=("0180", "last"),
        )
    ),
    "call-compact": lambda: render.call_sentence(
        api.Call(call="c", state="accepted", kind="compact", at_s=STARTED_S, request="req-1")
    ),
    "call-unknown": lambda: render.call_sentence(api.Call(call="c", state="unknown")),
    "call-too-old": lambda: render.call_sentence(api.Call(call="c", state="too-old")),
    "status": lambda: service.render_status(STATUS),
    "jobs": lambda: jobs.render_jobs([job_view(RUNNING), job_view(WAITING)], STARTED_S + 60, KEYS),
    "limits": lambda: compactors.render_limits(LIMITS),
    "queue": lambda: planning.render_queue([queued_view(QUEUED)], KEYS),
    "plan": lambda: planning.render_plan(PLAN, KEYS),
    "chain": lambda: planning.render_plan(CHAIN, KEYS),
    "explain": lambda: tablets.render_explanations([EXPLAINED], KEYS),
    "history": lambda: jobs.render_history([FINISHED], "events", KEYS),
    "requests": lambda: requests.render_requests([REQUEST, FAILED]),
    "request": lambda: requests.render_request(REQUEST),
    "failed-request": lambda: requests.render_request(FAILED),
    "needless-request": lambda: requests.render_request(NEEDLESS),
    "dry-run": lambda: requests.render_dry_run(DRY_RUN),
    "offline": lambda: planning.render_offline_plan(OFFLINE),
}


def text_of(shown: RenderableType, width: int = WIDE) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(shown, markup=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_every_listing_looks_as_it_did(golden: Callable[[Path, Answer], None]) -> None:
    seen: set[str] = set()

    def answer(step: Step) -> str:
        seen.add(step.command)
        return text_of(SHOWN[step.command]())

    golden(PAGES, answer)
    assert seen == set(SHOWN)


def test_a_plan_says_by_place_which_jobs_wait_for_which() -> None:
    cut, drop, move, _, even = CHAIN.jobs

    assert (cut.cuts_at_s, cut.output_rows_max) == ((DAY_S, 2 * DAY_S, 3 * DAY_S), 5_000_000)
    assert [each.action for each in (cut, drop, move)] == ["rewrite", "drop", "move"]
    assert (move.tags, even.outputs) == ({"level": "2"}, 4)
    assert [job.after for job in CHAIN.jobs] == [(), (), (), (0, 2), ()]
    (interval,) = CHAIN.intervals
    assert (interval.tablet, interval.state) == (QUEUED.job.tablet.text, "skipped")


def test_totals_are_shown_once_they_are_known() -> None:
    known = api.Table(
        id="t", name="t", location="x", state="live", schema=(), tablets=3, files=4, size_bytes=5
    )

    shown = text_of(render.render_table(known))
    assert "size        5 B" in shown
    assert "rows        -" in shown


LONG_NAME = "a-name-of-a-table-or-group-with-as-many-letters-as-a-dns-label-has"[:63]
LONG_KEY = '["a key with words", "' + "x" * 120 + '"]'
LONG_ID = "att-0123456789abcdef0123"
LONG_BY_FIELD = {
    **dict.fromkeys(("table", "name", "group", "compactor", "node", "coordinator"), LONG_NAME),
    **dict.fromkeys(("attempt", "id", "job"), LONG_ID),
    **dict.fromkeys(("path", "location"), "s3://bucket/" + "folder/" * 20 + "file.parquet"),
    **dict.fromkeys(("key_min", "key_max", "start", "at"), LONG_KEY),
    **dict.fromkeys(("reason", "cause", "why", "waits", "sentence", "repair"), "because " * 30),
    **dict.fromkeys(("partition",), "month=" + "9" * 100 + "/day=1"),
    **dict.fromkeys(("rows_in", "rows_out", "rows", "bytes_in", "bytes_out"), 10**12),
    **dict.fromkeys(("size_bytes", "input_bytes", "bytes_left", "moved_bytes"), 10**12),
    "quiet_s": 3600.0,
}
"""Values as long as they come, by the fields of wire models."""


def lengthened(value: Any, field: str = "") -> Any:
    """Return a wire model with the longest values that its fields can have."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {
            each.name: lengthened(getattr(value, each.name), each.name) for each in fields(value)
        }
        if isinstance(value, api.Tablet | api.RequestTablet) and parts["end"]:
            parts["end"] = LONG_KEY
        return replace(value, **parts)
    if isinstance(value, tuple | list):
        return type(value)(lengthened(each, field) for each in value)
    return value if value is None else LONG_BY_FIELD.get(field, value)


FINDING = api.Finding(code="file-missing", sentence="", repair="", path="a", tablet=TABLET_ID)
OPERATION = api.Operation(
    id="o", kind="split", step="cut", tablets=(TABLET_ID, "last"), at="[1]", reason="-", waits="-"
)
LONG_TABLE = replace(TABLE, name=LONG_NAME, key=("note",))
LONG_TABLET = encode_key(["x" * 120], [KeyType.STRING]).hex()
LONG_KEYS = KnownTables(lambda: [LONG_TABLE])


def of_long_tablet(value: Any) -> Any:
    return replace(lengthened(value), tablet=LONG_TABLET)


NARROW: dict[str, Callable[[], RenderableType]] = {
    "tables": lambda: render.render_tables([lengthened(TABLE)]),
    "files": lambda: render.render_files([of_long_tablet(FILE)], LONG_NAME, LONG_KEYS),
    "tablets": lambda: render.render_tablets([of_long_tablet(each) for each in TABLETS]),
    "status": lambda: service.render_status(lengthened(STATUS)),
    "jobs": lambda: jobs.render_jobs([of_long_tablet(job_view(WAITING))], STARTED_S, LONG_KEYS),
    "queue": lambda: planning.render_queue([of_long_tablet(queued_view(QUEUED))], LONG_KEYS),
    "plan": lambda: planning.render_plan(
        api.Plan(
            jobs=(of_long_tablet(queued_view(QUEUED)), *map(of_long_tablet, CHAIN.jobs)),
            left={"a/" * 90: "old " * 40},
            intervals=tuple(map(of_long_tablet, CHAIN.intervals)),
        ),
        LONG_KEYS,
    ),
    "history": lambda: jobs.render_history([of_long_tablet(FINISHED)], LONG_NAME, LONG_KEYS),
    "limits": lambda: compactors.render_limits([lengthened(each) for each in LIMITS]),
    "requests": lambda: requests.render_requests([lengthened(REQUEST), lengthened(FAILED)]),
    "request": lambda: requests.render_request(lengthened(REQUEST)),
    "dry run": lambda: requests.render_dry_run(lengthened(DRY_RUN)),
    "operations": lambda: tablets.render_operations([lengthened(OPERATION)], LONG_NAME, LONG_KEYS),
    "fsck": lambda: recovery.render_fsck(
        api.FsckReport(
            table=LONG_NAME,
            sound=False,
            findings=(of_long_tablet(FINDING), replace(of_long_tablet(FINDING), path=None)),
            more=1,
            tablets=2,
            files=3,
            size_bytes=4,
        ),
        LONG_KEYS,
    ),
    "restore": lambda: recovery.render_restore(
        api.RestoreReport(
            tables=(
                lengthened(api.Restored(table="", location="", state="live", tablets=1, files=2)),
            )
        )
    ),
}


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("listing", NARROW)
def test_a_listing_fits_the_terminal_and_drops_no_column(listing: str, width: int) -> None:
    wide = text_of(NARROW[listing](), width=4000)
    shown = text_of(NARROW[listing](), width=width)

    assert max(map(len, shown.splitlines())) <= width
    headings = {line for line in wide.splitlines() if re.fullmatch(r"[A-Z ()]+", line)}
    assert headings
    for heading in headings:
        assert all(word in shown for word in heading.split())
    assert LONG_TABLET not in shown or listing == "tablets", "people see keys"
    for whole in re.findall(r"att-[0-9a-f]+|[0-9,.]+ [KMGT]iB(?= {2})", wide):
        assert whole in shown


def test_equal_reasons_are_one_line_with_a_count_unless_verbose() -> None:
    left = {f"day=1/{number:02}.parquet": "is in use" for number in range(15)}
    plan = api.Plan(left={**left, "z.parquet": "it is alone"})

    short = text_of(planning.render_plan(plan, LONG_KEYS), width=80).splitlines()
    assert [line.split() for line in short[-2:]] == [
        ["day=1/00.parquet,", "…", "15", "is", "in", "use"],
        ["z.parquet", "1", "it", "is", "alone"],
    ]
    every = text_of(planning.render_plan(plan, LONG_KEYS, verbose=True), width=80)
    assert all(path in every for path in left)


def test_a_long_plan_shows_some_jobs_and_counts_all_files_that_are_left() -> None:
    plan = api.Plan(
        jobs=(queued_view(QUEUED),),
        left={"a.parquet": "is in use", "z.parquet": "it is alone"},
        job_count=9_914,
        input_bytes=100 * 1024**3,
        left_count=90_003,
        left_reasons={"is in use": 90_000, "it is alone": 1},
    )
    short = text_of(planning.render_plan(plan, LONG_KEYS), width=80).splitlines()
    assert "… and 9,913 more jobs: 9,914 jobs of 100.0 GiB in all" in short
    assert [line.split() for line in short[-3:-1]] == [
        ["a.parquet,", "…", "90000", "is", "in", "use"],
        ["z.parquet", "1", "it", "is", "alone"],
    ]
    assert short[-1] == "… and 2 more files that no job takes"
    every = text_of(planning.render_plan(plan, LONG_KEYS, verbose=True), width=80).splitlines()
    assert every[-1] == "… and 90,001 more files that no job takes"


def test_a_long_plan_shows_some_intervals_and_counts_the_others() -> None:
    plan = replace(CHAIN, interval_count=1_001)
    assert "… and 1,000 more intervals" in text_of(planning.render_plan(plan, LONG_KEYS), width=80)


def ids_shown(ids: list[str], *, verbose: bool = False) -> list[str]:
    """Return the attempts in `neve jobs`, the requests in its sibling, and those in reasons."""
    running = [replace(job_view(RUNNING), attempt=name) for name in ids]
    requested = [replace(REQUEST, id=name.replace("att-", "req-")) for name in ids]
    split = [replace(OPERATION, id=name.replace("att-", "op-")) for name in ids]
    tables = [
        jobs.render_jobs(running, STARTED_S, KEYS, verbose=verbose),
        requests.render_requests(requested, verbose=verbose),
        tablets.render_operations(split, "events", KEYS, verbose=verbose),
    ]
    firsts = [[line.split()[0] for line in text_of(table).splitlines()[1:]] for table in tables]
    assert [[name.split("-")[1] for name in column] for column in firsts[1:]] == [
        [name.split("-")[1] for name in firsts[0]]
    ] * 2
    return firsts[0]


def test_ids_are_short_but_unique_unless_verbose() -> None:
    apart = ["att-0123456789abcdef0123", "att-1123456789abcdef0123"]
    alike = ["att-0123456789abcdef0123", "att-0123456789fbcdef0123"]

    assert ids_shown(apart) == ["att-01234567", "att-11234567"]
    assert ids_shown(alike) == ["att-0123456789a", "att-0123456789f"]
    assert ids_shown(alike, verbose=True) == alike
    assert [whole_id(name, alike, "job") for name in ids_shown(alike)] == alike


def test_a_short_id_stands_in_a_reason_but_not_in_a_path() -> None:
    left = {f"_neve/job-1-{LONG_ID}.parquet": f"being merged by {LONG_ID}"}
    shown = text_of(planning.render_plan(api.Plan(left=left), LONG_KEYS))

    assert f"_neve/job-1-{LONG_ID}.parquet" in shown
    assert shown.endswith("being merged by att-01234567")
    whole = text_of(planning.render_plan(api.Plan(left=left), LONG_KEYS, verbose=True))
    assert whole.endswith(f"being merged by {LONG_ID}")


def test_tablets_are_shown_by_their_keys() -> None:
    parts = replace(TABLE, name="parts", partition_by=("day", "kind"), schema=DAYS)
    keyless = replace(TABLE, name="bag", key=())
    keys = KnownTables(lambda: [TABLE, parts, keyless])
    day = encode_key([20000, None], [KeyType.DATE, KeyType.STRING]).hex()

    assert keys("events", TABLET_ID) == "to [100]"
    assert keys("events", "last") == "to +inf"
    assert keys("parts", day) == "day=2024-10-04/kind=null"
    assert keys("bag", "last") == "all keys"
    assert keys("events", "01ff") == "01ff", "the bytes are no key of this table"
    assert keys("gone", TABLET_ID) == TABLET_ID


DAYS = (
    api.Column(name="day", type="date32"),
    api.Column(name="kind", type="string"),
)


def test_status_says_that_the_first_scan_goes_on() -> None:
    scanning = replace(STATUS, tables=3, tablets_known=0, tables_unscanned=2)
    text = text_of(service.render_status(scanning))
    assert "0 so far: the first scan since the start is running, 2 of 3 tables left" in text
    assert "so far" not in text_of(service.render_status(STATUS))


WINDOW = api.Window(
    kind="table",
    name="trips",
    windows="0 22 * * * for 8h in Europe/Berlin",
    is_open=False,
    opens_s=75_600.0,
    opens_text="1970-01-01 22:00 (Europe/Berlin)",
)


def test_status_names_the_next_opening_of_windows_and_what_their_budgets_have_left() -> None:
    opened = replace(
        WINDOW,
        is_open=True,
        closes_s=104_400.0,
        used_bytes=3 * 1024**2,
        bytes_max=1024**3,
        used_cost_s=60.0,
        cost_max_s=600.0,
    )
    assert service.window_text(WINDOW) == (
        "table trips: closed, opens at 1970-01-01 22:00 (Europe/Berlin)"
        " (0 22 * * * for 8h in Europe/Berlin)"
    )
    assert service.window_text(opened) == (
        "table trips: open until 1970-01-02 05:00:00 UTC (0 22 * * * for 8h in Europe/Berlin);"
        " started: 3.0 MiB of 1.0 GiB, 1 m 00 s of 10 m 00 s of slots"
    )
    text = " ".join(text_of(service.render_status(replace(STATUS, windows=(WINDOW,)))).split())
    assert "window table trips: closed, opens at 1970-01-01 22:00 (Europe/Berlin)" in text


def test_a_plan_says_what_its_jobs_wait_for() -> None:
    plan = api.Plan(waits=("system jobs wait for the window of table trips",))
    assert "wait for the window of table trips" in text_of(planning.render_plan(plan, KEYS))
