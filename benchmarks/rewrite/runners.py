"""Who runs in a contest: warm-up in every form, then measured rounds; outputs are checked."""

import asyncio
import shutil
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.rewrite.engines import ENGINES
from benchmarks.rewrite.measure import Memory, MemorySampler, Processes, Used, Watch, tree
from benchmarks.rewrite.outputs import Output, inspect_outputs
from benchmarks.rewrite.own import Own
from benchmarks.rewrite.spark_work import Answer, Ask, forms_for
from benchmarks.rewrite.wanted import Wanted
from benchmarks.rewrite.worker import EngineProcess
from compactor.spark.engine import SparkEngine

NEVE, SPARK = "neve", "spark-sql"
EVERYTHING = "neve-all"
"""Névé without copying what overlaps nothing: every row group is decoded and encoded."""
MERGERS = ("polars", "duckdb", "datafusion")
SPARK_ROUNDS_MAX = 2
LIMITED_RUNS = 4
"""Runs of Névé in the application with limited memory, which is new; the last one counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a round counts, and what else is measured."""

    disturbance_max: float
    """Share of the machine that others may take during a round."""
    retries: int
    """Disturbed rounds that are repeated, for each contender and data set."""
    budget_bytes: int
    """Memory under which engines run once more, and Névé's tasks; 0: they do not."""
    memory_bytes_max: int
    """Memory at which an engine is ended, so that the machine goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measured run."""

    seconds: float
    """Until the outputs are durable."""
    unsynced_s: float | None
    used: Used
    disturbed: bool
    split_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What happened under the memory limit."""

    seconds: float | None
    """None: it did not finish."""
    form: str = ""
    process_bytes: int = 0
    note: str = ""


@dataclass(slots=True)
class Record:
    """What a contender has shown on a data set."""

    contender: str
    form: str = ""
    rounds: list[Round] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    sampled_cpu_s: float = 0.0
    """Processor time of the rounds in which memory was sampled; compare `memory.cost_s`."""
    budget: Budget | None = None
    output: Output | None = None
    failed: str = ""

    @property
    def counted(self) -> list[Round]:
        """The rounds that count: the undisturbed ones, or all if there are none."""
        return [run for run in self.rounds if not run.disturbed] or self.rounds

    @property
    def disturbed(self) -> bool:
        """Whether only disturbed rounds count."""
        return any(run.disturbed for run in self.counted)

    @property
    def median_s(self) -> float:
        """Median seconds of the rounds that count."""
        return self._median([run.seconds for run in self.counted])

    @property
    def unsynced_s(self) -> float | None:
        """The same without waiting for the disk; None: it cannot be separated."""
        times = [run.unsynced_s for run in self.counted if run.unsynced_s is not None]
        return self._median(times) if times else None

    @property
    def cpu_s(self) -> float:
        """Median processor seconds of the rounds that count."""
        return self._median([run.used.cpu_s for run in self.counted])

    @property
    def split_s(self) -> dict[str, float]:
        """Medians of the parts of a job."""
        names = list(self.counted[0].split_s) if self.counted else []
        return {name: self._median([run.split_s[name] for run in self.counted]) for name in names}

    def unlimited(self) -> Budget:
        """Return what counts if memory stayed below the limit without one."""
        return Budget(
            seconds=self.median_s,
            form=self.form,
            process_bytes=self.memory.process_bytes,
            note="needs no more",
        )

    def as_json(self) -> dict[str, object]:
        """Return it for a report."""
        medians = {
            "median_s": self.median_s,
            "median_unsynced_s": self.unsynced_s,
            "median_cpu_s": self.cpu_s,
            "median_split_s": self.split_s,
            "disturbed": self.disturbed,
        }
        return {**asdict(self), **medians}

    @staticmethod
    def _median(values: list[float]) -> float:
        return statistics.median(values) if values else float("nan")


@dataclass(frozen=True, slots=True)
class Ran:
    """How long one run took, by the contender's own clock."""

    seconds: float
    unsynced_s: float | None
    split_s: Mapping[str, float] = field(default_factory=dict)


