"""Results as JSON, CSV, pictures and a page that stands alone."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from neve.simulate.figures import Outcome, Sample, WaitHistogram
from neve.simulate.report import (
    CURVES,
    POINTS_MAX,
    SUMMARY,
    Line,
    as_csv,
    as_document,
    as_page,
    chart,
    pictures,
    short_bytes,
)
from neve.simulate.specification import read_specifications
from neve.simulate.world import World
from tests.support.simulated import document

EVIL = 'ratio <3> & "more"'


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    variants = [{"name": EVIL}, {"name": "size-tiered", "planner": "size-tiered"}]
    written = document(variant=variants, simulation={"sample": "5m"})
    return [
        World(specification).run()
        for specification in read_specifications(written, lambda name: name)
    ]


class _Page(HTMLParser):
    """Notes tags with their attributes, and whether all of them are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "rect", "path"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def parsed(page: str) -> _Page:
    found = _Page()
    found.feed(page)
    assert not found.open
    return found


def test_the_page_stands_alone(outcomes: list[Outcome]) -> None:
    page = as_page(outcomes, 'name = "</pre><script>"')
    found = parsed(page)

    assert not found.of("script")
    assert not found.of("link")
    links = [
        attribute
        for _, attributes in found.tags
        for attribute in attributes
        if attribute in {"src", "href"}
    ]
    assert not links
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in page
    assert "<script>" not in page


def test_the_page_can_be_read_by_everybody(outcomes: list[Outcome]) -> None:
    found = parsed(as_page(outcomes, ""))

    assert found.of("html") == [{"lang": "en"}]
    assert len(found.of("caption")) == len(found.of("table")) == 2 + len(CURVES)
    assert all(each.get("scope") in {"row", "col"} for each in found.of("th"))
    charts = [each for each in found.of("svg") if each.get("role") == "img"]
    assert [each["aria-label"] for each in charts] == [title for title, *_ in CURVES.values()]
    others = [each for each in found.of("svg") if each.get("role") != "img"]
    assert all(other.get("aria-hidden") == "true" for other in others)


def test_no_table_makes_the_page_wider_than_its_window(outcomes: list[Outcome]) -> None:
    page = as_page(outcomes, "")
    tables = page.split("<table>")

    assert len(tables) > 2
    for before in tables[:-1]:
        _, _, opened = before.rpartition("<")
        assert opened.startswith('div class="wide" role="region" tabindex="0" aria-label="')
    (rule,) = re.findall(r"\.wide{([^}]*)}", page)
    assert "overflow-x:auto" in rule
    assert "max-width:100%" in rule
    assert "border:1px" in rule, "where a table goes on is seen"
    (first,) = re.findall(r"}th:first-child{([^}]*)}", page)
    assert "position:sticky;left:0" in first


def test_sizes_in_tables_are_short() -> None:
    assert short_bytes(106.3 * 1024**2) == "106 MiB"
    assert short_bytes(2.44 * 1024**3) == "2.4 GiB"
    assert short_bytes(0) == "0 B"


def test_the_page_has_all_figures_and_escapes_names(outcomes: list[Outcome]) -> None:
    page = as_page(outcomes, "")

    assert "ratio &lt;3&gt; &amp; &quot;more&quot;" in page
    assert EVIL not in page
    for _, _, text in SUMMARY:
        assert text(outcomes[0]) in page
    assert "prefers-color-scheme:dark" in page


def test_pictures_are_xml_with_a_line_for_each_variant(outcomes: list[Outcome]) -> None:
    found = pictures(outcomes)

    assert set(found) == {f"{name}.svg" for name in CURVES}
    for text in found.values():
        root = ElementTree.fromstring(text)
        lines = [each for each in root.iter() if each.tag.endswith("polyline")]
        assert len(lines) == 2
        points = [pair.split(",") for pair in str(lines[0].get("points")).split()]
        assert len(points) == len(outcomes[0].samples)
        assert all(0 <= float(x) <= 560 and 0 <= float(y) <= 236 for x, y in points)


def test_csv_and_json_tell_the_same(outcomes: list[Outcome]) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(outcomes))))
    whole = json.loads(json.dumps(as_document(outcomes)))
    samples = [sample for each in whole["variants"] for sample in each["samples"]]

    assert len(rows) == len(samples)
    assert [int(row["backlog_bytes"]) for row in rows] == [
        each["backlog_bytes"] for each in samples
    ]
    assert {row["variant"] for row in rows} == {EVIL, "size-tiered"}
    assert whole["variants"][0]["jobs"] == dict(outcomes[0].jobs)
    assert "samples" not in as_document(outcomes, samples=False)["variants"][0]


def test_an_axis_has_round_marks_and_holds_all_values() -> None:
    line = Line("a", [(0.0, 0.0), (1.0, 37.0), (2.0, 12.0)])
    drawn = chart("c", [line], lambda value: f"{value:g}")

    marks = [float(each) for each in re.findall(r'text-anchor="end"[^>]*>([\d.]+)<', drawn)]
    assert marks == [0, 10, 20, 30, 40]


def test_no_peak_is_lost_where_points_are_many() -> None:
    points = [(float(at), 1.0) for at in range(10 * POINTS_MAX)]
    points[1234] = (1234.0, 50.0)
    drawn = chart("c", [Line("a", points)], str)

    found = re.search(r'points="([^"]+)"', drawn)
    assert found is not None
    heights = [float(pair.split(",")[1]) for pair in found[1].split()]
    assert len(heights) <= POINTS_MAX
    assert min(heights) == 14.0


def test_waits_are_found_again_within_two_percent() -> None:
    waits = WaitHistogram()
    for at in range(1, 1001):
        waits.note(at / 10)

    assert waits.percentile_s(0.5) == pytest.approx(50, rel=0.021)
    assert waits.percentile_s(0.99) == pytest.approx(99, rel=0.021)
    assert waits.percentile_s(1.0) == waits.longest_s == 100.0
    assert WaitHistogram().percentile_s(0.99) == 0.0


def sample(at_s: float, files: float) -> Sample:
    return Sample(
        at_s=at_s,
        arrived_bytes=10,
        rewritten_bytes=30,
        stored_bytes=20,
        live_bytes=16,
        files=1,
        files_per_tablet=files,
        files_per_key=1.0,
        backlog_bytes=0,
        queued_jobs=0,
        queued_bytes=0,
        oldest_s=0.0,
        running_jobs=0,
        compactors=1,
    )


def test_means_leave_out_the_beginning_and_what_comes_after_the_last_arrival() -> None:
    outcome = Outcome(variant="a", planners=("ratio",), length_s=100.0)
    outcome.samples = [sample(0, 1), sample(10, 2), sample(50, 4), sample(100, 4), sample(200, 90)]

    assert outcome.files_per_tablet == pytest.approx((3 * 40 + 4 * 50) / 90)
    assert outcome.samples[0].write_amplification == 3.0
    assert outcome.samples[0].space_amplification == 1.25
