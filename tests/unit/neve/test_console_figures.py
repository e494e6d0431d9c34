"""Geometry of the console's figures: what is drawn where, for few values and for many."""

from __future__ import annotations

import pytest

from neve.console.pages.figures import (
    COLUMNS,
    COLUMNS_OF_LARGE,
    LANE,
    LINKED_CELLS_MAX,
    SCALES,
    WIDTH,
    TimelineSpan,
    bar_between,
    heat_figure,
    ranked,
    size_histogram,
    timeline,
)

pytestmark = pytest.mark.unit
FILES = SCALES["files"]


@pytest.mark.parametrize(
    ("measure", "value", "step"),
    [
        ("files", 0, 0),
        ("files", 1, 1),
        ("files", 4, 2),
        ("files", 5, 3),
        ("files", 1_000_000, 6),
        ("backlog", 0, 0),
        ("backlog", 1, 1),
        ("backlog", 1 << 20, 2),
        ("garbage", 0.0, 0),
        ("garbage", 0.5, 5),
        ("reads", 0.0005, 0),
        ("reads", 250.0, 6),
    ],
)
def test_a_value_has_the_colour_of_the_highest_edge_that_it_reaches(
    measure: str, value: float, step: int
) -> None:
    assert SCALES[measure].step(value) == step


def test_every_scale_has_a_legend_for_each_colour() -> None:
    for scale in SCALES.values():
        assert [step for step, _ in scale.legend] == list(range(7))
        assert len({text for _, text in scale.legend}) == 7
    assert SCALES["backlog"].legend[:2] == ((0, "none"), (1, "1 B or more"))
    assert SCALES["garbage"].legend[:2] == ((0, "below 1%"), (1, "1% or more"))


def test_a_small_heat_map_has_a_link_for_each_tablet() -> None:
    figure = heat_figure(FILES, [0, 3, 12], [1, 1, 1], ["01", "02", "last"])

    assert (figure.height, figure.cell_size) == (20, 18)
    assert figure.paths == ((0, "M0 9h18"), (2, "M20 9h18"), (4, "M40 9h18"))
    assert [(link.x, link.width, link.single) for link in figure.links] == [
        (0, 18, True),
        (20, 18, True),
        (40, 18, True),
    ]
    assert figure.links[2].title == "files 12 (to last)"
    assert figure.summary == "tablets by files: 1 with none, 1 with 2 or more, 1 with 10 or more"


def test_a_large_heat_map_has_a_link_for_each_row_and_few_paths() -> None:
    count = LINKED_CELLS_MAX + 60
    values = [index % 7 for index in range(count)]
    figure = heat_figure(FILES, values, [500] * count, [f"{index:04x}" for index in range(count)])

    assert (figure.height, figure.cell_size) == (40, 9)
    assert len(figure.paths) == 4  # Colours of 0 to 6 files.
    assert [link.first for link in figure.links] == list(range(0, count, COLUMNS_OF_LARGE))
    assert figure.links[-1].width == 60 * 10 - 1
    assert figure.links[0].title == "50,000 tablets, files up to 6 (to 0063)"
    assert not figure.links[0].single
    assert sum(path.count("h9") for _, path in figure.paths) == count


def test_a_path_goes_on_in_a_row_and_begins_anew_in_the_next() -> None:
    values = [1, 1, 0, 1, *[0] * (COLUMNS - 4), 1]
    figure = heat_figure(FILES, values, [1] * len(values), [""] * len(values))

    assert dict(figure.paths)[1] == "M0 9h18m2 0h18m22 0h18M0 29h18"


def test_an_empty_heat_map_is_drawn() -> None:
    figure = heat_figure(FILES, [], [], [])
    assert (figure.height, figure.paths, figure.links, figure.summary) == (
        20,
        (),
        (),
        "no tablet",
    )


def test_a_histogram_has_a_bar_for_each_class_between_the_ends() -> None:
    bars = size_histogram({20: 1, 23: 100})

    assert [(bar.label, bar.count, bar.height) for bar in bars] == [
        ("1.0 MiB", 1, 2),
        ("2.0 MiB", 0, 0),
        ("4.0 MiB", 0, 0),
        ("8.0 MiB", 100, 200),
    ]
    assert [bar.x for bar in bars] == [0, 80, 160, 240]
    assert size_histogram({}) == ()


def test_keys_are_spaced_by_rank() -> None:
    assert ranked([b"b", b"a", b"\xff", b"b"]) == {b"a": 0, b"b": 500, b"\xff": WIDTH}
    assert ranked([b"a"]) == {b"a": 0}


@pytest.mark.parametrize(
    ("start", "end", "bar"),
    [(0, 0, (0, 3)), (1000, 1000, (997, 3)), (-50, 2000, (0, 1000)), (10, 20, (10, 10))],
)
def test_a_bar_can_always_be_seen(start: float, end: float, bar: tuple[int, int]) -> None:
    assert bar_between(start, end) == bar


def span(lane: str, start_s: float, end_s: float) -> TimelineSpan:
    return TimelineSpan(lane=lane, start_s=start_s, end_s=end_s, kind="committed", title="")


def test_spans_of_a_lane_that_overlap_are_drawn_below_each_other() -> None:
    drawn = timeline(
        [span("b", 600, 1200), span("a", 0, 900), span("a", 300, 600), span("a", 900, 1500)],
        0.0,
        3000.0,
    )

    assert [(lane.name, lane.height) for lane in drawn.lanes] == [("a", 2 * LANE), ("b", LANE)]
    assert [(bar.x, bar.y, bar.width) for bar in drawn.lanes[0].bars] == [
        (0, 0, 300),
        (100, LANE, 100),
        (300, 0, 200),
    ]


def test_a_timeline_leaves_out_spans_of_other_times() -> None:
    drawn = timeline([span("a", 0, 50), span("a", 200, 300), span("b", 40, 120)], 100.0, 200.0)

    assert [lane.name for lane in drawn.lanes] == ["b"]
    assert [(bar.x, bar.width) for bar in drawn.lanes[0].bars] == [(0, 200)]
    assert timeline([], 100.0, 3700.0).ticks == (
        (139, 600.0),
        (306, 1200.0),
        (472, 1800.0),
        (639, 2400.0),
        (806, 3000.0),
        (972, 3600.0),
    )
