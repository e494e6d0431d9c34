"""Specifications: what they say, what is refused, and in which words."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from common.errors import RequestError
from neve.simulate.specification import BEGIN_S, EXAMPLE, read_specifications
from tests.support.simulated import SMALL, document, read


def refused(written: Any, *says: str, files: dict[str, Any] | None = None) -> None:
    with pytest.raises(RequestError) as raised:
        read_specifications(written, (files or {}).__getitem__)
    for text in says:
        assert text in str(raised.value)


def test_the_example_is_read_as_it_says() -> None:
    first, second, third = read_specifications(tomllib.loads(EXAMPLE), lambda name: name)

    assert [first.variant, second.variant, third.variant] == ["ratio 3", "ratio 2", "size-tiered"]
    (table,) = first.tables
    assert (table.tablets, table.planner_name, table.settings.ratio) == (20, "ratio", 3.0)
    assert second.tables[0].settings.ratio == 2.0
    assert third.tables[0].planner_name == "size-tiered"
    assert third.tables[0].tracker is not None
    assert third.tables[0].tracker[0] == "size-tiered"
    assert table.arrivals.bursts[0].at_s == 6 * 3600
    assert first.cluster.groups[0].count_max == 6
    assert first.begin_s == BEGIN_S


def test_what_is_left_out_has_its_default() -> None:
    found = read({"table": [{"name": "events"}]})

    assert (found.days, found.seed, found.drain_max_s) == (1.0, 1, 86_400.0)
    assert found.sample_s == 432.0
    assert found.tables[0].tablets == 1
    assert found.cluster.groups[0].slots == 4


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("simulation", "days", 1e9, "simulation.days is 1000000000, expected 0.0001 to 400"),
        ("simulation", "days", -1, "simulation.days is -1, expected"),
        ("simulation", "days", "soon", "simulation.days is 'soon', expected a number"),
        ("simulation", "days", float("nan"), "simulation.days is nan, expected a number"),
        ("simulation", "days", True, "simulation.days is True, expected a number"),
        ("simulation", "seed", -1, "simulation.seed is -1, expected 0 to"),
        ("simulation", "seed", 10**30, "a number of too many digits, expected a whole number"),
        ("simulation", "sample", "1ms", "simulation.sample is 0.001 s, expected 1 s to"),
        ("simulation", "step", 5, "simulation.step: key 'step' is unknown; known: begin_s, days"),
        ("cluster", "job_overhead", "-1s", "cluster.job_overhead"),
        ("cluster", "job_overhead", 0, "cluster.job_overhead is 0 s, expected 0.001 s"),
        ("cluster", "queue_jobs", 0, "cluster.queue_jobs is 0, expected 1"),
        ("cluster", "volumes", {"default": 0}, "cluster.volumes.default is 0 B, expected 1 B"),
        ("cluster", "group", "default", "cluster.group is 'default', expected a list"),
        ("cluster", "autoscaler", {"drain": 5}, "cluster.autoscaler.drain: key 'drain' is unknown"),
    ],
)
def test_a_wrong_value_is_named(section: str, key: str, value: Any, expected: str) -> None:
    refused(document(**{section: {key: value}}), expected)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"tablets": 1_000_000}, "table[0].tablets is 1000000, expected 1 to 100000"),
        ({"tablets": 0}, "table[0].tablets is 0"),
        ({"name": "No Name"}, "table[0].name is 'No Name', expected a name"),
        ({"name": 5}, "table[0].name is 5, expected a text"),
        ({"colour": "blue"}, "table[0].colour: key 'colour' is unknown"),
        ({"planner": "rati"}, "table[0].planner"),
        ({"settings": {"ratioo": 3}}, "did you mean 'ratio'"),
        ({"options": {"nonsense": 1}}, "'nonsense'"),
        ({"tracker": "none-such"}, "table[0].tracker"),
        ({"row_bytes": -5}, "table[0].row_bytes"),
        ({"keys": 0}, "table[0].keys is 0"),
        ({"settings": {"ttl": "1d"}}, "expected keyed = false or no ttl"),
        ({"arrivals": {"every": 0}}, "table[0].arrivals.every is 0"),
        ({"arrivals": {"every": "1m", "files_per_s": 3}}, "expected one of them"),
        ({"arrivals": {"files_per_s": -3}}, "table[0].arrivals.files_per_s is -3"),
        ({"arrivals": {"size": "-1MB"}}, "table[0].arrivals.size"),
        ({"arrivals": {"updates": 0.8, "deletes": 0.4}}, "is 0.8 + 0.4, expected at most 1"),
        ({"arrivals": {"updates": float("inf")}}, "table[0].arrivals.updates"),
        ({"keyed": False, "arrivals": {"deletes": 0.1}}, "need a key"),
        ({"arrivals": {"burst": [{"times": -1}]}}, "table[0].arrivals.burst[0].times is -1"),
        ({"arrivals": {"burst": [{}] * 1001}}, "has 1,001 entries, expected at most 1,000"),
        ({"keyed": False, "planner": "leveled"}, "table[0]"),
    ],
)
def test_a_wrong_table_is_named(table: dict[str, Any], expected: str) -> None:
    refused(document(table), expected)


def test_all_together_is_bounded() -> None:
    flood = {"tablets": 50_000, "arrivals": {"every": "1s"}}
    refused(document(flood, simulation={"days": 400}), "files would arrive, expected at most")
    burst = {"arrivals": {"burst": [{"at": 0, "for": "1d", "times": 10_000}], "every": "1s"}}
    refused(document(burst, simulation={"days": 30}), "files would arrive, expected at most")
    two = [{"name": "a", "tablets": 60_000}, {"name": "b", "tablets": 60_000}]
    refused({**SMALL, "table": two}, "120,000 tablets, expected at most 100,000")
    long = document(simulation={"days": 400, "sample": "1s"})
    long["table"][0]["arrivals"] = {"every": "1d"}
    refused(long, "samples would be taken, expected at most 5,000; raise simulation.sample")


def test_tables_and_variants_have_names_of_their_own() -> None:
    refused({"table": []}, "expected at least one [[table]]")
    refused({}, "table is missing")
    refused({"table": [{"name": "a"}, {"name": "a"}]}, "expected different names")
    refused({**SMALL, "variant": [{"name": "a"}, {"name": "a"}]}, "expected different names")
    refused({**SMALL, "variant": [{"name": f"{at}"} for at in range(17)]}, "at most 16")
    refused({**SMALL, "variant": [{"name": "a", "planer": "ratio"}]}, "did you mean 'planner'")
    refused({**SMALL, "variant": [{"table": {"other": {}}}]}, "variant[0].table.other")
    refused([1], "the specification is [1], expected an object")


def test_a_variant_changes_what_it_names_and_nothing_else() -> None:
    variants = [
        {"name": "plain"},
        {
            "name": "other",
            "planner": "size-tiered",
            "table": {"events": {"arrivals": {"size": "2MB"}}},
            "cluster": {"job_overhead": "2s"},
        },
    ]
    written = document({"settings": {"ratio": 5}, "options": {"max_files": 4}}, variant=variants)
    plain, other = read_specifications(written, lambda name: name)

    assert plain.tables[0].settings.max_files == 4
    assert (plain.cluster.job_overhead_s, other.cluster.job_overhead_s) == (0.5, 2.0)
    assert other.tables[0].arrivals.size_bytes == 2 * 1024**2
    assert other.tables[0].arrivals.flushes_s == plain.tables[0].arrivals.flushes_s
    assert other.tables[0].options == {}, "options are of the planner that they were written for"


def test_options_are_left_out_where_a_variant_has_another_planner() -> None:
    table = {"planner": "size-tiered", "options": {"min_threshold": 6}, "tracker": "size-tiered"}
    variants = [{"name": "as it is"}, {"name": "other", "planner": "ratio"}]
    same, other = read_specifications(document(table, variant=variants), lambda name: name)

    assert same.tables[0].options == {"min_threshold": 6}
    assert other.tables[0].options == {}
    assert other.tables[0].tracker is not None
    assert other.tables[0].tracker[0] == "ratio"


def test_planners_of_the_command_line_stand_in_place_of_variants() -> None:
    written = {**SMALL, "variant": [{"name": "x"}]}
    found = read_specifications(written, lambda name: name, ["ratio", "size-tiered"])

    assert [each.variant for each in found] == ["ratio", "size-tiered"]
    assert [each.tables[0].planner_name for each in found] == ["ratio", "size-tiered"]


def test_groups_are_ordered_by_the_sizes_they_take() -> None:
    groups = [{"name": "large"}, {"name": "small", "max_size": "10MB", "compactors": {"max": 3}}]
    found = read(document(cluster={"group": groups})).cluster

    assert [group.group.name for group in found.groups] == ["small", "large"]
    assert found.groups[0].count_max == 3
    refused(document(cluster={"group": [{"name": "a"}, {"name": "b"}]}), "cluster")
    most = {"name": "a", "compactors": {"min": 5, "max": 2}}
    refused(document(cluster={"group": [most]}), "compactors.min is 5, expected 0 to 2")


# ------------------------------------------------------------------------------------- The page


PAGE = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text("utf-8")
SECTIONS = {
    "[simulation]": {"simulation": {"zz": 1}, "table": [{"name": "a"}]},
    "[[table]]": {"table": [{"name": "a", "zz": 1}]},
    "[table.arrivals]": {"table": [{"name": "a", "arrivals": {"zz": 1}}]},
    "[cluster]": {"table": [{"name": "a"}], "cluster": {"zz": 1}},
    "[control]": {"table": [{"name": "a"}], "control": {"controller": "static", "zz": 1}},
}
"""Heading of a section of the page → a document that asks which keys there are."""


def known_keys(written: dict[str, Any]) -> set[str]:
    with pytest.raises(RequestError) as raised:
        read(written)
    return set(str(raised.value).partition("known: ")[2].split(", "))


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_page_names_every_key(heading: str) -> None:
    section = PAGE.partition(f"### `{heading}`\n")[2].partition("\n#")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    last = {name.strip("[]").rpartition(".")[2] for name in named}

    inside = {"arrivals"} if heading == "[[table]]" else set()
    assert last | inside == known_keys(SECTIONS[heading])


def test_examples_of_the_page_can_be_read() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    recording = {"table": "a", "tablets": 1, "length_s": 9, "arrivals": [{"at": 1, "size": 5}]}
    assert len(blocks) == 2
    for block in blocks:
        whole = block if "[[variant]]" not in block else "[[table]]\nname = 'a'\n" + block
        whole = whole.replace("[table.arrivals]", "[[table]]\nname = 'a'\n[table.arrivals]")
        read_specifications(tomllib.loads(whole), {"arrivals.json": recording}.__getitem__)
