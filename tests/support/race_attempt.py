"""An attempt on a lake table: it rewrites files with PyArrow, and publishes by the product's rules.

It stands for a compactor. `between` is called before each step, so that other writers get in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from common.errors import CompactionError
from common.lake import rules
from common.lake.source import (
    Answer,
    Commit,
    KeptRows,
    LakeFile,
    LakeOutput,
    Planned,
    Snapshot,
    TableSource,
)

NOW_S = 1_800_000_000.0


def nothing(_step: rules.PublishStep) -> None:
    """Let no other writer in."""


class RaceFiles(Protocol):
    """Data files of a table, by path."""

    def stored(self, path: str) -> pa.Table:
        """Return all rows of a file."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Store a file."""
        ...

    def stats(self, head: Snapshot, data: bytes, rows: int) -> str:
        """Return the statistics of a file."""
        ...


@dataclass
class LakeAttempt:
    """One attempt. `groups` are the inputs of each output, by path."""

    name: str
    source: TableSource
    files: RaceFiles
    between: Callable[[rules.PublishStep], None] = nothing
    answers: Callable[[Answer], Answer] = lambda answer: answer
    """What the attempt hears of an answer."""
    is_held: Callable[[], bool] = lambda: True
    steps: list[rules.PublishStep] = field(default_factory=list)
    sent: list[Commit] = field(default_factory=list)
    now_s: float = NOW_S

    def rewrite(self, head: Snapshot, groups: Sequence[Sequence[str]]) -> rules.Publishing:
        """Write one output for each group of inputs."""
        inputs = [head.files[path] for group in groups for path in group]
        planned = Planned(
            head.table_id,
            head.version,
            {file.path: file.deletes for file in inputs},
            {file.path: self.source.positions(file) for file in inputs},
            {file.path: file.sequence for file in inputs},
            {file.path: file.equality for file in inputs},
            {file.path: self.source.matched(file) for file in inputs},
        )
        outputs = tuple(
            self._output(number, [head.files[path] for path in group], planned, head)
            for number, group in enumerate(groups)
        )
        return rules.Publishing(planned, tuple(filter(None, outputs)), self.now_s)

    def _output(
        self, number: int, inputs: Sequence[LakeFile], planned: Planned, head: Snapshot
    ) -> LakeOutput | None:
        tables, runs, start = [], [], 0
        for file in inputs:
            table = self.files.stored(file.path)
            keep = np.ones(table.num_rows, bool)
            keep[planned.positions[file.path].astype(np.int64)] = False
            keep[planned.matched[file.path].astype(np.int64)] = False
            runs.append(KeptRows(file.path, 0, table.num_rows, start))
            tables.append(table.filter(pa.array(keep)))
            start += int(keep.sum())
        if not start:
            return None
        folder = inputs[0].path.rpartition("/")[0]
        path = f"{folder}/part-{self.name}-{number}.parquet".lstrip("/")
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.concat_tables(tables), sink)
        data = sink.getvalue().to_pybytes()
        self.files.put(path, data)
        return LakeOutput(
            path=path,
            size_bytes=len(data),
            rows=start,
            partition=inputs[0].partition,
            inputs=tuple(file.path for file in inputs),
            stats=self.files.stats(head, data, start),
            offsets=tuple(runs),
        )

    def publish(self, state: rules.Publishing) -> rules.EndPublishing:
        """Perform step by step until the end."""
        step: rules.PublishStep = rules.LoadHead()
        while not isinstance(step, rules.EndPublishing):
            self.steps.append(step)
            self.between(step)
            state, step = rules.next_step(state, self._perform(state, step), self.now_s)
        return step

    def _perform(self, state: rules.Publishing, step: rules.PublishStep) -> rules.PublishEvent:
        match step:
            case rules.LoadHead():
                return rules.HeadLoaded(self.source.load())
            case rules.LookForAttempt(since):
                paths = [output.path for output in state.outputs]
                return rules.Looked(self.source.look(self.name, paths, since))
            case rules.ReadDeletes(files):
                return rules.DeletesRead({file.path: self.source.positions(file) for file in files})
            case rules.MarkReservation():
                return rules.Marked(self.is_held())
            case rules.SendVersion(head, verdict):
                commit = Commit(
                    head,
                    self.name,
                    verdict.outputs,
                    verdict.removed,
                    verdict.deletes,
                    self.now_s,
                    state.planned.version,
                )
                self.sent.append(commit)
                try:
                    answer = self.source.send(commit)
                except CompactionError:
                    answer = Answer.UNKNOWN
                return rules.SendAnswered(self.answers(answer))
            case rules.EndPublishing():
                raise AssertionError(step)