class Runner(ABC):
    """Runs one contender; what it leaves is checked and removed."""

    warm_ups = 1
    rounds_max = 1 << 30

    def __init__(self, name: str, wanted: Wanted, forms: list[str], rules: Rules) -> None:
        self.record = Record(name)
        self.wanted = wanted
        self.forms = forms
        self.rules = rules
        self.warm_s: dict[str, float] = {}
        """Seconds of each form in its last warm-up."""
        self._retries = rules.retries
        self._rounds_done = 0

    @abstractmethod
    async def once(self, form: str) -> Ran:
        """Run a form once."""

    @abstractmethod
    def watch(self) -> Watch:
        """Return what measures processor time."""

    def empty(self) -> None:
        """Remove what the last run has left."""
        shutil.rmtree(self.wanted.out, ignore_errors=True)
        Path(self.wanted.out).mkdir()

    def outputs(self) -> list[str]:
        """Return the files of the last run."""
        inputs = set(self.wanted.data.files)  # delta-rs works on links to them.
        paths = Path(self.wanted.out).rglob("*.parquet")
        return [str(path) for path in paths if path.name not in inputs]

    def end(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.wanted.out, ignore_errors=True)

    async def warm_up(self) -> None:
        """Run every form, the first one several times; keep the fastest, check what it writes.

        Large data sets have no further rounds: the fastest run counts.
        """
        large = self.wanted.data.large
        for number, form in enumerate(self.forms):
            try:
                for _ in range(1 if number or large else self.warm_ups):
                    run = await self._measured(form)
            except Exception as error:
                if not self.record.form:
                    self.record.failed = f"{form}: {type(error).__name__}: {error}"
                continue
            self.warm_s[form] = run.seconds
            if run.seconds <= min(self.warm_s.values()):
                self.record.failed = ""
                self.record.form = self.record.form if self._names_itself else form
                self.record.rounds = [run] if large else []
                if files := self.outputs():  # A plain copy has the inputs' names.
                    like = self.wanted.data.paths[0]
                    self.record.output = await asyncio.to_thread(inspect_outputs, files, like)

    _names_itself = False

    async def round(self) -> None:
        """Measure one run; a disturbed one is shown, but repeated while retries are left."""
        if self.record.failed or self._rounds_done >= self.rounds_max or self.wanted.data.large:
            return
        self._rounds_done += 1
        while True:
            try:
                run = await self._measured(self.record.form)
            except Exception as error:
                self.record.failed = f"{self.record.form}: {type(error).__name__}: {error}"
                return
            self.record.rounds.append(run)
            if not run.disturbed or not self._retries:
                return
            self._retries -= 1

    async def _measured(self, form: str) -> Round:
        self.empty()
        watch = self.watch()
        watch.start()
        ran: Ran | None = None
        try:
            ran = await self.once(form)
        finally:
            used = watch.stop()
        return Round(
            seconds=ran.seconds,
            unsynced_s=ran.unsynced_s,
            used=used,
            disturbed=used.disturbance > self.rules.disturbance_max,
            split_s=ran.split_s,
        )

    @abstractmethod
    async def limited_round(self) -> None:
        """Run once more under the memory limit."""


class EngineRunner(Runner):
    """An engine in a process of its own.

    It is one process, so sampling its memory in every round costs a ten-thousandth of a core. It
    is ended when it would take the machine's memory.
    """

    def __init__(self, name: str, wanted: Wanted, rules: Rules, log: str, ours: Processes) -> None:
        # An engine that can move rows to the disk knows when it has to.
        wanted = replace(wanted, memory_bytes=rules.memory_bytes_max)
        super().__init__(name, wanted, list(ENGINES[name].forms(wanted.data)), rules)
        self._log = log
        self._ours = ours
        self._process = EngineProcess(name, log)

    async def once(self, form: str) -> Ran:
        process = self._process
        await asyncio.to_thread(process.prepare, self.wanted)
        sampler = MemorySampler(tree(process.pid)(), self.wanted.memory_bytes)
        sampler.start()
        try:
            timing = await asyncio.to_thread(process.run, form, self.wanted)
        except Exception as error:
            memory = sampler.stop()
            self._restart()
            if memory.ended:
                needed = f"ended when it had {memory.process_bytes / 1e6:,.0f} MB"
                raise MemoryError(needed) from error
            raise
        memory = sampler.stop()
        self._last = memory
        if not self._is_limited:
            self.record.memory.include(memory)
            self.record.memory.cost_s += memory.cost_s
        return Ran(timing.seconds, timing.unsynced_s)

    async def _measured(self, form: str) -> Round:
        run = await super()._measured(form)
        if not self._is_limited:
            self.record.sampled_cpu_s += run.used.cpu_s
        return run

    def watch(self) -> Watch:
        if not self._process.alive:
            self._restart()
        return Watch(tree(self._process.pid), self._ours)

    async def limited_round(self) -> None:
        """Run under the limit, unless memory stayed below it anyway.

        Forms are tried from the fastest to the slowest; the first that finishes counts.
        """
        record, limit_bytes = self.record, self.rules.budget_bytes
        if record.contender not in MERGERS or record.failed or not limit_bytes:
            return
        if record.memory.peak_bytes <= limit_bytes:
            record.budget = record.unlimited()
            return
        notes = set()
        self.wanted = replace(self.wanted, memory_bytes=limit_bytes)
        for form in sorted(self.warm_s, key=lambda form: self.warm_s[form]):
            self._restart()  # What earlier runs have kept would count.
            try:
                run = await self._measured(form)
            except Exception as error:
                killed = isinstance(error, MemoryError)
                notes.add("not finished" if killed else f"{form}: {str(error)[:80]}")
                continue
            used_bytes = self._last.process_bytes
            record.budget = Budget(seconds=run.seconds, form=form, process_bytes=used_bytes)
            return
        record.budget = Budget(seconds=None, note="; ".join(sorted(notes)))

    def end(self) -> None:
        self._process.end()
        super().end()

    def _restart(self) -> None:
        self._process.end()
        self._process = EngineProcess(self.record.contender, self._log)

    @property
    def _is_limited(self) -> bool:
        return self.wanted.memory_bytes < self.rules.memory_bytes_max

    _last = Memory()


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSide:
    """The application in which Spark SQL and Névé run."""

    engine: SparkEngine
    processes: Processes
    """Of the whole stack."""
    ours: Processes
    """All processes of the benchmark."""


