"""Time and ids that tests and simulations foresee, and the token of their gateways."""

TOKEN = "a-token-for-tests"


class ManualClock:
    """A clock that only a test moves."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        """Start at `now_s`."""
        self._now_s = now_s

    def now_s(self) -> float:
        """Return the time now, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move time forward.

        Args:
            seconds: How far; never negative.
        """
        assert seconds >= 0, seconds
        self._now_s += seconds


class CountedIds:
    """Predictable ids for simulations; `scope` keeps two sources apart."""

    def __init__(self, scope: str = "") -> None:
        """Start at one."""
        self._scope = scope
        self._count = 0

    def next(self, prefix: str) -> str:
        """Return the next id."""
        self._count += 1
        return f"{prefix}-{self._scope}{self._count:06d}"
