"""What the rewrite should reach beside the others, and what it reached."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from benchmarks.rewrite.datasets import Dataset
from benchmarks.rewrite.runners import EVERYTHING, NEVE, SPARK, Record

NARROW = ("lsm", "lsm-int", "lsm-crc", "lineitem", "tiny", "overlap")
HARD = ("uuid", "wide")
BAGS = ("bag", "bag-orders")
MERGERS = ("polars", "duckdb", "datafusion")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How many times as fast as others Névé should be; above 1 is faster."""

    what: str
    sets: tuple[str, ...]
    against: tuple[str, ...]
    """The fastest of these counts."""
    least: float
    stretch: float | None = None


GOALS = (
    Goal(
        what="keyed merge, Spark SQL",
        sets=("lsm", "lsm-int", "lsm-crc", "lineitem", "uuid", "wide", "overlap"),
        against=(SPARK,),
        least=3.0,
        stretch=5.0,
    ),
    Goal(what="tiny files, Spark SQL", sets=("tiny",), against=(SPARK,), least=4.0, stretch=6.0),
    Goal(what="best engine, narrow rows", sets=NARROW, against=MERGERS, least=1.0, stretch=1.3),
    Goal(what="best engine, wide rows, long keys", sets=HARD, against=MERGERS, least=0.85),
    Goal(what="re-encoding everything", sets=("overlap",), against=(EVERYTHING,), least=2.5),
    Goal(what="bin-packing, Spark SQL", sets=BAGS, against=(SPARK,), least=10.0),
    Goal(
        what="bin-packing, cp made durable",
        sets=BAGS,
        against=("cp+sync",),
        least=0.6,
        stretch=0.85,
    ),
)


@dataclass(frozen=True, slots=True)
class Reached:
    """What came of a goal on one data set."""

    goal: Goal
    data: str
    against: str
    ratio: float

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
    by_set = {data.name: _seconds(records) for data, records in results}
    found = []
    for goal in GOALS:
        for name in goal.sets:
            seconds = by_set.get(name, {})
            others = [each for each in goal.against if each in seconds]
            if NEVE in seconds and others:
                best = min(others, key=lambda each: seconds[each])
                found.append(Reached(goal, name, best, seconds[best] / seconds[NEVE]))
    return found


def _seconds(records: Sequence[Record]) -> Mapping[str, float]:
    return {record.contender: record.median_s for record in records if record.seconds}


def summary(found: Sequence[Reached]) -> Table:
    """Return goals and what was reached as a table."""
    shown = Table(title="Névé is so many times as fast as")
    for name in ("goal", "data set", "against"):
        shown.add_column(name)
    for name in ("wanted", "stretch", "reached", ""):
        shown.add_column(name, justify="right")
    colours = {"below": "red", "reached": "green", "stretch": "bold green"}
    for each in found:
        more = each.goal.stretch
        shown.add_row(
            each.goal.what,
            each.data,
            each.against,
            f"{each.goal.least:g}",
            "" if more is None else f"{more:g}",
            f"{each.ratio:.2f}",
            f"[{colours[each.state]}]{each.state}[/]",
        )
    return shown
