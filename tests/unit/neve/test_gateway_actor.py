"""The gateway's actor: when it takes its calls through Ray for lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from ray.exceptions import RayActorError

from neve.gateway.actor import RAY_FAILURES_MAX, until_calls_fail

WAIT_S = 0.01
Answer = str | BaseException | None
"""What a call returns or raises; None: it is never answered."""


class Actor:
    """Answers its calls in turn; the last answer repeats."""

    def __init__(self, *answers: Answer) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        self._last = answers[-1]
        self.calls = 0

    async def edition(self) -> str:
        self.calls += 1
        answer = next(self._answers, self._last)
        if isinstance(answer, BaseException):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return str(answer)


def calls_until_lost(*answers: Answer) -> int:
    """Return how many calls an actor with these answers gets."""
    actor = Actor(*answers)
    asyncio.run(until_calls_fail(actor.edition, interval_s=0.0, wait_max_s=WAIT_S))
    return actor.calls


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="no answer"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        RayActorError(),
    ],
)
def test_calls_that_fail_in_a_row_are_lost(answer: Answer) -> None:
    assert calls_until_lost(answer) == RAY_FAILURES_MAX


def test_one_call_that_fails_is_forgotten_after_an_answer() -> None:
    assert calls_until_lost(None, "answer", MemoryError(), "answer", None) == 6
