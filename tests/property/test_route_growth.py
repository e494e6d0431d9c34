"""No request takes more time than its length explains: each list, mapping and text of each route.

The routes are those that the gateway describes, so a new one is held to the same. Four times as
much may take four times as long; quadratic work would take sixteen times. A request beyond a bound
is refused at once, and that counts as well.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
from fastapi.routing import APIRoute

from neve.gateway.bodies import JsonRoute
from neve.gateway.server import create_app
from tests.support.gateway import TOKEN, serving
from tests.support.route_growth import Growth, growths

LIST_SIZE, TEXT_SIZE = 2_500, 10_000
TIMES, ROUNDS = 4, 3
RATIO_MAX = 9.0
FREE_S = 0.3
"""What takes less is quick enough; an add of 10,000 files takes most of it."""
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
NAMES = {"table": "events", "group": "default", "volume": "disk-1", "tablet": "last"}


@contextmanager
def site(folder: Path) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with serving() as gateway, gateway.client() as client:
        client.create_table("events", str(folder), schema=SCHEMA, key=["id"], version_column="v")
        client.append("events", [{"id": 1, "v": 1, "s": "x"}])
        # Objects of earlier tests are not searched for garbage during a request of many objects.
        gc.collect()
        gc.freeze()
        with httpx.Client(base_url=gateway.url, headers=headers, timeout=120) as caller:
            yield caller


def least_s(caller: httpx.Client, growth: Growth, count: int) -> float:
    """Return the processor time of a request, the caller's own included."""
    target, body = growth.request(count)
    least_s = float("inf")
    for _ in range(ROUNDS):
        begun_s = time.process_time()  # However many others want the processor.
        try:
            answer = caller.request(growth.method, target, content=body)
        except httpx.TransportError:  # Refused by its size, and closed before all of it was sent.
            answer = httpx.Response(413)
        least_s = min(least_s, time.process_time() - begun_s)
        assert answer.status_code < 500, (growth, count, answer.text[:400])
        assert answer.status_code < 400 or len(answer.content) < 20_000, (growth, count)
        if least_s < FREE_S:
            break
    return least_s


def test_work_grows_as_the_request_does(tmp_path: Path) -> None:
    with site(tmp_path) as caller:
        found = list(growths(caller.get("/openapi.json").json(), NAMES))
        for growth in found:
            size = TEXT_SIZE if growth.is_text else LIST_SIZE
            short_s, long_s = (least_s(caller, growth, count) for count in (size, TIMES * size))
            assert long_s < max(short_s * RATIO_MAX, FREE_S), (growth, short_s, long_s)
    assert {"body.paths (the last one twice)", "query.after", "body.tables (entries)"} <= {
        each.where for each in found
    }


def test_every_route_reads_json_within_the_bounds() -> None:
    with serving() as gateway:
        routes = [route for route in create_app(gateway.services).routes if _has_body(route)]
    assert routes
    assert [route.path for route in routes if not isinstance(route, JsonRoute)] == []


def _has_body(route: object) -> bool:
    return isinstance(route, APIRoute) and route.body_field is not None
