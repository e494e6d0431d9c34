"""The share of one caller: by the definition of a bucket, and through HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.metadata.changes import Applied, MoveRequest
from common.model.request import RequestState
from neve.api import CALL_HEADER, Column
from neve.client import Client
from neve.client.errors import CallerError
from neve.client.errors import QuotaError as ClientQuotaError
from neve.client.http import new_call
from neve.gateway.access.quotas import BURST_S, Quotas, Shares, TokenBucket
from neve.gateway.access.tokens import TokenFile
from neve.gateway.problems import QuotaError
from tests.support.gateway import TOKEN, Gateway, serving


@dataclass
class Hand:
    """A clock that is moved by hand."""

    at_s: float = 1000.0

    def now_s(self) -> float:
        return self.at_s


@given(
    rate_s=st.floats(0.1, 1000),
    pauses_s=st.lists(st.floats(0, 2), min_size=1, max_size=200),
)
def test_no_more_passes_than_the_rate_and_a_burst(rate_s: float, pauses_s: list[float]) -> None:
    bucket, now_s, passed = TokenBucket(rate_s, 0.0), 0.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        if not bucket.wait_s(now_s):
            bucket.take(1, now_s)
            passed += 1

    assert passed <= max(1.0, rate_s * BURST_S) + rate_s * now_s + 1e-6


@given(rate_s=st.floats(0.1, 1000), taken=st.floats(0, 10_000))
def test_after_the_wait_something_may_be_taken(rate_s: float, taken: float) -> None:
    bucket = TokenBucket(rate_s, 0.0)
    bucket.take(taken, 0.0)
    wait_s = bucket.wait_s(0.0)

    assert wait_s == 0 or bucket.wait_s(wait_s / 2) > 0
    assert bucket.wait_s(wait_s * 1.0001 + 1e-6) == 0


def test_a_share_is_saved_up_for_some_seconds_only() -> None:
    bucket, passed = TokenBucket(2.0, 0.0), 0
    while not bucket.wait_s(3600.0):
        bucket.take(1, 3600.0)
        passed += 1

    assert passed == 2 * BURST_S


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(1.0, 1000.0)
    bucket.take(BURST_S, 1000.0)
    assert bucket.wait_s(0.0) > 0


def test_no_rate_is_no_limit() -> None:
    bucket = TokenBucket(0.0, 0.0)
    bucket.take(1e9, 0.0)
    assert bucket.wait_s(0.0) == 0


def test_callers_do_not_take_from_each_other() -> None:
    quotas = Quotas(Shares(requests_s=1), Hand())
    for _ in range(int(BURST_S)):
        quotas.admit("one")
    with pytest.raises(QuotaError, match="caller_requests_s") as refused:
        quotas.admit("one")
    assert refused.value.retry_after_s == pytest.approx(1.0)
    quotas.admit("other")


def test_a_body_may_go_over_and_the_next_one_waits() -> None:
    clock = Hand()
    quotas = Quotas(Shares(body_bytes_s=100), clock)
    quotas.received(quotas.admit("one"), 1000)
    with pytest.raises(QuotaError, match="caller_body_bytes_s"):
        quotas.admit("one")
    clock.at_s += 5.5
    quotas.admit("one")


def test_the_memory_is_bounded_whatever_the_number_of_callers() -> None:
    quotas = Quotas(Shares(requests_s=1000), Hand(), callers_max=100)
    for number in range(1000):
        quotas.admit(f"caller-{number}")
        quotas.admit("busy")

    assert len(quotas._uses) == 100
    assert "busy" in quotas._uses


def test_a_place_of_a_scan_is_given_back() -> None:
    quotas = Quotas(Shares(scans_max=1), Hand())
    for _ in range(3):
        with quotas.scan("one"):
            with pytest.raises(QuotaError, match="caller_scans_max"), quotas.scan("one"):
                pass
            with quotas.scan("other"):
                pass


# ------------------------------------------------------------------------------------ Through HTTP


def test_a_caller_who_asks_too_often_is_told_when_to_come_again(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    _, token = file.create("busy", ["read"], now_s=0.0, life_s=None)
    access = {"tokens_file": str(file.path), "caller_requests_s": 0.1}
    with serving(access=access) as gateway, httpx.Client(base_url=gateway.url) as http:
        http.headers["Authorization"] = f"Bearer {token}"
        assert http.get("/v1/tables").status_code == 200
        answer = http.get("/v1/tables")

        assert answer.status_code == 429
        assert answer.json()["error"] == "QuotaError"
        assert 1 <= int(answer.headers["Retry-After"]) <= 10
        assert http.get("/healthz").status_code == 200, "nobody's share"
        other = {"Authorization": f"Bearer {TOKEN}"}
        assert http.get("/v1/tables", headers=other).status_code == 200


def test_bytes_of_bodies_are_counted(tmp_path: Path) -> None:
    with (
        serving(access={"caller_body_bytes_s": 1000}) as gateway,
        httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {TOKEN}"}) as http,
    ):
        body = {"name": "x" * 50_000, "location": str(tmp_path)}
        assert http.post("/v1/tables", json=body).status_code == 422
        assert http.get("/v1/tables").status_code == 429


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway with a table, where each caller may have one scan and two compactions."""
    access = {"caller_scans_max": 1, "caller_compactions_max": 2}
    with serving(access=access) as gateway, impatient(gateway) as client:
        (tmp_path / "events").mkdir()
        client.create_table(
            "events", str(tmp_path / "events"), schema=[Column(name="x", type="int64")]
        )
        yield gateway


