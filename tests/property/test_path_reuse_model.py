"""May a user use the name of a file again that a collector has deleted? A small model, exhausted.

One path, two collectors, one user, and a table that may be dropped and made again; each line of
the protocol is a step of its own, and any amount of time may pass before it. A collector reads
the entry, looks at its clock, deletes; between these it may stand still. Guards are taken away
one by one: without any of them there is a shortest story in which a file that the table holds is
deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

LOOK_LASTS, RETIRED = 1, 4
"""Units of time: how old a look may be, and how long a name is barred after a deletion."""
STILL_MAX = 3
"""How long a process stands still between two instructions; shorter than a name is barred."""
TIME_MAX = 10
FILES_MAX = 2


@dataclass(frozen=True)
class Guards:
    looks_again: bool = True
    """A look that is too old is made anew."""
    retires: bool = True
    """The name is barred for a while after the deletion."""
    by_location: bool = True
    """It is barred for every table that is made in the location, not for one table only."""


@dataclass(frozen=True)
class Collector:
    at: str = "idle"
    looked: int = 0
    """When it has read the entry, or checked the age of that."""


@dataclass(frozen=True)
class State:
    now: int = 0
    stored: int | None = 1
    """Which file lies under the path."""
    held: int | None = None
    """Which file the table holds under it."""
    garbage: bool = True
    retired: int | None = None
    """When the name was barred."""
    collectors: tuple[Collector, Collector] = (Collector(), Collector())
    files: int = 1
    dropped: bool = False
    """Whether the table was dropped, and another one made in its location."""

    @property
    def lost(self) -> bool:
        """Whether the table holds a file that is not there."""
        return self.held is not None and self.stored != self.held


def steps(state: State, guards: Guards) -> Iterator[tuple[str, State]]:
    """Yield what may happen next."""
    if state.now < TIME_MAX and not _hurries(state):
        yield "time passes", replace(state, now=state.now + 1)
    if state.stored is None and state.files < FILES_MAX:
        number = state.files + 1
        yield f"user writes file {number}", replace(state, stored=number, files=number)
    barred = guards.retires and state.retired is not None and state.now - state.retired <= RETIRED
    if not state.dropped and not state.garbage and state.held is None:
        forgotten = state.retired if guards.by_location else None
        yield (
            "the table is dropped, another one made",
            replace(state, dropped=True, retired=forgotten),
        )
    if state.stored is not None and state.held is None and not state.garbage and not barred:
        yield f"user adds file {state.stored}", replace(state, held=state.stored)
    for number in (0, 1):
        for what, after in _collects(state, number, guards):
            yield f"collector {number} {what}", after


def _hurries(state: State) -> bool:
    """Return whether a process has stood still between two instructions for as long as any may."""
    return any(
        collector.at in {"checked", "deleted"} and state.now - collector.looked >= STILL_MAX
        for collector in state.collectors
    )


def _collects(state: State, number: int, guards: Guards) -> Iterator[tuple[str, State]]:
    me, now = state.collectors[number], state.now

    def become(at: str, looked: int, **more: object) -> State:
        mine = Collector(at, looked)
        both = (mine, state.collectors[1]) if number == 0 else (state.collectors[0], mine)
        return replace(state, collectors=both, **more)  # type: ignore[arg-type]  # any field

    match me.at:
        case "idle" if state.garbage and state.held is None:
            yield "looks", become("looked", now)
        case "looked":
            if guards.looks_again and now - me.looked > LOOK_LASTS:
                yield "has looked too long ago", become("idle", 0)
            else:
                yield "begins to delete", become("checked", now)
        case "checked":
            yield "deletes", become("deleted", now, stored=None)
        case "deleted":
            barred = now if state.garbage else state.retired
            yield "forgets the entry", become("idle", 0, garbage=False, retired=barred)
        case _:
            return


def story(guards: Guards) -> list[str] | None:
    """Return the shortest story in which a file of the table is lost; None: there is none."""
    begin = State()
    told: dict[State, tuple[State, str] | None] = {begin: None}
    queue = deque([begin])
    while queue:
        state = queue.popleft()
        for what, after in steps(state, guards):
            if after in told:
                continue
            told[after] = (state, what)
            if after.lost:
                return _lines(told, after)
            queue.append(after)
    assert len(told) > 500, "the model does not move"
    return None


def _lines(told: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    lines: list[str] = []
    while (before := told[state]) is not None:
        state, what = before
        lines.insert(0, what)
    return lines


def test_with_all_guards_no_file_in_use_is_deleted() -> None:
    assert story(Guards()) is None


@pytest.mark.parametrize(
    "guards",
    [
        Guards(looks_again=False),
        Guards(retires=False),
        Guards(by_location=False),
        Guards(False, False),
    ],
)
def test_without_the_guards_a_file_in_use_can_be_deleted(guards: Guards) -> None:
    told = story(guards)
    assert told is not None
    assert told[-1].endswith("deletes")
    assert "user adds file 2" in told
