"""A story reads as English, within 100 columns."""

from __future__ import annotations

import pytest
from rich.console import Console

from common.model.table import Table
from common.wire import StoryEntry, StoryKind, TabletStory
from neve.cli.tablets import render_story
from neve.gateway.key_views import story_view

TABLE = Table(id="t", name="events", location="file:///t", schema=())
START_S = 1_000_000.0
AT_S = 1_000_000_800.0


def sentence(entry: StoryEntry) -> str:
    told = TabletStory(tablet="last", coordinator="c", started_s=START_S, entries=(entry,))
    return story_view(told, TABLE).entries[-1].sentence


@pytest.mark.parametrize("kind", StoryKind)
def test_every_kind_has_a_sentence(kind: StoryKind) -> None:
    told = sentence(StoryEntry(AT_S, kind, "code", "reason", "job-1", files=("a.parquet",)))

    assert len(told) > 10
    assert "None" not in told


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            StoryEntry(AT_S, StoryKind.PLANNED, "queued", "ratio 3", group="small", number=2),
            "planned: 2 jobs wanted, queued in group small: ratio 3",
        ),
        (
            StoryEntry(
                AT_S,
                StoryKind.PLANNED,
                "held",
                "failed once: x",
                number=1,
                times=3,
                last_s=AT_S,
            ),
            "planned: 1 job wanted, held back: failed once: x (3 times, last at 02:00:00)",
        ),
        (
            StoryEntry(AT_S, StoryKind.FAILED, "InputError", "x", "job-1", "a", "c1", until_s=AT_S),
            "job-1 failed on c1: InputError: x; its files pause until 02:00:00",
        ),
        (
            StoryEntry(AT_S, StoryKind.FAILED, "", "x", "job-1", "a", "c1", quarantined=True),
            "job-1 failed on c1: x; its files are quarantined until an operator lifts it",
        ),
        (
            StoryEntry(AT_S, StoryKind.RELEASING, "lost", "it died", "job-1", "a", "c1"),
            "job-1 was taken from c1 as lost: it died",
        ),
        (
            StoryEntry(
                AT_S, StoryKind.COMMITTED, job="j", compactor="c1", files=("x", "y"), number=12
            ),
            "c1 committed j, 12 files: x, y and 10 more",
        ),
        (
            StoryEntry(AT_S, StoryKind.STEP, request="req-1", step="SelectFiles", number=1),
            "request req-1 chose 1 file here and holds them",
        ),
    ],
)
def test_an_entry_as_a_sentence(entry: StoryEntry, told: str) -> None:
    assert sentence(entry) == told


@pytest.mark.parametrize(
    ("forgotten", "gap_until_s", "told"),
    [
        (0, None, None),
        (1, None, "1 older entry dropped: a story has bounds"),
        (12, 5.0, "12 older entries dropped: a story has bounds"),
        (0, 5.0, "older entries of this tablet may have been dropped: a story has bounds"),
    ],
)
def test_a_story_says_what_is_missing(
    forgotten: int, gap_until_s: float | None, told: str | None
) -> None:
    facts = TabletStory(
        tablet="last",
        coordinator="coord-1",
        started_s=START_S,
        forgotten=forgotten,
        gap_until_s=gap_until_s,
    )
    started, *others = story_view(facts, TABLE).entries

    assert (started.kind, started.at_s) == ("coordinator-started", START_S)
    assert [other.sentence for other in others] == ([] if told is None else [told])


def test_a_story_fits_a_hundred_columns() -> None:
    entry = StoryEntry(AT_S, StoryKind.FAILED, "InputError", "x" * 300, "job-1", "a", "c1")
    facts = TabletStory(tablet="last", coordinator="c", started_s=START_S, entries=(entry,) * 3)
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(
            render_story(story_view(facts, TABLE), lambda table, tablet: "all keys"), markup=False
        )
    shown = capture.get().splitlines()

    assert max(map(len, shown)) <= 100
    assert "".join(line.strip() for line in shown).count("x" * 50) >= 3 * 6
