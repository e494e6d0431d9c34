"""One data set, all contenders, interleaved: warm-up, rounds, medians."""

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
    NEVE,
    SPARK,
    EngineRunner,
    NeveRunner,
    Record,
    Runner,
    SparkRunner,
)
from benchmarks.rewrite.wanted import Wanted
from compactor.spark.engine import SparkEngine

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is compared, and with what."""

    engine: SparkEngine
    spark_processes: Callable[[], Iterable[psutil.Process]]
    contenders: tuple[str, ...]
    rounds: int
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
                reference = reference or await self._keep(runner)
            for number in range(self.rounds):
                for runner in runners:
                    await runner.round()
                    self.say(f"{data.name}: {runner.record.contender}, round {number + 1}")
        finally:
            for runner in runners:
                runner.end()
        return [runner.record for runner in runners]

    def _runner(self, name: str, data: Dataset) -> "Runner | None":
        out = tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch)
        wanted = Wanted(data=data, out=out, group_rows=self.group_rows, level=self.level)
        if name in (NEVE, EVERYTHING):
            if name == EVERYTHING and not data.clean:
                return None  # Nothing is copied anyway.
            own = Own.of(data, self.group_rows, self.level)
            own = own if name == NEVE else own.unclean()
            return NeveRunner(wanted, self.engine, self.spark_processes, own, name)
        if name == SPARK:
            return SparkRunner(wanted, self.engine, self.spark_processes)
        return EngineRunner(name, wanted) if ENGINES[name].forms(data) else None

    async def _keep(self, runner: "Runner") -> str:
        """Keep a result beside the others, for the contender that starts from it."""
        if not runner.makes_reference or runner.record.failed:
            return ""
        kept = str(self.scratch / f"reference-{runner.wanted.data.name}.parquet")
        runner.empty()
        await runner.once(runner.record.form)
        shutil.copyfile(runner.wanted.file, kept)
        return kept
