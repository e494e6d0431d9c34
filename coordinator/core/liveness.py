"""Who is alive: compactors, their incarnations, and how long each has been silent."""

from dataclasses import dataclass, replace
from enum import Enum

from common.bounded_map import BoundedMap
from common.wire import AttemptProgress

INCARNATIONS_MAX = 8
"""Dead incarnations of one compactor that are remembered, so that stragglers are known."""


class Heard(Enum):
    """What a sign of life means."""

    NEW = "new"
    """First heard of, or again after a goodbye or silence."""
    SAME = "same"
    REPLACED = "replaced"
    """Another process under this name: whatever the one before held is lost."""
    STRAGGLER = "straggler"
    """Sent by a process that is dead: it means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """A compactor that lives, as far as we know."""

    name: str
    incarnation: str
    group: str
    heard_s: float
    node: str = ""
    slots: int = 1
    draining: bool = False
    """It was asked to drain, or says that it does."""
    listed: tuple[AttemptProgress, ...] = ()
    """What its last heartbeat listed."""

    def lists(self, attempt: str) -> AttemptProgress | None:
        """Return what the last heartbeat said of an attempt, or None."""
        return next((each for each in self.listed if each.attempt == attempt), None)


class Compactors:
    """The living compactors by name, and the dead incarnations of each name.

    Always true: the incarnation of a living compactor is not among its dead ones.
    """

    def __init__(self, count_max: int) -> None:
        self._living: dict[str, Compactor] = {}
        self._dead: BoundedMap[str, tuple[str, ...]] = BoundedMap(count_max)
        self._lost: BoundedMap[str, str] = BoundedMap(count_max)
        """Names of silent compactors and their incarnations: they may wake."""

    def every(self) -> list[Compactor]:
        """Return the living compactors, by name."""
        return [self._living[name] for name in sorted(self._living)]

    def of_group(self, group: str) -> list[Compactor]:
        """Return the living compactors of a group, by name."""
        return [each for each in self.every() if each.group == group]

    def get(self, name: str) -> Compactor | None:
        """Return a living compactor, or None."""
        return self._living.get(name)

    def hear(self, news: Compactor) -> Heard:
        """Note a sign of life; a heartbeat's listing and a drain once asked for stay.

        Args:
            news: The compactor as its message shows it, heard now.
        """
        if news.incarnation in (self._dead.get(news.name) or ()):
            return Heard.STRAGGLER
        before = self._living.get(news.name)
        if before is None:
            lost = self._lost.pop(news.name)
            self._living[news.name] = news
            if lost is not None and lost != news.incarnation:
                self.bury(news.name, lost)
            return Heard.NEW
        if before.incarnation != news.incarnation:
            self.bury(before.name)
            self._living[news.name] = news
            return Heard.REPLACED
        self._living[news.name] = replace(news, draining=news.draining or before.draining)
        return Heard.SAME

    def drain(self, name: str) -> bool:
        """Let a compactor take nothing more; return whether it lives."""
        compactor = self._living.get(name)
        if compactor is None:
            return False
        self._living[name] = replace(compactor, draining=True)
        return True

    def lose(self, name: str) -> None:
        """A living compactor was silent too long; if it wakes, it is heard as NEW."""
        self._lost.put(name, self._living.pop(name).incarnation)

    def bury(self, name: str, incarnation: str = "") -> Compactor | None:
        """A process is dead for sure: nothing that it has sent counts any more.

        Args:
            name: The compactor.
            incarnation: The process; empty: whichever lives.

        Returns:
            The compactor, if it was this process that lived.
        """
        living = self._living.get(name)
        dying = incarnation or (living.incarnation if living else "")
        if dying:
            known = [each for each in self._dead.get(name) or () if each != dying]
            self._dead.put(name, (*known, dying)[-INCARNATIONS_MAX:])
        if living is None or living.incarnation != dying:
            return None
        return self._living.pop(name)

    def silent(self, now_s: float, silence_max_s: float) -> list[Compactor]:
        """Return the compactors unheard of for too long, by name."""
        return [each for each in self.every() if now_s - each.heard_s >= silence_max_s]

    def forgive(self, gap_s: float) -> None:
        """We were not listening for so long: it is nobody's silence."""
        for name, compactor in self._living.items():
            self._living[name] = replace(compactor, heard_s=compactor.heard_s + gap_s)
