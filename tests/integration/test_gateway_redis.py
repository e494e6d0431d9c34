"""The gateway over a real Redis: many writers, lost answers, a store that goes away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.metadata.redis import connect
from common.settings import StoreSettings
from neve.client import Client
from neve.client.errors import (
    NeveError,
    RefusedError,
    UnavailableError,
)
from neve.client.http import Connection, new_call
from neve.local.supervisor import ask_actors
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer, executable, running

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
pytestmark = pytest.mark.skipif(executable() is None, reason="no redis-server on this machine")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(redis: RedisServer) -> Iterator[Gateway]:
    with serving(connect(StoreSettings(url=redis.url, timeout_s=2.0))) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        made.create_table(
            "events",
            str(tmp_path),
            schema=SCHEMA,
            key=["id"],
            version_column="v",
            splits=["100", "200"],
        )
        yield made
        made.drop("events")


def rows(*ids: int, v: int = 1) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=SCHEMA)


class LosesAnswers(httpx.BaseTransport):
    """Sends each request and loses the first answer to it."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._inner.handle_request(request)
        if self.lost == 0:
            self.lost += 1
            answer.read()
            raise httpx.RemoteProtocolError("the answer was lost", request=request)
        return answer


def forgetful(gateway: Gateway) -> Client:
    client = gateway.client()
    client._connection = Connection(gateway.url, TOKEN, transport=LosesAnswers())
    return client


def test_rows_survive_every_door(client: Client, tmp_path: Path) -> None:
    pq.write_table(rows(1, 2), tmp_path / "a.parquet")

    client.add_files("events", ["a.parquet"])
    client.append("events", rows(2, 150, 250, v=2))

    assert client.scan("events").to_pydict() == {"id": [1, 2, 150, 250], "v": [1, 2, 2, 2]}
    assert client.describe("events").files == 4
    assert client.set("events", {"ratio": 5}).settings_version == 2


def test_a_lost_answer_changes_nothing(gateway: Gateway, client: Client, tmp_path: Path) -> None:
    pq.write_table(rows(1), tmp_path / "a.parquet")

    forgetful(gateway).add_files("events", ["a.parquet"])
    forgetful(gateway).append("events", rows(150, 250))

    assert client.describe("events").rows == 3
    assert len(list(tmp_path.glob("_neve/append/*.parquet"))) == 2


def test_many_writers_lose_no_row(gateway: Gateway, client: Client) -> None:
    def write(number: int) -> None:
        with gateway.client() as mine:
            for step in range(5):
                mine.append("events", rows(*range(number, 300, 7), v=step + 1))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))

    assert client.count("events") == len({i for n in range(6) for i in range(n, 300, 7)})
    assert set(client.scan("events", ["v"]).column("v").to_pylist()) == {5}


def test_one_call_sent_by_many_counts_once(gateway: Gateway, client: Client) -> None:
    call = new_call()

    def write(_: int) -> None:
        with gateway.client() as mine:
            mine.append("events", rows(1, 150), call=call)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))

    assert client.describe("events").rows == 2
    assert client.count("events") == 2


def test_one_name_is_given_to_one_of_many(gateway: Gateway, tmp_path: Path) -> None:
    def make(number: int) -> bool:
        with gateway.client() as mine:
            try:
                mine.create_table("contested", str(tmp_path / str(number)), schema=SCHEMA)
            except RefusedError:
                return False
            return True

    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(make, range(6)))

    assert made.count(True) == 1
    with gateway.client() as client:
        client.append("contested", rows(1))
        client.drop("contested")


def until_told(gateway: Gateway) -> None:
    """Return when whoever asks is told that Redis does not answer, and since when."""
    end_s = time.monotonic() + PATIENCE_S
    while (answer := httpx.get(f"{gateway.url}/readyz", timeout=PATIENCE_S)).status_code == 200:
        assert time.monotonic() < end_s, "it is still ready"
        time.sleep(0.1)
    assert (answer.status_code, answer.json()["error"]) == (503, "UnavailableError")
    assert "the store has not answered for" in answer.json()["detail"]
    # So a supervisor does not take the coordinator for dead.
    assert ask_actors(gateway.url)["coordinator"].answers is None
    (warning,) = gateway.client().status().errors
    assert warning.startswith("the store (Redis) has not answered for")
    assert "check that it runs and is reachable" in warning


def test_a_store_that_is_frozen_is_told_and_thaws(
    gateway: Gateway, redis: RedisServer, client: Client
) -> None:
    with redis.frozen():
        until_told(gateway)
    end_s = time.monotonic() + PATIENCE_S
    while httpx.get(f"{gateway.url}/readyz", timeout=PATIENCE_S).status_code != 200:
        assert time.monotonic() < end_s, "it is not ready again"
        time.sleep(0.1)
    assert gateway.client().status().errors == ()
    assert client.count("events") == 0


def test_a_store_that_is_away_is_told_and_comes_back(
    gateway: Gateway, redis: RedisServer, client: Client
) -> None:
    client.append("events", rows(1))
    redis.stop()
    try:
        until_told(gateway)
        assert httpx.get(f"{gateway.url}/healthz").status_code == 200
        with pytest.raises(NeveError) as caught:
            Client(gateway.url, token=TOKEN).tables()
        assert isinstance(caught.value, UnavailableError), caught.value
    finally:
        redis.start()
    assert client.count("events") == 1
