"""The report of a table: what it says, what it leaves out, and that it is a page of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from neve import api
from neve.table_report import ReportFacts, advice, as_page, cost, did, gained, span_text

NOW_S = 20_031 * 86_400.0 + 7200
GIB = 1024**3
FULL_DAYS = [
    api.TableDay(
        day=f"2024-10-{day}",
        jobs=40,
        files_in=400 + 10 * day,
        files_out=40,
        bytes_in=(3 + day % 3) * GIB,
        bytes_out=2 * GIB,
        compactor_s=5400.0 + 900 * (day % 4),
        rows_in=1_000_000,
        rows_dropped=250_000,
        measured_jobs=40,
        files_saved=120,
        failed=day % 5,
        released=1,
        wasted_s=300.0 * (day % 3),
    )
    for day in (25, 26, 28, 29, 30, 31)
]
DAYS = (
    *FULL_DAYS,
    api.TableDay(day="2024-11-01"),
    api.TableDay(day="2024-11-03", jobs=3, files_in=30, files_out=3),
)


def facts(**changes: object) -> ReportFacts:
    table = api.Table(
        id="t",
        name="events<b>",
        location="file:///data",
        state="live",
        schema=(),
        settings={"ratio": 3.0, "max_files": 10, "target_bytes": 512 * 1024**2},
        tablets=20,
        files=60,
        size_bytes=40 * GIB,
    )
    days = api.TableDays(table="events<b>", now_s=NOW_S, since_s=NOW_S - 9.5 * 86_400, days=DAYS)
    return ReportFacts(table=table, days=replace(days, **changes), count=30)  # type: ignore[arg-type]


class Checker(HTMLParser):
    """Collects elements, and fails at one that is closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    page, checker = as_page(facts()), Checker()
    checker.feed(page)

    assert checker.open == []
    assert not {tag for tag, _ in checker.tags} & {"script", "link", "img", "iframe", "object"}
    attributes = {name for _, own in checker.tags for name in own}
    assert not {name for name in attributes if name.startswith("on") or name in {"src", "href"}}
    assert "url(" not in page
    assert "events&lt;b&gt;" in page
    assert "<b>" not in page
    labels = [own["aria-label"] for tag, own in checker.tags if tag == "svg" and "role" in own]
    assert labels == ["Bytes by day", "Files by day", "Time by day", "Rows dropped by day"]


def test_the_span_is_named_and_days_without_attempts_are_zero() -> None:
    assert span_text(facts()) == (
        "2024-10-25 to 2024-11-04, 11 days of 30: the first attempt that is counted ended at"
        " 2024-10-25 14:00. Days are those of UTC. Written 2024-11-04 02:00 UTC."
    )
    week = replace(facts(), count=7)
    assert span_text(week).startswith("2024-10-29 to 2024-11-04, 7 days. ")
    rows = re.findall(r'<th scope="row">(2024-\d\d-\d\d)</th><td>(\d+)</td>', as_page(facts()))
    assert len(rows) == 11
    assert dict(rows)["2024-10-27"] == "0"
    assert dict(rows)["2024-11-03"] == "3"


def test_what_was_done_and_gained_are_sums() -> None:
    done, gain = dict(did(facts())), dict(gained(facts()))
    assert done["jobs"] == "243"
    assert done["files"] == "4,120 became 243"
    assert done["rows dropped"] == "1,500,000 (25.0%)"
    assert gain["files without these jobs"] == f"{60 + 4120 - 243:,}"
    assert gain["files per tablet now"] == "3.0"
    assert gain["files that a read of one key opens fewer, per rewrite"] == "3.0"


def test_money_is_shown_where_a_price_is_set() -> None:
    assert not [name for name, _ in cost(facts()) if "hour" in name]
    hours = sum(day.compactor_s + day.wasted_s for day in DAYS) / 3600
    priced = dict(cost(facts(hour_price=0.5, currency="EUR", slots=2)))
    assert priced["at 0.5 EUR per compactor-hour"] == f"{0.5 * hours / 2:.2f} EUR"
    assert dict(cost(facts(hour_price=2.0)))["at 2 per compactor-hour"] == f"{2 * hours:.2f}"


def test_a_table_without_attempts_says_so() -> None:
    page = as_page(facts(days=(), since_s=0.0))
    assert "No attempt of this table has ended so far." in page
    assert "Too few jobs to say." in page
    assert "<svg" not in page


DAY = api.TableDay(day="2024-11-04", jobs=100, files_in=500, files_out=100, bytes_in=100 * GIB)
DAY = replace(DAY, bytes_out=20 * GIB)


@pytest.mark.parametrize(
    ("day", "says"),
    [
        (DAY, ""),
        (replace(DAY, failed=30), "23% of the attempts failed"),
        (replace(DAY, files_in=990), "`max_files` = 10"),
        (replace(DAY, jobs=5000, files_in=10_000, bytes_in=5000 * 1000), "many tiny files"),
        (replace(DAY, bytes_out=90 * GIB), "Jobs wrote 2.2 times the size of the table each day"),
        (replace(DAY, bytes_out=100 * 1024**2), "Outputs had 1.0 MiB on average"),
        (replace(DAY, jobs=19, files_in=190, bytes_out=90 * GIB), ""),
    ],
)
def test_advice_has_the_figures_that_suggest_it(day: api.TableDay, says: str) -> None:
    found = list(advice(facts(days=(day,), since_s=NOW_S - 3600)))
    if not says:
        assert found == []
    else:
        (sentence,) = found
        assert says in sentence
