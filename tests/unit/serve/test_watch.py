"""What follows from looking at an actor from outside."""

from __future__ import annotations

from neve.serve.watch import (
    GONE_ACTION_PAUSE_S,
    SILENCE_MAX_S,
    News,
    PartWatch,
    Remedy,
    Sight,
)


def follow(*looks: tuple[Sight, float]) -> tuple[PartWatch, list[Remedy]]:
    watch, steps = PartWatch(part="gateway"), []
    for sight, now_s in looks:
        watch, step = watch.seen(sight, now_s)
        steps.append(step)
    return watch, steps


def test_an_actor_that_answers_is_left_alone() -> None:
    watch, steps = follow((Sight.ANSWERS, 0.0), (Sight.ANSWERS, 500.0))
    assert steps == [Remedy.NOTHING] * 2
    assert watch.answers
    assert watch.silent_s(600.0) == 0.0


def test_one_that_is_gone_is_started_and_not_again_at_once() -> None:
    pause_s = GONE_ACTION_PAUSE_S
    _, steps = follow((Sight.GONE, 0.0), (Sight.GONE, pause_s / 2), (Sight.GONE, pause_s))
    assert steps == [Remedy.START, Remedy.NOTHING, Remedy.START]


def test_silence_restarts_it_once_and_then_its_time_begins_anew() -> None:
    begun_s, again_s = 10.0, 10.0 + SILENCE_MAX_S
    watch, steps = follow(
        (Sight.ANSWERS, begun_s),
        (Sight.SILENT, again_s - 1),
        (Sight.SILENT, again_s),
        (Sight.SILENT, again_s + SILENCE_MAX_S - 1),
        (Sight.SILENT, again_s + SILENCE_MAX_S),
    )
    assert steps == [Remedy.NOTHING, Remedy.NOTHING, Remedy.RESTART, Remedy.NOTHING, Remedy.RESTART]
    assert watch.restarts == 2
    assert not watch.answers


def test_who_waits_for_a_node_is_never_restarted() -> None:
    looks = [(Sight.WAITS, second * 60.0) for second in range(60)]
    watch, steps = follow(*looks)
    assert set(steps) == {Remedy.NOTHING}
    assert not watch.answers


def test_silence_counts_from_the_first_look() -> None:
    watch, steps = follow((Sight.SILENT, 1000.0), (Sight.SILENT, 1000.0 + SILENCE_MAX_S - 1))
    assert steps == [Remedy.NOTHING] * 2
    assert watch.silent_s(1000.0 + SILENCE_MAX_S) == SILENCE_MAX_S


def test_a_sentence_is_news_until_it_has_not_held_and_other_numbers_are_none() -> None:
    news = News()
    assert news.of(["its 2 jobs wait", "no AOF"]) == ("its 2 jobs wait", "no AOF")
    assert news.of(["its 31 jobs wait", "no AOF"]) == ()
    assert news.of(["no AOF", "no Java"]) == ("no Java",)
    assert news.of(["its 2 jobs wait"]) == ("its 2 jobs wait",)
