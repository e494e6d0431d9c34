"""Small jobs of several attempts in one job of the engine's: pure of any engine.

Handing out a job costs the engine about as much as a small merge. While as many are under
way as there are cores, whoever comes waits; when one of them ends, those that have waited
go together. Nobody waits for company: a job that comes to a free core goes alone, at once.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

TOGETHER_MAX = 16
"""Jobs that share one; each of them is told its end when all have ended."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Entry(Generic[Item, Result]):
    def __init__(self, item: Item) -> None:
        self.item = item
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.done = False

    def outcome(self) -> Result:
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class Sharing(Generic[Item, Result]):
    """Whoever waits, and how many jobs are under way."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._waiting: deque[_Entry[Item, Result]] = deque()
        self._under_way = 0

    def run(
        self, item: Item, together: Callable[[Sequence[Item]], Sequence[Result]], most: int
    ) -> Result:
        """Have something done, alone or with others; return its result.

        Args:
            item: What is to be done.
            together: Does several; it is called in the thread of one of those who wait.
            most: Calls under way at a time.

        Raises:
            Exception: What the call has raised, for everybody who was in it.
        """
        mine: _Entry[Item, Result] = _Entry(item)
        with self._turn:
            self._waiting.append(mine)
            self._turn.wait_for(lambda: mine.done or self._may_go(mine, most))
            if mine.done:
                return mine.outcome()
            count = min(len(self._waiting), TOGETHER_MAX)
            entries = [self._waiting.popleft() for _ in range(count)]
            self._under_way += 1
        try:
            found = together([each.item for each in entries])
            for each, result in zip(entries, found, strict=True):
                each.result = result
        except BaseException as error:
            for each in entries:
                each.error = error
            raise
        finally:
            with self._turn:
                self._under_way -= 1
                for each in entries:
                    each.done = True
                self._turn.notify_all()
        return mine.outcome()

    def _may_go(self, mine: _Entry[Item, Result], most: int) -> bool:
        """Return whether the first of those who wait may take the others along."""
        return bool(self._waiting) and self._waiting[0] is mine and self._under_way < most
