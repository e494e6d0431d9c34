"""What the rewrite should reach next to the others, and what it reached."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from benchmarks.rewrite.datasets import CHANGES, LARGE, SOURCES, Dataset
from benchmarks.rewrite.runners import EVERYTHING, MERGERS, NEVE, SPARK, Record

BAGS = tuple(name for name, source in SOURCES.items() if not source.key)
LONG_KEYS = ("uuid",)
KEYED = (*(name for name in SOURCES if name not in BAGS), *CHANGES)
SHORT_KEYS = tuple(name for name in KEYED if name not in (*LONG_KEYS, *CHANGES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How many times as fast as others Névé should be; above 1 is faster."""

    what: str
    sets: tuple[str, ...]
    against: tuple[str, ...]
    """The fastest of these counts."""
    least: float
    stretch: float | None = None
    base: str = ""
    """The data set on which the others are taken; empty: the same."""
    limited: bool = False
    """Whether the runs with limited memory count; who did not finish does not take part."""


GOALS = (
    Goal(what="best other engine", sets=KEYED, against=MERGERS, least=1.0, stretch=1.3),
    Goal(what="Spark SQL", sets=SHORT_KEYS, against=(SPARK,), least=4.0, stretch=5.0),
    Goal(what="Spark SQL, long keys", sets=LONG_KEYS, against=(SPARK,), least=3.0),
    Goal(
        what="decode + encode",
        sets=tuple(name for name in SHORT_KEYS if name not in LARGE),
        against=("limit",),
        least=0.45,
        stretch=0.6,
    ),
    Goal(what="decode + encode, long keys", sets=LONG_KEYS, against=("limit",), least=0.33),
    Goal(
        what="best other engine, memory limited",
        sets=KEYED,
        against=MERGERS,
        least=1.0,
        limited=True,
    ),
    Goal(what="re-encoding everything", sets=("overlap",), against=(EVERYTHING,), least=2.5),
    Goal(what="bin-packing, Spark SQL", sets=BAGS, against=(SPARK,), least=10.0),
    Goal(what="bin-packing, cp", sets=BAGS, against=("cp",), least=0.6, stretch=0.85),
    Goal(
        what="delete where, plain rewrite",
        sets=("where",),
        against=(NEVE,),
        least=1 / 1.5,
        stretch=1 / 1.1,
        base="dead-10",
    ),
    Goal(
        what="set, plain rewrite",
        sets=("set",),
        against=(NEVE,),
        least=1 / 2,
        stretch=1 / 1.1,
        base="dead-10",
    ),
    Goal(
        what="by Spark's expression, plain rewrite",
        sets=("like",),
        against=(NEVE,),
        least=1 / 2.5,
        stretch=1 / 1.1,
        base="dead-10",
    ),
)


@dataclass(frozen=True, slots=True)
class Reached:
    """What came of a goal on one data set."""

    goal: Goal
    data: str
    against: str
    ratio: float
    disturbed: bool
    """Whether one of both has no undisturbed round."""

    @property
    def state(self) -> str:
        """Return `below`, `reached` or `stretch`."""
        if self.ratio < self.goal.least:
            return "below"
        more = self.goal.stretch
        return "stretch" if more is not None and self.ratio >= more else "reached"

    def as_json(self) -> dict[str, object]:
        """Return it for a report."""
        return {**asdict(self), "state": self.state}


def reached(results: Sequence[tuple[Dataset, Sequence[Record]]]) -> list[Reached]:
    """Return what came of every goal on every data set that was measured, by goal."""
    by_set = {data.name: {record.contender: record for record in done} for data, done in results}
    outcomes = []
    for goal in GOALS:
        for name in goal.sets:
            own = by_set.get(name, {}).get(NEVE)
            others = by_set.get(goal.base or name, {})
            seconds = _seconds([others[one] for one in goal.against if one in others], goal)
            own_s = None if own is None else _seconds([own], goal).get(NEVE)
            if own is not None and seconds and own_s:
                best = min(seconds, key=lambda contender: seconds[contender])
                disturbed = own.disturbed or others[best].disturbed
                outcomes.append(Reached(goal, name, best, seconds[best] / own_s, disturbed))
    return outcomes


def _seconds(records: Sequence[Record], goal: Goal) -> Mapping[str, float]:
    if not goal.limited:
        return {record.contender: record.median_s for record in records if record.rounds}
    budgets = {record.contender: record.budget for record in records}
    return {
        contender: budget.seconds
        for contender, budget in budgets.items()
        if budget is not None and budget.seconds is not None
    }


def summary(outcomes: Sequence[Reached]) -> Table:
    """Return goals and what was reached as a table."""
    shown = Table(title="Névé is so many times as fast as")
    for name in ("goal", "data set", "against"):
        shown.add_column(name)
    for name in ("wanted", "stretch", "reached", ""):
        shown.add_column(name, justify="right")
    colours = {"below": "red", "reached": "green", "stretch": "bold green"}
    for outcome in outcomes:
        more = outcome.goal.stretch
        state = f"[{colours[outcome.state]}]{outcome.state}[/]"
        shown.add_row(
            outcome.goal.what,
            outcome.data,
            outcome.against,
            f"{outcome.goal.least:.2f}",
            "" if more is None else f"{more:.2f}",
            f"{outcome.ratio:.2f}",
            f"{state}, disturbed" if outcome.disturbed else state,
        )
    return shown
