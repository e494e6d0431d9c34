"""Every route refuses everybody who has not its right: the table of the code, through HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from neve.api import ARCHIVE, ARROW_STREAM, Column
from neve.client import Client
from neve.client.errors import ForbiddenError, NotFoundError
from neve.gateway.access.callers import (
    INCLUDED,
    OPEN,
    READ_ALL,
    GuardedRoute,
    Reach,
    Role,
    RouteRight,
    guard_routes,
    route,
)
from neve.gateway.access.tokens import TokenFile
from neve.gateway.server import create_app
from tests.support.console import CONSOLE_ROUTES
from tests.support.gateway import QUEUED, RUNNING, TOKEN, Gateway, serving
from tests.support.gateway_pages import ROUTE_RIGHTS

PATH = {
    "table": "users",
    "call": "019513d5-6c00-7000-8000-000000000000",
    "request": "req-1",
    "operation": "op-1",
    "attempt": "att-9",
    "job": "job-9",
    "compactor": "local-9",
    "group": "default",
    "volume": "default",
}
BODIES: Mapping[str, object] = {
    "POST /v1/tables": {"name": "fresh", "location": "/nowhere"},
    "PATCH /v1/tables/{table}": {},
    "POST /v1/tables/{table}/files": {"paths": ["a.parquet"]},
    "POST /v1/import": {"location": "/nowhere", "name": "fresh"},
    "POST /v1/tables/{table}/compactions": {"delete_where": "x = 1"},
    "POST /v1/tables/{table}/compactions/{request}/cancel": {},
    "POST /v1/tables/{table}/split": {},
    "POST /v1/tables/{table}/merge": {},
    "PUT /v1/groups/{group}/scale": {"compactors": 1},
    "PUT /v1/groups/{group}/limit": {"limit": "1MB"},
    "PUT /v1/volumes/{volume}/limit": {"limit": "1MB"},
    "POST /v1/tables/{table}/reads": {"tablets": {}},
    "POST /v1/tables/{table}/fsck": {},
    "POST /v1/rebuild": {"location": "/nowhere", "name": "fresh"},
    "POST /v1/backup": {},
}
"""Bodies that have the right form, so that nothing but the right can refuse them."""
TYPES = {
    "POST /v1/tables/{table}/append": ARROW_STREAM,
    "POST /v1/restore": ARCHIVE,
}
QUERIES = {
    "GET /v1/tables/{table}/story": {"tablet": "last"},
    "POST /v1/tables/{table}/lower-watermark": {"tablet": "last"},
}
GUARDED = {name: right for name, right in ROUTE_RIGHTS.items() if right.role is not None}
OF_TABLE = sorted(name for name, right in GUARDED.items() if right.reach is Reach.TABLE)
OF_SERVICE = sorted(name for name, right in GUARDED.items() if right.reach is Reach.SERVICE)


@dataclass
class Door:
    """A gateway with a table, and a token for each role, on all tables and on others only."""

    gateway: Gateway
    tokens: Mapping[str, str]
    http: httpx.Client

    def answer(self, name: str, token: str | None, table: str = "users") -> httpx.Response:
        method, _, pattern = name.partition(" ")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if kind := TYPES.get(name):
            headers["Content-Type"] = kind
        return self.http.request(
            method,
            pattern.format(**{**PATH, "table": table}),
            params=QUERIES.get(name),
            json=BODIES.get(name),
            headers=headers,
        )

    def client(self, name: str) -> Client:
        return self.gateway.client(self.tokens[name])


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("rights")
    file = TokenFile(folder / "tokens.json")
    tokens = {}
    for role in Role:
        for name, pattern in ((role.value, "*"), (f"other-{role.value}", "other-*")):
            grants = [f"{role.value}:{pattern}"]
            tokens[name] = file.create(name, grants, now_s=0.0, life_s=None)[1]
    both = ["compact:users", "write:users"]
    tokens["both"] = file.create("both", both, now_s=0.0, life_s=None)[1]
    access = {"tokens_file": str(file.path)}
    with (
        serving(access=access) as gateway,
        gateway.client() as client,
        httpx.Client(base_url=gateway.url) as http,
    ):
        for table in ("users", "other-1"):
            (folder / table).mkdir()
            client.create_table(table, str(folder / table), schema=[Column(name="x", type="int64")])
        yield Door(gateway, tokens, http)


def test_every_route_of_the_application_has_a_right(door: Door) -> None:
    app = create_app(door.gateway.services)
    names = [
        f"{method} {each.path}" for each in app.router.routes for method in each.methods - {"HEAD"}
    ]
    api_names = [name for name in names if "/console" not in name or "/v1/" in name]
    assert sorted(api_names) == sorted(ROUTE_RIGHTS)
    # `test_console.py` sends them with every role.
    assert sorted(set(names) - set(api_names)) == sorted(CONSOLE_ROUTES)


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_a_route_refuses_every_role_that_may_not(name: str, door: Door) -> None:
    right = GUARDED[name]
    assert right.role is not None
    for role in Role:
        if right.role not in INCLUDED[role]:
            assert door.answer(name, door.tokens[role.value]).status_code == 403, role


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_a_route_wants_a_token(name: str, door: Door) -> None:
    assert door.answer(name, None).status_code == 401
    assert door.answer(name, "neve_wrong").status_code == 401


def test_every_change_is_noted_before_it_is_made(tmp_path: Path) -> None:
    """Whatever a route checks first: an outcome without a first line could be lost."""
    file = tmp_path / "audit.jsonl"
    with (
        serving(access={"audit_file": str(file)}) as gateway,
        gateway.client() as client,
        httpx.Client(base_url=gateway.url) as http,
    ):
        (tmp_path / "users").mkdir()
        schema = [Column(name="x", type="int64")]
        client.create_table("users", str(tmp_path / "users"), schema=schema)
        door = Door(gateway, {}, http)
        changes = sorted(name for name in GUARDED if not name.startswith("GET "))
        drop = "DELETE /v1/tables/{table}"
        for name in (*(name for name in changes if name != drop), drop):
            door.answer(name, TOKEN)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = http.post(f"/v1/jobs/{RUNNING.attempt}/cancel", headers=headers)
        assert answer.status_code == 202, answer.text
    outcomes: dict[str, list[str]] = {}
    for line in map(json.loads, file.read_text().splitlines()):
        outcomes.setdefault(line["id"], []).append(line["outcome"])
    refused = (tmp_path / "audit-refused.jsonl").read_text().splitlines()
    assert {each[0] for each in outcomes.values()} == {"begun"}
    assert {json.loads(line)["outcome"] for line in refused} == {"refused"}
    assert sum(each[-1] == "done" for each in outcomes.values()) > len(changes) / 3


@pytest.mark.parametrize("name", sorted(set(ROUTE_RIGHTS) - set(GUARDED)))
def test_an_open_route_wants_none(name: str, door: Door) -> None:
    assert door.answer(name, None).status_code == 200


@pytest.mark.parametrize("name", OF_TABLE)
def test_a_hidden_table_is_answered_like_none(name: str, door: Door) -> None:
    for role in Role:
        if GUARDED[name].role not in INCLUDED[role]:
            continue
        token = door.tokens[f"other-{role.value}"]
        hidden, none = door.answer(name, token), door.answer(name, token, "xxxxx")

        assert hidden.status_code == none.status_code == 404
        assert hidden.text == none.text.replace("xxxxx", "users")
        assert "other-1" in hidden.text, "the hint names what the caller may see"


@pytest.mark.parametrize("name", OF_TABLE)
def test_a_table_is_open_to_whom_the_table_says(name: str, door: Door) -> None:
    role = GUARDED[name].role
    assert role is not None
    if name == "DELETE /v1/tables/{table}":
        return
    token = door.tokens["both" if role is not Role.ADMIN else "admin"]
    answer = door.answer(name, token)

    assert answer.status_code not in (401, 403), answer.text
    assert "no table is named" not in answer.text


@pytest.mark.parametrize("name", OF_SERVICE)
def test_the_service_needs_a_grant_on_all_tables(name: str, door: Door) -> None:
    assert door.answer(name, door.tokens["other-admin"]).status_code == 403


def test_a_listing_has_only_what_may_be_seen(door: Door) -> None:
    with door.client("other-read") as narrow, door.client("read") as whole:
        assert [table.name for table in narrow.tables()] == ["other-1"]
        assert [table.name for table in whole.tables()] == ["other-1", "users"]
        # The job, the queue and the backlog of the coordinator are about `events`.
        assert [job.table for job in whole.jobs()] == ["events"]
        assert [each.table for each in whole.queue()] == ["events"]
        assert [table.table for table in whole.activity()] == ["events"]
        assert [*narrow.jobs(), *narrow.queue(), *narrow.backlog(), *narrow.activity()] == []


def test_a_report_about_a_hidden_table_is_refused(door: Door) -> None:
    report = {"tables": {"users": {"latency_s": 0.1, "reads": 1}}}
    statuses = [
        door.http.post(
            "/v1/reads", json=report, headers={"Authorization": f"Bearer {door.tokens[name]}"}
        ).status_code
        for name in ("other-read", "read")
    ]
    assert statuses == [404, 202]


def test_a_job_of_a_hidden_table_cannot_be_cancelled(door: Door) -> None:
    path = f"/v1/jobs/{RUNNING.attempt}/cancel"
    assert door.answer(f"POST {path}", door.tokens["other-compact"]).status_code == 404
    assert door.answer(f"POST {path}", door.tokens["other-read"]).status_code == 403
    assert ("cancel", RUNNING.attempt) not in door.gateway.coordinator.told
    assert door.answer(f"POST {path}", door.tokens["compact"]).status_code == 202
    assert ("cancel", RUNNING.attempt) in door.gateway.coordinator.told


@pytest.mark.parametrize(
    ("call", "noted"),
    [
        ("DELETE /v1/queue/{job}", "cancel_queued"),
        ("POST /v1/queue/{job}/pause", "pause_job"),
        ("POST /v1/queue/{job}/resume", "resume_job"),
    ],
)
def test_a_queued_job_of_a_hidden_table_cannot_be_changed(
    call: str, noted: str, door: Door
) -> None:
    job = QUEUED.job.id
    path = call.replace("{job}", job)
    assert door.answer(path, door.tokens["other-compact"]).status_code == 404
    assert door.answer(path, door.tokens["other-read"]).status_code == 403
    assert door.answer(path, door.tokens["read"]).status_code == 403
    assert (noted, job) not in door.gateway.coordinator.told
    assert door.answer(path, door.tokens["compact"]).status_code == 202
    assert (noted, job) in door.gateway.coordinator.told


def test_the_id_of_a_table_goes_round_no_pattern(door: Door) -> None:
    with door.gateway.client() as client:
        table_id = client.describe("users").id
    grants = [f"read:{table_id[:1]}*", "admin:other-*"]
    # A pattern that matches the id, and not the name.
    assert not "users".startswith(table_id[:1])
    file = TokenFile(Path(door.gateway.services.settings.access.tokens_file))
    _, token = file.create("sly", grants, now_s=0.0, life_s=None)
    named = door.answer("GET /v1/tables/{table}", token, table_id)
    while named.status_code == 401:  # It is looked once a second whether the file has changed.
        named = door.answer("GET /v1/tables/{table}", token, table_id)

    assert named.status_code in (400, 404)


def test_a_compaction_that_changes_rows_is_a_write(door: Door) -> None:
    with door.client("compact") as compact:
        with pytest.raises(ForbiddenError, match="no right to write on table 'users'"):
            compact.compact("users", delete_where="x = 1")
        with pytest.raises(ForbiddenError, match="no right to write on table 'users'"):
            compact.compact("users", set="x = 2")
    answer = door.answer("POST /v1/tables/{table}/compactions", door.tokens["both"])
    assert answer.status_code != 403


def test_a_refusal_is_a_problem_with_its_class(door: Door) -> None:
    with door.client("read") as reader, pytest.raises(ForbiddenError) as refused:
        reader.pause("users")

    assert refused.value.status == 403
    assert refused.value.error == "ForbiddenError"
    with door.client("other-read") as narrow, pytest.raises(NotFoundError):
        narrow.describe("users")


def test_the_token_of_the_settings_may_everything(door: Door) -> None:
    for name in OF_SERVICE:
        if name.startswith("GET"):
            assert door.answer(name, TOKEN).status_code == 200


async def nothing(_: object) -> None:
    """Serve nobody."""


def test_a_route_without_a_right_keeps_the_gateway_from_starting() -> None:
    app = Starlette(routes=[Route("/v1/new", nothing, methods=["GET"])])
    with pytest.raises(AssertionError, match="route /v1/new has no right"):
        guard_routes(app.routes)


@pytest.mark.parametrize(("path", "right"), [("/v1/new", OPEN), ("/healthz", READ_ALL)])
def test_public_routes_are_the_listed_ones(path: str, right: RouteRight) -> None:
    handler = route(f"GET {path}", right)(nothing)
    with pytest.raises(AssertionError, match=f"route {path}: see OPEN_PATHS"):
        guard_routes([Route(path, handler, methods=["GET"])])
    del nothing.declared


def test_answers_forbid_browsers_what_they_must_not_do(door: Door) -> None:
    page = door.answer("GET /docs", None)
    policy = page.headers["Content-Security-Policy"]
    script = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in script]

    assert digests
    assert all(f"'sha256-{digest}'" in policy for digest in digests)
    assert "unsafe" not in policy
    assert "style=" not in page.text, "a policy with digests lets no attribute through"
    for answer in (page, door.answer("GET /v1/tables", None), door.answer("GET /healthz", None)):
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert "Strict-Transport-Security" not in answer.headers, "it is plain HTTP"


def test_a_route_that_nothing_stands_in_front_of_serves_nobody() -> None:
    async def served(*_: object) -> None:
        raise NotImplementedError

    guarded = GuardedRoute(served, RouteRight(Role.READ, Reach.SERVICE))
    with pytest.raises(AssertionError, match="nothing stands in front of"):
        asyncio.run(guarded({"type": "http"}, served, served))  # type: ignore[arg-type]  # never called
