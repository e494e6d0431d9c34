"""One data set, all contenders, interleaved: warm-up, rounds, memory."""

import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.rewrite.datasets import Dataset
from benchmarks.rewrite.engines import ENGINES
from benchmarks.rewrite.own import Own
from benchmarks.rewrite.runners import (
    EVERYTHING,
    MERGERS,
    NEVE,
    SPARK,
    Budget,
    EngineRunner,
    NeveRunner,
    Record,
    Rules,
    Runner,
    SparkRunner,
    SparkSide,
)
from benchmarks.rewrite.wanted import Wanted
from compactor.spark.engine import SparkEngine

Say = Callable[[str], None]
SLOW_FACTOR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is compared, and with what."""

    engine: SparkEngine
    spark_processes: Callable[[], Iterable[psutil.Process]]
    contenders: tuple[str, ...]
    rounds: int
    rules: Rules
    group_rows: int
    level: int
    scratch: Path
    say: Say

    async def run(self, data: Dataset) -> list[Record]:
        """Measure every contender on a data set."""
        runners = [runner for name in self.contenders if (runner := self._runner(name, data))]
        reference = ""
        try:
            for runner in runners:
                runner.wanted = replace(runner.wanted, reference=reference)
                await runner.warm_up()
                reference = reference or self._keep(runner)
                self._report(runner, "warm-up")
            _shorten(runners)
            for number in range(self.rounds):
                await self._round(number + 1, runners)
            for runner in runners:
                await runner.limited_round()
                if runner.record.budget is not None:
                    self._report(runner, "limited memory", runner.record.budget)
        finally:
            for runner in runners:
                runner.end()
            if reference:
                Path(reference).unlink(missing_ok=True)
        return [runner.record for runner in runners]

    async def _round(self, number: int, runners: Iterable[Runner]) -> None:
        for runner in runners:
            await runner.round()
            self._report(runner, f"round {number}")
            if runner.record.contender == SPARK:
                for own in runners:
                    if isinstance(own, NeveRunner) and own.record.contender == NEVE:
                        await own.renew()

    async def limit(self, data: Dataset, records: Iterable[Record]) -> None:
        """Run Névé under the limit, unless a task's process stayed below it anyway.

        The engine of this contest has tasks with limited memory.
        """
        for record in records:
            if record.contender == NEVE and record.rounds and data.key:
                if record.memory.process_bytes <= self.rules.budget_bytes:
                    record.budget = record.unlimited()
                    continue
                runner = self._runner(NEVE, data)
                assert isinstance(runner, NeveRunner)
                try:
                    record.budget = await runner.run_limited()
                finally:
                    runner.end()
                self._report(runner, "limited memory", record.budget)

    def _report(self, runner: Runner, what: str, budget: Budget | None = None) -> None:
        record, warm_s = runner.record, runner.warm_s
        seconds = [run.seconds for run in record.rounds[-1:]] or list(warm_s.values())
        if budget is not None:
            seconds = [] if budget.seconds is None else [budget.seconds]
        result = record.failed or ", ".join(f"{time_s:.2f} s" for time_s in seconds)
        self.say(f"{runner.wanted.data.name}: {record.contender}, {what} {result}")

    def _ours(self) -> list[psutil.Process]:
        """Return all processes of the benchmark: their time is not foreign."""
        me = psutil.Process()
        return [me, *me.children(recursive=True), *self.spark_processes()]

    def _runner(self, name: str, data: Dataset) -> "Runner | None":
        out = tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch)
        wanted = Wanted(data=data, out=out, group_rows=self.group_rows, level=self.level)
        spark = SparkSide(engine=self.engine, processes=self.spark_processes, ours=self._ours)
        if name in (NEVE, EVERYTHING):
            if name == EVERYTHING and not data.clean:
                return None  # Nothing is copied anyway.
            own = Own.of(data, self.group_rows, self.level)
            own = own if name == NEVE else own.unclean()
            return NeveRunner(wanted, self.rules, spark, own, name=name)
        if name == SPARK:
            return SparkRunner(wanted, self.rules, spark)
        if not ENGINES[name].forms(data):
            return None
        return EngineRunner(name, wanted, self.rules, f"{self.scratch}/{name}.log", self._ours)

    def _keep(self, runner: "Runner") -> str:
        """Keep a result, for the contender that starts from it."""
        result = Path(runner.wanted.file)
        if runner.record.contender not in MERGERS or not result.exists() or runner.record.failed:
            return ""
        reference = self.scratch / f"reference-{runner.wanted.data.name}.parquet"
        shutil.copyfile(result, reference)
        return str(reference)


def _shorten(runners: Iterable[Runner]) -> None:
    """Give one round to engines that took twice the time of the fastest in the warm-up."""
    warm_s = {
        runner: min(runner.warm_s.values())
        for runner in runners
        if runner.record.contender in MERGERS and runner.warm_s
    }
    for runner, seconds in warm_s.items():
        if seconds > SLOW_FACTOR * min(warm_s.values()):
            runner.rounds_max = 1
