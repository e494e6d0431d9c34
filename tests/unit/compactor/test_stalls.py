"""What counts as standing still, and what only looks like it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.core import (
    CHECK_GAP_MAX_S,
    AttemptPhase,
    EngineHealth,
    Progress,
    RewriteProgress,
    Stall,
    StallWatch,
)

STALL_S = 10.0
STATES = [AttemptPhase.PREPARING, AttemptPhase.REWRITING, AttemptPhase.VERIFYING]


class Life:
    """An engine and its attempts, looked at every second."""

    def __init__(self, stall_s: float = STALL_S, **states: AttemptPhase) -> None:
        self.watch = StallWatch(stall_s)
        self.held = {
            name: Progress(attempt=name, bytes_total=100, since_s=0.0, state=state)
            for name, state in states.items()
        }
        self.health = EngineHealth(up=True)
        self.now_s = 0.0
        self.silent = False

    def pass_time(self, length_s: float, *, step_s: float = 1.0, moving: str = "") -> Stall | None:
        """Look until the time is over or something stalls; what moves does a step each time."""
        for _ in range(int(length_s / step_s)):
            self.now_s += step_s
            for name in moving:
                known = self.held[name]
                news = RewriteProgress(
                    fraction=0.0, state=known.state, steps=known.engine.steps + 1
                )
                self.held[name] = known.advanced(news)
            if not self.silent:
                self.health = replace(self.health, signs=self.health.signs + 1)
            stall = self.watch.look(list(self.held.values()), self.health, self.now_s)
            if stall is not None:
                return stall
        return None


@pytest.mark.parametrize("state", STATES)
def test_an_attempt_that_stands_still_is_found_in_time(state: AttemptPhase) -> None:
    life = Life(a=state)
    assert life.pass_time(STALL_S) is None
    stall = life.pass_time(1.0)
    assert stall is not None
    assert stall.attempts == ("a",)
    assert stall.cause == f"no progress for 10 s: a ({state})"


def test_a_commit_is_up_to_the_store() -> None:
    assert Life(a=AttemptPhase.COMMITTING).pass_time(10 * STALL_S) is None


def test_without_a_stall_limit_no_attempt_stalls() -> None:
    assert Life(0.0, a=AttemptPhase.REWRITING).pass_time(1000.0) is None


@pytest.mark.parametrize(
    "news",
    [
        RewriteProgress(fraction=0.5),
        RewriteProgress(fraction=0.0, bytes_done=7),
        RewriteProgress(fraction=0.0, rows_done=7),
        RewriteProgress(fraction=0.0, moved_bytes=7),
        RewriteProgress(fraction=0.0, synced_bytes=7),
        RewriteProgress(fraction=0.0, steps=7),
        RewriteProgress(fraction=0.0, state="verifying"),
        RewriteProgress(fraction=0.0, waited_s=0.1),  # Waits for its part of a limit.
    ],
    ids=str,
)
def test_every_kind_of_progress_counts(news: RewriteProgress) -> None:
    life = Life(a=AttemptPhase.REWRITING)
    assert life.pass_time(STALL_S) is None
    life.held["a"] = life.held["a"].advanced(news)
    assert life.pass_time(STALL_S) is None
    assert life.watch.quiet_s("a") == STALL_S - 1.0
    assert life.pass_time(2.0) is not None


def test_another_grant_is_no_progress() -> None:
    life = Life(a=AttemptPhase.REWRITING)
    assert life.pass_time(STALL_S) is None
    life.held["a"] = replace(life.held["a"], granted_bytes_s=1e6)
    assert life.pass_time(1.0) is not None


def test_an_attempt_waiting_for_a_core_does_not_stall_while_others_move() -> None:
    life = Life(a=AttemptPhase.REWRITING, b=AttemptPhase.REWRITING)
    life.health = replace(life.health, busy=frozenset("b"))
    assert life.pass_time(10 * STALL_S, moving="b") is None
    assert life.watch.quiet_s("a") > 9 * STALL_S
    # Its own task runs, and does nothing: that the other one moves is no excuse.
    life.health = replace(life.health, busy=frozenset("ab"))
    stall = life.pass_time(1.0, moving="b")
    assert stall is not None
    assert stall.attempts == ("a",)


def test_an_attempt_waiting_for_a_stalled_one_is_given_up_too() -> None:
    life = Life(a=AttemptPhase.REWRITING, b=AttemptPhase.REWRITING)
    life.health = replace(life.health, busy=frozenset("b"))
    life.pass_time(3.0, moving="b")
    stall = life.pass_time(2 * STALL_S)
    assert stall is not None
    assert stall.attempts == ("a", "b")


@pytest.mark.parametrize("state", [AttemptPhase.PREPARING, AttemptPhase.VERIFYING])
def test_only_tasks_wait_for_cores(state: AttemptPhase) -> None:
    life = Life(a=state, b=AttemptPhase.REWRITING)
    stall = life.pass_time(2 * STALL_S, moving="b")
    assert stall is not None
    assert stall.attempts == ("a",)


def test_a_silent_engine_is_found_even_if_it_has_nothing_to_do() -> None:
    life = Life()
    assert life.pass_time(10 * STALL_S) is None
    life.silent = True
    stall = life.pass_time(2 * STALL_S)
    assert stall == Stall(cause="the Spark driver has sent no life sign for 10 s", attempts=())
    assert life.pass_time(STALL_S) is None, "it is given time anew"


def test_a_silent_engine_takes_all_its_attempts_along() -> None:
    life = Life(a=AttemptPhase.REWRITING, b=AttemptPhase.COMMITTING, c=AttemptPhase.REWRITING)
    life.silent = True
    stall = life.pass_time(2 * STALL_S, moving="ac")
    assert stall is not None
    assert stall.attempts == ("a", "c")


def test_an_engine_that_is_being_started_owes_nothing() -> None:
    life = Life(a=AttemptPhase.PREPARING)
    life.health, life.silent = EngineHealth(up=False), True
    assert life.pass_time(10 * STALL_S) is None
    assert life.watch.quiet_s("a") == 0.0


def test_time_in_which_nobody_looked_is_nobodys_fault() -> None:
    life = Life(a=AttemptPhase.REWRITING)
    life.silent = True
    assert life.pass_time(100 * STALL_S, step_s=CHECK_GAP_MAX_S + 1.0) is None
    assert life.watch.quiet_s("a") == 0.0


def test_an_attempt_that_comes_back_starts_a_new_stall_clock() -> None:
    life = Life(a=AttemptPhase.REWRITING)
    life.pass_time(STALL_S)
    progress = life.held.pop("a")
    life.pass_time(1.0)
    life.held["a"] = progress
    assert life.pass_time(STALL_S) is None
