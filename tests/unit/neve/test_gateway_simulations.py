"""`POST /v1/simulations`: days of compaction in a process of its own, with the caller's rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from common import errors
from neve import api
from neve.client import Client
from neve.client.errors import CallerError, NotFoundError, QuotaError
from neve.console.pages.what_if import CURVES, comparison, simulation_body
from neve.gateway import planning
from neve.gateway.planning import NO_COMPACTORS
from tests.support.console import HIDDEN, SEEN, Callers, callers

KEYED = pa.schema([("x", pa.int64()), ("v", pa.int64())])
SMALL = """
[simulation]
days = 0.1

[[table]]
name = "events"

[table.arrivals]
every = "5m"

[[variant]]
name = "three"
settings = { ratio = 3 }

[[variant]]
name = "two"
settings = { ratio = 2 }
"""


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    folder = tmp_path_factory.mktemp("simulations")
    with callers(folder) as door:
        with door.gateway.client() as client:
            for name in (HIDDEN, SEEN):
                for x in (1, 2, 3):
                    client.append(name, pa.table({"x": [x]}))
        yield door


def client_of(door: Callers, name: str) -> Client:
    return door.gateway.client(door.tokens[name])


def test_the_variants_of_a_specification_are_simulated(door: Callers) -> None:
    with client_of(door, "read") as client:
        simulation = client.simulate(SMALL, seed=7)
        assert simulation == client.simulate(SMALL, seed=7)

    assert simulation.text.startswith("2 variants, 0.1 days, ")
    assert [variant.name for variant in simulation.variants] == ["three", "two"]
    assert simulation.columns[0] == "write"
    three, two = (float(variant.figures[0]) for variant in simulation.variants)
    assert 0 < three < two
    for variant in simulation.variants:
        assert len(variant.figures) == len(simulation.columns) == len(simulation.meanings)
        assert len(variant.values) == len(simulation.curves)
        assert {len(values) for values in variant.values} == {len(variant.times_s)}
    assert simulation.notes == ()


def test_a_table_is_simulated_as_it_is_and_with_another_planner(door: Callers) -> None:
    with client_of(door, "read") as client:
        simulation = client.simulate(
            table=SEEN, planners=["size-tiered"], settings={"max_files": "20"}, days=0.1
        )
        assert [variant.name for variant in simulation.variants] == [
            "bin-pack (as it is)",
            "size-tiered max_files=20",
        ]
        assert simulation.notes == ()


def test_a_caller_simulates_its_own_tables_only(door: Callers) -> None:
    with client_of(door, "other-read") as client:
        assert client.simulate(table=SEEN, days=0.1).notes == (NO_COMPACTORS,)
        with pytest.raises(NotFoundError, match=HIDDEN):
            client.simulate(table=HIDDEN, days=0.1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "give either a specification or a table"),
        ({"specification": SMALL, "table": SEEN}, "give either a specification or a table"),
        ({"specification": "days ="}, "the specification is not TOML"),
        ({"specification": "[[table]]\nname = 'a'\nfiles = '/etc/passwd'"}, "expected no file"),
        ({"specification": SMALL, "days": 500}, "simulation.days is 500"),
        ({"specification": SMALL, "planners": ["no-such"]}, "'no-such' is not installed"),
        ({"table": SEEN, "settings": {"rati": "3"}}, "rati"),
    ],
)
def test_a_wrong_order_is_refused(given: dict[str, Any], reason: str, door: Callers) -> None:
    with client_of(door, "read") as client, pytest.raises(CallerError, match=reason):
        client.simulate(**given)


def test_a_simulation_is_bounded(door: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    long = SMALL.replace("0.1", "300").replace('"5m"', '"2s"')
    with client_of(door, "read") as client:
        monkeypatch.setattr(planning, "SIMULATION_CPU_S", 2)
        with pytest.raises(CallerError, match="needs more than 2 s of processor time"):
            client.simulate(long)
        monkeypatch.setattr(planning, "SIMULATED_FILES_MAX", 2)
        with pytest.raises(CallerError, match="more than 2 files"):
            client.simulate(table=SEEN)
        monkeypatch.setattr(planning, "SIMULATION_MAX_S", 0.05)
        with pytest.raises(CallerError, match="takes longer than"):
            client.simulate(SMALL)


def test_one_simulation_runs_at_a_time(door: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    loop: list[asyncio.AbstractEventLoop] = []

    async def held(order: bytes) -> api.Simulation:
        loop.append(asyncio.get_running_loop())
        begun.set()
        await may_end.wait()
        raise errors.RequestError("ended")

    monkeypatch.setattr(planning, "_simulated", held)
    with client_of(door, "read") as first, client_of(door, "admin") as second:
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(first.simulate, SMALL)
            while not begun.is_set():
                assert not running.done(), running.result()
            with pytest.raises(QuotaError, match="another simulation is running"):
                second.simulate(SMALL)
            loop[0].call_soon_threadsafe(may_end.set)
            with pytest.raises(CallerError):
                running.result()
        may_end.set()
        with pytest.raises(CallerError, match="ended"):
            second.simulate(SMALL)


# ------------------------------------------------------------------------------------- The console


def variant(name: str, times_s: list[float], values: list[float]) -> dict[str, Any]:
    return {
        "name": name,
        "figures": ["1.00"],
        "compactor_hours": 3.0,
        "at_rest": name == "a",
        "times_s": times_s,
        "values": [values],
    }


ANSWER = {
    "text": "2 variants",
    "columns": ["write"],
    "meanings": ["bytes"],
    "variants": [
        variant("a", [0.0, 10.0, 20.0], [1.0, 2.0, 3.0]),
        variant("b", [0.0, 15.0], [4.0, 5.0]),
    ],
    "curves": [{"name": "backlog", "title": "Backlog", "meaning": "Bytes.", "unit": "bytes"}],
    "notes": [],
    "hour_price": 0.5,
    "currency": "EUR",
}


def test_variants_are_drawn_over_the_times_of_the_longest() -> None:
    compared = comparison(ANSWER)

    assert compared.columns == [("write", "bytes"), ("cost", "of compactors, at 0.5 EUR an hour")]
    assert compared.rows == [("a", ["1.00", "1.50 EUR"]), ("b", ["1.00", "1.50 EUR"])]
    assert compared.unfinished == ["b"]
    ((plot, meaning),) = compared.plots
    assert meaning == "Bytes."
    assert "&#34;y&#34;:[1.0,2.0,3.0]" in plot
    assert "&#34;y&#34;:[4.0,4.0,null]" in plot
    assert comparison({**ANSWER, "hour_price": 0.0}).rows == [("a", ["1.00"]), ("b", ["1.00"])]


def test_a_form_becomes_a_call() -> None:
    form = {
        "kind": "table",
        "table": " events ",
        "planners": "leveled, size-tiered,",
        "settings": "ratio=2, max_files = 20",
        "days": "0.5",
        "specification": "unused",
    }
    assert simulation_body(form) == {
        "table": "events",
        "planners": ["leveled", "size-tiered"],
        "settings": {"ratio": "2", "max_files": "20"},
        "days": 0.5,
    }
    assert simulation_body({**form, "days": ""}).keys() == {"table", "planners", "settings"}
    assert simulation_body({**form, "days": "x"})["days"] == "x"
    assert simulation_body({**form, "kind": "specification", "specification": "a\r\nb"}) == {
        "specification": "a\nb"
    }


def test_the_page_simulates_for_its_caller(door: Callers) -> None:
    with door.browser("other-read") as browser:
        page = browser.page("/console/what-if?table=other-1")
        assert 'name="table" value="other-1"' in page
        assert HIDDEN not in page
        fields = {"csrf": browser.csrf(), "kind": "specification", "specification": SMALL}
        shown = browser.post("/console/what-if", data=fields).text
        assert "2 variants, 0.1 days" in shown
        assert all(f'id="what-if-{name}"' in shown for name in CURVES)
        fields |= {"kind": "table", "table": HIDDEN}
        assert (
            "no table is named &#39;users&#39;"
            in browser.post("/console/what-if", data=fields).text
        )