class SparkRunner(Runner):
    """Spark SQL in the compactor's own kind of driver."""

    rounds_max = SPARK_ROUNDS_MAX

    def __init__(
        self, wanted: Wanted, rules: Rules, spark: SparkSide, *, name: str = SPARK
    ) -> None:
        super().__init__(name, wanted, forms_for(wanted.data.key), rules)
        self._spark = spark

    async def once(self, form: str) -> Ran:
        return await self._ask(Ask(form, self.wanted))

    def watch(self) -> Watch:
        return Watch(self._spark.processes, self._spark.ours)

    async def warm_up(self) -> None:
        self._sampling = True
        await super().warm_up()
        self._sampling = False

    async def limited_round(self) -> None:
        """Do nothing: the heap of the application is what it is."""

    async def _measured(self, form: str) -> Round:
        if not self._sampling:
            return await super()._measured(form)
        sampler = MemorySampler(self._spark.processes())
        sampler.start()
        try:
            run = await super()._measured(form)
        finally:
            self._last = sampler.stop()
        self.record.memory.include(self._last)
        self.record.memory.cost_s += self._last.cost_s
        self.record.sampled_cpu_s += run.used.cpu_s
        return run

    _sampling = False
    _last = Memory()

    async def _ask(self, ask: Ask) -> Ran:
        answer = await self._spark.engine.run_payload("bench", ask, lambda _: None)
        assert isinstance(answer, Answer), answer
        self.heard(answer)
        return Ran(answer.seconds, answer.unsynced_s, answer.split_s)

    def heard(self, answer: Answer) -> None:
        """Take note of an answer."""


class NeveRunner(SparkRunner):
    """Névé's rewrite, verification included, in the same driver."""

    warm_ups = 2
    rounds_max = Runner.rounds_max
    _names_itself = True

    def __init__(
        self, wanted: Wanted, rules: Rules, spark: SparkSide, own: Own, *, name: str = NEVE
    ) -> None:
        super().__init__(wanted, rules, spark, name=name)
        self.forms = ["rewrite"]
        self._own = own

    async def once(self, form: str) -> Ran:
        return await self._ask(Ask(form, self.wanted, self._own.assignment()))

    def heard(self, answer: Answer) -> None:
        self.record.form = answer.kernel

    async def renew(self) -> None:
        """Run once, which does not count: Spark SQL has ended the process of the last run."""
        if not self.record.failed and not self.wanted.data.large:
            self.empty()
            await self.once("rewrite")

    async def run_limited(self) -> Budget:
        """Run in an application whose tasks have the limit; it holds for a task's process."""
        limit_bytes, self._sampling = self.rules.budget_bytes, True
        try:
            for _ in range(1 if self.wanted.data.large else LIMITED_RUNS):
                run = await self._measured("rewrite")
        except Exception as error:
            return Budget(seconds=None, note=f"{type(error).__name__}: {error}"[:80])
        used_bytes = self._last.process_bytes
        exceeded = f"took {used_bytes / 1e6:,.0f} MB" if used_bytes > limit_bytes else ""
        return Budget(
            seconds=None if exceeded else run.seconds,
            form=self.record.form,
            process_bytes=used_bytes,
            note=exceeded,
        )

    def empty(self) -> None:
        self._own.remove_outputs()

    def outputs(self) -> list[str]:
        return [str(path) for path in Path(self.wanted.data.folder).glob("_neve/**/*.parquet")]

    def end(self) -> None:
        self._own.remove_outputs()
        super().end()
