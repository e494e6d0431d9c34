"""Selectors are asked in threads, for a bounded time, and are not believed blindly."""

import asyncio
import threading
from collections.abc import Callable, Mapping

import pytest

from common.errors import CompactionError, PluginError
from common.model.request import SelectorSpec
from common.spi.planner import Chosen, SelectorParameters
from coordinator.requests import SELECTORS_AT_ONCE, UNENDED_MAX, SelectorCalls
from tests.support.planning import TABLET, files_of
from tests.support.request_shell import TABLE

pytestmark = pytest.mark.unit
FILES = tuple(files_of({"a": 1, "b": 2}).values())


class Says:
    def __init__(self, answer: Callable[[], object]) -> None:
        self.answer = answer

    def check(self, options: Mapping[str, str]) -> None: ...

    def select(self, parameters: SelectorParameters) -> Chosen:
        return self.answer()  # type: ignore[return-value]  # what a wrong one may return


def asked(selectors: SelectorCalls) -> "asyncio.Future[Chosen]":
    return asyncio.ensure_future(
        selectors.choose(SelectorSpec(name="x"), TABLE, TABLET, FILES, 0.0)
    )


def test_a_choice_is_sorted_and_holds_each_file_once() -> None:
    async def story() -> None:
        selectors = SelectorCalls(
            lambda _: Says(lambda: Chosen(files=("b", "a", "b"), reason="all"))
        )
        assert (await asked(selectors)).files == ("a", "b")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: Chosen(files=("c",), reason="why not"), "selector x chose 'c'"),
        (lambda: None, "selector x returned NoneType, expected Chosen"),
        (lambda: 1 // 0, "selector x: ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_of_a_selector_is_refused(
    answer: Callable[[], object], message: str
) -> None:
    async def story() -> None:
        with pytest.raises(CompactionError, match=message):
            await asked(SelectorCalls(lambda _: Says(answer)))

    asyncio.run(story())


def test_slow_selectors_fail_and_hold_no_other_up() -> None:
    stuck = threading.Event()
    slow, quick = Says(lambda: stuck.wait() and None), Says(lambda: Chosen(reason="none"))
    answers = iter([slow] * SELECTORS_AT_ONCE + [quick])

    async def story() -> None:
        selectors = SelectorCalls(lambda _: next(answers), answer_max_s=0.05)
        late = [asked(selectors) for _ in range(SELECTORS_AT_ONCE)]
        for outcome in await asyncio.gather(*late, return_exceptions=True):
            assert str(outcome) == "selector x did not answer within 0.05 s"
        assert (await asked(selectors)).files == ()
        stuck.set()

    asyncio.run(story())


def test_calls_that_do_not_end_have_a_bound() -> None:
    stuck = threading.Event()

    async def story() -> None:
        answers: Callable[[], object] = lambda: stuck.wait() and None  # noqa: E731  shown to a fake
        selectors = SelectorCalls(lambda _: Says(answers), answer_max_s=0.05)
        for _ in range(UNENDED_MAX // SELECTORS_AT_ONCE):
            some = [asked(selectors) for _ in range(SELECTORS_AT_ONCE)]
            await asyncio.gather(*some, return_exceptions=True)
        with pytest.raises(PluginError, match="are still running"):
            await asked(selectors)
        stuck.set()

    asyncio.run(story())
