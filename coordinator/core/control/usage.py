"""How many bytes each class of work was handed, in the last minute and in all."""

from collections import Counter, deque
from collections.abc import Mapping

from common.spi.controller import ShareClass

USED_WINDOW_S = 60.0
USED_STEP_S = 1.0


class ClassUsage:
    """Bytes by class. Bounded by the window: one entry a second."""

    def __init__(self) -> None:
        self.total_bytes: Counter[ShareClass] = Counter(dict.fromkeys(ShareClass, 0))
        """Since the coordinator was started."""
        self._steps: deque[tuple[float, Counter[ShareClass]]] = deque()
        self._window: Counter[ShareClass] = Counter()

    def note(self, share_class: ShareClass, size_bytes: int, now_s: float) -> None:
        """A job of so many bytes was handed out."""
        self._expire(now_s)
        if not self._steps or now_s - self._steps[-1][0] >= USED_STEP_S:
            self._steps.append((now_s, Counter()))
        self._steps[-1][1][share_class] += size_bytes
        self._window[share_class] += size_bytes
        self.total_bytes[share_class] += size_bytes

    def last_minute(self, now_s: float) -> Mapping[ShareClass, int]:
        """Return the bytes of each class in the last minute."""
        self._expire(now_s)
        return {each: self._window[each] for each in ShareClass}

    def _expire(self, now_s: float) -> None:
        while self._steps and now_s - self._steps[0][0] >= USED_WINDOW_S:
            self._window.subtract(self._steps.popleft()[1])


def fractions(amounts: Mapping[ShareClass, float]) -> dict[ShareClass, float]:
    """Return each amount as a part of all; all are 0 if there is nothing."""
    total = sum(amounts.values())
    return {each: amount / total if total else 0.0 for each, amount in amounts.items()}
