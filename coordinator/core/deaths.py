"""Jobs that were under way when their compactor died: once is chance, twice may be the job.

A pod that was ended for its memory cannot say so: its attempts are lost like those of a
machine that failed. So the next attempt after a second death in a row is halved, as if it
had run out of memory, and its inputs pause, in the end for good, as if it had failed.
"""

from dataclasses import dataclass, replace

from common.bounded_map import BoundedMap
from common.model.tablet import TabletId
from coordinator.core.retry import Inputs


@dataclass(frozen=True, slots=True)
class Death:
    """What is remembered of the inputs of a job."""

    count: int = 0
    """Attempts in a row that ended with their compactor."""
    halvings: int = 0
    """How often the job was halved, as far as we were told."""

    @property
    def again(self) -> bool:
        """Whether it was not the first time."""
        return self.count > 1


class Deaths:
    """By inputs. Bounded: what is forgotten counts as chance once more."""

    def __init__(self, most: int) -> None:
        self._known: BoundedMap[Inputs, Death] = BoundedMap(most)

    def died(self, tablet: TabletId, inputs: tuple[str, ...]) -> Death:
        """Note that an attempt has ended with its compactor; return what is known now."""
        known = self._known.get((tablet, inputs)) or Death()
        death = replace(known, count=known.count + 1)
        if death.again:
            death = replace(death, halvings=known.halvings + 1)
        self._known.put((tablet, inputs), death)
        return death

    def halved(self, tablet: TabletId, inputs: tuple[str, ...], halvings: int) -> None:
        """Note how often a job was halved by now, so that deaths count on from there."""
        if halvings:
            known = self._known.get((tablet, inputs)) or Death()
            self._known.put((tablet, inputs), replace(known, halvings=halvings))

    def forget(self, tablet: TabletId, inputs: tuple[str, ...]) -> None:
        """Begin anew: a job over these inputs has succeeded."""
        self._known.pop((tablet, inputs))
