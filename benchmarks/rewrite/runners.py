"""Who runs in a contest: warm-up in every form, then measured rounds; outputs are checked."""

import asyncio
import shutil
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import duckdb
import psutil

from benchmarks.rewrite.datasets import TOMBSTONE, VERSION
from benchmarks.rewrite.engines import ENGINES
from benchmarks.rewrite.measure import Meter, Used, tree
from benchmarks.rewrite.own import Own
from benchmarks.rewrite.spark_work import Answer, Ask, forms_for
from benchmarks.rewrite.wanted import Wanted
from benchmarks.rewrite.worker import EngineProcess
from compactor.spark.engine import SparkEngine

NEVE, SPARK = "neve", "spark-sql"
EVERYTHING = "neve-all"
"""Névé without copying what overlaps nothing: every row group is decoded and encoded."""
SPARK_ROUNDS_MAX = 2


@dataclass(slots=True)
class Record:
    """What a contender has shown on a data set."""

    contender: str
    form: str = ""
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    task_peak_bytes: int = 0
    bytes_out: int = 0
    rows_out: int = 0
    digest: str = ""
    timings_s: dict[str, float] = field(default_factory=dict)
    failed: str = ""

    @property
    def median_s(self) -> float:
        """Median of the seconds."""
        return statistics.median(self.seconds) if self.seconds else float("nan")

    def as_json(self) -> dict[str, object]:
        """Return it for a report."""
        return {**asdict(self), "median_s": self.median_s}


class Runner(ABC):
    """Runs one contender; what it leaves is checked and removed."""

    makes_reference = False
    warm_ups = 1
    rounds_max = 1 << 30

    def __init__(self, name: str, wanted: Wanted, forms: list[str]) -> None:
        self.record = Record(name)
        self.wanted = wanted
        self.forms = forms

    @abstractmethod
    async def once(self, form: str) -> tuple[float, Used]:
        """Run a form once."""

    def empty(self) -> None:
        """Remove what the last run has left."""
        shutil.rmtree(self.wanted.out, ignore_errors=True)
        Path(self.wanted.out).mkdir()

    def outputs(self) -> list[str]:
        """Return the files of the last run."""
        inputs = set(self.wanted.data.files)  # delta-rs works on links to them.
        found = Path(self.wanted.out).rglob("*.parquet")
        return [str(path) for path in found if path.name not in inputs]

    def end(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.wanted.out, ignore_errors=True)

    async def warm_up(self) -> None:
        """Run every form, the first one several times; keep the fastest, check what it writes."""
        best_s = float("inf")
        for number, form in enumerate(self.forms):
            try:
                for _ in range(1 if number else self.warm_ups):
                    self.empty()
                    seconds, _used = await self.once(form)
            except Exception as error:
                self.record.failed = f"{form}: {type(error).__name__}: {error}"
                continue
            if seconds < best_s:
                best_s, self.record.form, self.record.failed = seconds, form, ""
                self._check()

    async def round(self) -> None:
        """Measure one run."""
        if self.record.failed or len(self.record.seconds) >= self.rounds_max:
            return
        self.empty()
        try:
            seconds, used = await self.once(self.record.form)
        except Exception as error:
            self.record.failed = f"{self.record.form}: {type(error).__name__}: {error}"
            return
        self.record.seconds.append(seconds)
        self.record.cpu_s.append(used.cpu_s)
        self.record.peak_bytes = max(self.record.peak_bytes, used.peak_bytes)
        self.record.task_peak_bytes = max(self.record.task_peak_bytes, used.largest_bytes)

    def _check(self) -> None:
        record, data, files = self.record, self.wanted.data, self.outputs()
        if not files:  # A plain copy has the inputs' names.
            return
        record.bytes_out = sum(Path(file).stat().st_size for file in files)
        what = f"count(*), sum(hash({', '.join(data.key)}, {VERSION}, {TOMBSTONE}))"
        if not data.key:
            what = "count(*), 0"
        found = duckdb.execute(f"SELECT {what} FROM read_parquet($1)", [files]).fetchone()
        assert found is not None
        record.rows_out, record.digest = int(found[0]), str(found[1])


class EngineRunner(Runner):
    """An engine in a process of its own."""

    def __init__(self, name: str, wanted: Wanted) -> None:
        super().__init__(name, wanted, list(ENGINES[name].forms(wanted.data)))
        self.makes_reference = name in ("polars", "duckdb", "datafusion")
        self._process = EngineProcess(name)

    async def once(self, form: str) -> tuple[float, Used]:
        self._process.prepare(self.wanted)
        meter = Meter(tree(self._process.pid))
        meter.start()
        try:
            seconds = await asyncio.to_thread(self._process.run, form, self.wanted)
        finally:
            used = meter.stop()
        return seconds, used

    def end(self) -> None:
        self._process.end()
        super().end()


class SparkRunner(Runner):
    """Spark SQL in the compactor's own kind of driver."""

    warm_ups = 2
    rounds_max = SPARK_ROUNDS_MAX

    def __init__(
        self,
        wanted: Wanted,
        engine: SparkEngine,
        processes: Callable[[], Iterable[psutil.Process]],
        name: str = SPARK,
    ) -> None:
        super().__init__(name, wanted, forms_for(wanted.data.key))
        self._engine = engine
        self._processes = processes

    async def once(self, form: str) -> tuple[float, Used]:
        return await self._ask(Ask(form, self.wanted))

    async def _ask(self, ask: Ask) -> tuple[float, Used]:
        meter = Meter(self._processes)
        meter.start()
        try:
            answer = await self._engine.run_payload("bench", ask, lambda _: None)
        finally:
            used = meter.stop()
        assert isinstance(answer, Answer), answer
        self.heard(answer)
        return answer.seconds, used

    def heard(self, answer: Answer) -> None:
        """Take note of an answer."""


class NeveRunner(SparkRunner):
    """Névé's rewrite, verification included, in the same driver."""

    rounds_max = Runner.rounds_max

    def __init__(
        self,
        wanted: Wanted,
        engine: SparkEngine,
        processes: Callable[[], Iterable[psutil.Process]],
        own: Own,
        name: str = NEVE,
    ) -> None:
        super().__init__(wanted, engine, processes, name)
        self.forms = ["rewrite"]
        self._own = own

    async def once(self, form: str) -> tuple[float, Used]:
        return await self._ask(Ask(form, self.wanted, self._own.assignment()))

    def heard(self, answer: Answer) -> None:
        self.record.form = answer.kernel
        self.record.timings_s = dict(answer.timings_s or {})

    def empty(self) -> None:
        self._own.remove_outputs()

    def outputs(self) -> list[str]:
        return [str(path) for path in Path(self.wanted.data.folder).glob("_neve/**/*.parquet")]

    def end(self) -> None:
        self._own.remove_outputs()
        super().end()
