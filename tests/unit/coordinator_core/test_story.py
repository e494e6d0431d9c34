"""Stories keep within their bounds, tell every event, and hide what is secret."""

from __future__ import annotations

import tracemalloc
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.tablet import TabletId
from common.settings import CoordinatorSettings
from common.wire import StoryEntry, StoryKind
from coordinator.core import events as on
from coordinator.core import story
from coordinator.core.limits import Limits
from coordinator.core.state import CoordinatorState
from coordinator.core.story import Stories, short_paths, short_reason

ENTRIES_MAX, TABLETS_MAX, BYTES_MAX = 4, 3, 12_000


def tablet(number: int) -> TabletId:
    return TabletId("t", bytes([number]))


def failed(at_s: float, reason: str = "", files: tuple[str, ...] = ()) -> StoryEntry:
    return StoryEntry(at_s, StoryKind.FAILED, "E", short_reason(reason), files=short_paths(files))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.text(max_size=600), st.lists(st.text(max_size=400), max_size=12)
        ),
        max_size=60,
    )
)
def test_no_bound_is_ever_passed(happened: list[tuple[int, str, list[str]]]) -> None:
    stories = Stories(ENTRIES_MAX, TABLETS_MAX, BYTES_MAX)
    latest: dict[int, int] = {}
    for at, (number, reason, files) in enumerate(happened):
        stories.add(tablet(number), failed(float(at), reason, tuple(files)))
        latest.pop(number, None)
        latest[number] = at
        stories.check()
        kept = [each for each in latest if stories.entries(tablet(each))]
        # Those to which something happened last are kept, and nobody else.
        assert kept == list(latest)[len(latest) - len(stories) :]


def test_a_tablet_keeps_its_newest_entries_and_counts_the_others() -> None:
    stories = Stories(ENTRIES_MAX, TABLETS_MAX, BYTES_MAX)
    for at in range(6):
        stories.add(tablet(1), failed(float(at), f"reason {at}"))

    assert [entry.at_s for entry in stories.entries(tablet(1))] == [2.0, 3.0, 4.0, 5.0]
    assert stories.forgotten(tablet(1)) == (2, None)


def test_a_tablet_that_was_forgotten_knows_that_it_may_have_been() -> None:
    stories = Stories(ENTRIES_MAX, 2, BYTES_MAX)
    for number in (1, 2, 3):
        stories.add(tablet(number), failed(float(number)))
    stories.add(tablet(1), failed(4.0))

    # Tablet 1 left for 3, and 2 for the new story of 1; 3 was there all the time.
    assert stories.forgotten(tablet(1)) == (0, 1.0)
    assert stories.forgotten(tablet(2)) == (0, 2.0)
    assert stories.forgotten(tablet(3)) == (0, None)


def test_the_same_in_a_row_is_one_entry() -> None:
    stories = Stories(ENTRIES_MAX, TABLETS_MAX, BYTES_MAX)
    for at, reason in enumerate(["full", "full", "full", "slow", "full"]):
        stories.add(tablet(1), failed(float(at), reason))

    told = [(entry.at_s, entry.times, entry.last_s) for entry in stories.entries(tablet(1))]
    assert told == [(0.0, 3, 2.0), (3.0, 1, None), (4.0, 1, None)]


def test_every_event_is_told_or_known_to_belong_to_no_tablet() -> None:
    events = {get_arg for family in get_args(on.Event) for get_arg in get_args(family) or (family,)}

    assert events == story.RECORDED | story.SILENT
    assert not story.RECORDED & story.SILENT


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no space left", "no space left"),
        ("s3://me:secret@host/a?key=secret", "s3://***@host/a?***"),
        ("x" * 301, "x" * 299 + "…"),
        ("y " * 2048 + "s3://me:" + "secret" * 1000 + "@host", "y " * 149 + "y…"),
        ("s3://me:" + "secret" * 1000 + "@host", ""),
    ],
)
def test_a_reason_is_short_and_without_secrets(text: str, told: str) -> None:
    assert short_reason(text) == told


def test_what_is_counted_is_what_is_used() -> None:
    tracemalloc.start()
    stories = Stories(64, 100_000, 10**9)
    before = tracemalloc.get_traced_memory()[0]
    for number in range(20_000):
        own = TabletId("t", number.to_bytes(9, "big"))
        for at in range(3):
            entry = StoryEntry(
                float(number),
                StoryKind.ASSIGNED,
                "",
                f"ratio 3: {number} files of 10 MiB",
                f"job-{number:016x}-{at}",
                f"att-{number:020x}-{at}",
                "default-1",
                number=1000 + number,
            )
            stories.add(own, entry)
    used_bytes = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert 0.6 * stories.size_bytes < used_bytes <= stories.size_bytes


def test_the_bounds_are_those_of_the_limits() -> None:
    limits = Limits(story_tablets_max=2, story_entries_max=3)
    state = CoordinatorState(CoordinatorSettings(), "me", limits=limits)
    for number in range(4):
        for cause in "abcd":
            event = on.PlanningFailed(tablet=tablet(number), cause=cause)
            state.handle(event, now_s=10.0 * number)

    told = [state.story(tablet(number), 40.0) for number in range(4)]
    assert [len(each.entries) for each in told] == [0, 0, 3, 3]
    assert (told[0].gap_until_s, told[3].forgotten) == (10.0, 1)
