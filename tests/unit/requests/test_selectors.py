"""The built-in selectors: what they choose, and which options they refuse."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import RequestError
from common.model.file import FAULTY_LAYOUT, DataFile
from common.model.table import Table, TableSettings
from common.plugins import SELECTORS, load_selector
from common.spi.planner import SelectorParameters
from tests.support.planning import TABLET

pytestmark = pytest.mark.unit
CASES = json.loads((Path(__file__).parents[2] / "data" / "accumulo_selectors.json").read_text())
TABLE = Table(
    id="t1",
    name="events",
    location="file:///x",
    schema=(),
    schema_id=1,
    settings=TableSettings(ttl_s=100),
)
NOW_S = 1000.0


def file(path: str, **facts: Any) -> DataFile:
    given: dict[str, Any] = {"size_bytes": 10, "rows": 10} | facts
    return DataFile(path=path, **given)


FILES = (
    file("a/one.parquet", size_bytes=10, added_at_s=NOW_S - 100, time_min_s=0, time_max_s=800),
    file("a/two.parquet", size_bytes=2048, added_at_s=NOW_S - 10, time_min_s=850, time_max_s=950),
    file("b/two.parquet", size_bytes=4096, added_at_s=NOW_S, schema_id=1, time_min_s=950.0),
)
LAID_OUT = (*FILES, file("c/six.parquet", tags=(("late", "true"), FAULTY_LAYOUT)))


def choose(name: str, files: tuple[DataFile, ...] = FILES, **options: str) -> list[str]:
    selector = load_selector(name)
    selector.check(options)
    parameters = SelectorParameters(
        tablet=TABLET, table=TABLE, files=files, options=options, now_s=NOW_S
    )
    chosen = selector.select(parameters)
    assert chosen.reason
    return [path.removesuffix(".parquet") for path in chosen.files]


@pytest.mark.parametrize(
    ("name", "options", "chosen"),
    [
        ("all", {}, ["a/one", "a/two", "b/two"]),
        ("all", {"min_files": "4"}, []),
        ("name", {"pattern": "two*"}, ["a/two", "b/two"]),
        ("name", {"path": "a/*"}, ["a/one", "a/two"]),
        ("name", {"path": "a/*", "pattern": "two.*"}, ["a/two"]),
        ("size", {"smaller_than": "4K"}, ["a/one", "a/two"]),
        ("size", {"larger_than": "2K"}, ["b/two"]),
        ("size", {"larger_than": "10", "smaller_than": "4096"}, ["a/two"]),
        ("age", {"older_than": "10s"}, ["a/one"]),
        ("age", {"younger_than": "100s"}, ["a/two", "b/two"]),
        ("age", {"younger_than": "100s", "min_files": "3"}, []),
        ("expired", {}, ["a/one", "a/two"]),
        ("expired", {"ratio": "0.51"}, ["a/one"]),
        ("schema", {}, ["a/one", "a/two"]),
    ],
)
def test_each_selector_chooses_the_expected_files(
    name: str, options: Mapping[str, str], chosen: list[str]
) -> None:
    assert choose(name, **options) == chosen


def test_the_layout_selector_chooses_tagged_files() -> None:
    assert choose("layout", LAID_OUT) == ["c/six"]
    assert choose("layout", LAID_OUT, min_files="2") == []
    assert choose("layout") == []


@pytest.mark.parametrize("case", CASES["too_many_deletes"], ids=str)
def test_the_deletes_selector_follows_accumulo(case: Mapping[str, Any]) -> None:
    rows = case["puts"] + case["deletes"]
    halves = (
        file("f1", rows=rows // 2, tombstones=case["deletes"] // 2),
        file("f2", rows=rows - rows // 2, tombstones=case["deletes"] - case["deletes"] // 2),
    )
    chosen = choose("deletes", halves, threshold=str(case["threshold"]))
    assert chosen == (["f1", "f2"] if case["select_all"] else [])


def test_tombstones_alone_are_too_many() -> None:
    assert choose("deletes", (file("f1", rows=3, tombstones=3),)) == ["f1"]


@pytest.mark.parametrize("name", SELECTORS.names())
def test_selectors_choose_nothing_from_no_files(name: str) -> None:
    options = {
        "name": {"pattern": "*"}, "size": {"larger_than": "0"}, "age": {"older_than": "0"}
    }  # fmt: skip
    assert choose(name, (), **options.get(name, {})) == []


def test_without_a_ttl_the_expired_selector_chooses_nothing() -> None:
    selector = load_selector("expired")
    table = replace(TABLE, settings=TableSettings())
    parameters = SelectorParameters(tablet=TABLET, table=table, files=FILES, now_s=NOW_S)
    assert selector.select(parameters).files == ()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "all",
            {"pattern": "*"},
            "selector all: option 'pattern' is unknown; known: min_files",
        ),
        ("all", {"min_files": "0"}, "option min_files is 0, expected at least 1"),
        ("name", {"path": "a" * 257}, "option path has 257 characters, expected at most 256"),
        (
            "all",
            {"min_files": "9" * 10_000},
            "option min_files is '9{20}.*, expected a whole number",
        ),
        ("name", {}, "selector name: give at least one of path or pattern"),
        ("size", {}, "give at least one of larger_than or smaller_than"),
        ("size", {"larger_than": "big"}, "option larger_than 'big' is not a size"),
        ("age", {}, "give at least one of older_than or younger_than"),
        ("age", {"older_than": "old"}, "option older_than 'old' is not a duration"),
        ("deletes", {"threshold": "0"}, "option threshold is 0, expected above 0 and at"),
        ("deletes", {"threshold": "many"}, "above 0 and at most 1"),
        ("deletes", {"min_files": "2"}, "is unknown; known: "),
        ("expired", {"ratio": "1.1"}, "above 0 and at most 1"),
        ("schema", {"id": "1"}, "is unknown; known: "),
        (
            "layout",
            {"fault": "1"},
            "selector layout: option 'fault' is unknown; known: min_files",
        ),
        ("layout", {"min_files": "no"}, "option min_files is 'no', expected a whole number"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        load_selector(name).check(options)