def impatient(gateway: Gateway) -> Client:
    """Return a client that asks nothing twice."""
    return Client(gateway.url, token=TOKEN, timeout_s=20, retry_s=0)


def test_a_caller_has_so_many_compactions_that_are_not_finished(limited: Gateway) -> None:
    with impatient(limited) as client:
        first = client.compact("events")
        client.compact("events")
        with pytest.raises(ClientQuotaError, match="caller_compactions_max") as refused:
            client.compact("events")
        assert refused.value.status == 429

        table = client.describe("events").id
        for state in (RequestState.CANCELLING, RequestState.CANCELLED):
            move = MoveRequest(table=table, request=first.id, state=state)
            assert isinstance(limited.ask(limited.store.apply(move)), Applied)
        client.compact("events")
        assert len(client.requests("events")) == 3


def test_a_caller_has_so_many_bytes_of_requests_that_are_not_finished(tmp_path: Path) -> None:
    with (
        serving(access={"caller_request_bytes_max": 20_000}) as gateway,
        impatient(gateway) as client,
    ):
        client.create_table("events", str(tmp_path), schema=[Column(name="x", type="int64")])
        long = {str(number): "x" * 250 for number in range(30)}
        first = client.compact("events", hints=long)
        client.compact("events", hints=long)
        with pytest.raises(ClientQuotaError, match="caller_request_bytes_max"):
            client.compact("events", hints=long)
        table = client.describe("events").id
        for state in (RequestState.CANCELLING, RequestState.CANCELLED):
            move = MoveRequest(table=table, request=first.id, state=state)
            assert isinstance(gateway.ask(gateway.store.apply(move)), Applied)
        client.compact("events", hints=long)


def test_a_request_has_a_bound_in_bytes(tmp_path: Path) -> None:
    with serving() as gateway, impatient(gateway) as client:
        client.create_table("events", str(tmp_path), schema=[Column(name="s", type="string")])
        with pytest.raises(CallerError, match="expected at most 32768"):
            client.compact("events", delete_where="s = '" + "\U0001d11e" * 9_000 + "'")


def test_the_same_call_again_is_no_further_compaction(limited: Gateway) -> None:
    calls = [new_call(), new_call()]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    statuses = []
    with httpx.Client(base_url=limited.url, headers=headers) as http:
        for call in [*calls, *calls]:
            answer = http.post(
                "/v1/tables/events/compactions", json={}, headers={CALL_HEADER: call}
            )
            statuses.append(answer.status_code)
    assert statuses == [202] * 4


def test_a_caller_reads_so_many_scans(limited: Gateway) -> None:
    with impatient(limited) as client:
        with limited.services.quotas.scan("gateway.token"):
            with pytest.raises(ClientQuotaError, match="caller_scans_max"):
                client.count("events")
            with pytest.raises(ClientQuotaError, match="caller_scans_max"):
                client.scan("events")
        assert client.count("events") == 0
