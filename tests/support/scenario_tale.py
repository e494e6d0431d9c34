"""The scenario over the memory store, in which anybody may die at any change of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

from common.metadata.changes import AddFiles, Applied
from common.model.file import DataFile
from common.model.group import Service
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, Tablet
from common.runtime import call_id
from common.wire import Assignment
from tests.support.mortal import MortalCluster
from tests.support.patience import PATIENCE_S
from tests.support.request_shell import TABLE
from tests.support.scenario import (
    FIVE,
    INPUTS_MAX,
    NEW,
    RESULTS,
    SCRIPT,
    SPANS,
    Names,
    merged,
    numbered,
)
from tests.support.scripted import Span, span_of

SERVICES = {"scenario": Service(name="scenario", planner="scripted", options=SCRIPT)}
SCENARIO = replace(TABLE, settings=TableSettings(service="scenario", max_files=INPUTS_MAX))

JobSpan = tuple[str, Span]
"""A job: its kind, and the first and last key of its inputs."""
FIVE_SPANS = tuple(("USER", merged(inputs)) for inputs in FIVE)
WHOLE = ("USER", merged(RESULTS))
OLD, NEWER, NEXT, LAST = (("SYSTEM", SPANS[name]) for name in ("F201", "F341", "F342", "F407"))


def jobs_of(tablet: Tablet) -> set[JobSpan]:
    """Return the jobs that are reserved."""
    return {
        (entry.kind.value, span_of([tablet.files[path] for path in entry.inputs]))
        for entry in tablet.running.values()
    }


def job_of(held: Assignment) -> JobSpan:
    """Return which job somebody holds."""
    return held.job.kind.value, span_of(held.inputs)


def spans_of(tablet: Tablet, paths: Collection[str]) -> set[Span]:
    """Return the spans of some of a tablet's files."""
    return {span_of([tablet.files[path]]) for path in paths}


@dataclass
class Tale(MortalCluster):
    """One telling. `check` is given the tablet at every beat."""

    check: Callable[[Tablet], None] = lambda _tablet: None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = replace(self.settings, services=SERVICES)
        self.rows = 0
        self.gates: set[JobSpan] = set()

    def may_commit(self, held: Assignment) -> bool:
        """Return whether the gate of the job is open."""
        return job_of(held) in self.gates

    async def tell(self) -> None:
        """Tell the story to its end."""
        await self.create(SCENARIO, splits=())
        async with self.living(), asyncio.timeout(PATIENCE_S):
            for act, goal in STEPS:
                await act(self)
                while not await goal(self):
                    await self.pulse()
                    self.check(await self.tablet())

    # -------------------------------------------------------------- acts

    async def come(self, names: Names) -> None:
        """Add files."""
        self.rows += len(names)
        files = tuple(
            DataFile(
                path=f"{name}.parquet",
                size_bytes=1000,
                rows=1,
                key_min=encode_key([SPANS[name][0]], (KeyType.INT,)),
                key_max=encode_key([SPANS[name][1]], (KeyType.INT,)),
                added_at_s=self.clock.now_s(),
            )
            for name in sorted(names)
        )
        change = AddFiles(table="t1", call=call_id(self.clock), files={PLUS_INFINITY: files})
        outcome = await self.store.apply(change)
        assert isinstance(outcome, Applied), outcome

    async def over(self) -> bool:
        """Return whether the request has ended."""
        return (await self.request("r1")).state.ended

    async def at_rest(self) -> bool:
        """Return whether one file and nothing else is left."""
        tablet = await self.tablet()
        one = spans_of(tablet, tablet.files) == {SPANS["F407"]} and not tablet.running
        return one and await self.is_clean() and not self.held


def _open(*jobs: JobSpan) -> Callable[[Tale], Awaitable[None]]:
    async def act(tale: Tale) -> None:
        tale.gates.update(jobs)

    return act


def _seen(goal: Callable[[Tablet], bool]) -> Callable[[Tale], Awaitable[bool]]:
    async def seen(tale: Tale) -> bool:
        return goal(await tale.tablet())

    return seen


def _selected(tablet: Tablet) -> set[Span]:
    return set() if tablet.selection is None else spans_of(tablet, tablet.selection.files)


STEPS: tuple[tuple[Callable[[Tale], Awaitable[None]], Callable[[Tale], Awaitable[bool]]], ...] = (
    (lambda tale: tale.come(numbered(1, 200)), _seen(lambda seen: OLD in jobs_of(seen))),
    (lambda tale: tale.submit("r1"), _seen(lambda seen: bool(seen.waiting or seen.selection))),
    (_open(OLD), _seen(lambda seen: seen.selection is not None)),
    (_open(), _seen(lambda seen: jobs_of(seen) >= set(FIVE_SPANS))),
    (lambda tale: tale.come(NEW), _seen(lambda seen: NEWER in jobs_of(seen))),
    (_open(*FIVE_SPANS), _seen(lambda seen: _selected(seen) == {span for _, span in FIVE_SPANS})),
    (_open(), _seen(lambda seen: WHOLE in jobs_of(seen))),
    (_open(NEWER), _seen(lambda seen: NEXT in jobs_of(seen))),
    (_open(WHOLE), Tale.over),
    (_open(NEXT, LAST), Tale.at_rest),
)
"""What happens, and what is waited for before the next thing happens."""
