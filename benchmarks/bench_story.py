"""What do stories of tablets cost: turns per second with and without them, and memory.

    python -m benchmarks.bench_story [--tablets N] [--rounds R]

Both states run the same events in turns within each round, so that noise of the machine hits
both; the best round of each counts. Then 100,000 tablets live their lives, with bounds that keep
all of them and with the usual ones.
"""

import argparse
import gc
import time
import tracemalloc
from collections.abc import Iterator

from benchmarks.bench_memory import FILES, system_job
from common.model.job import Job, Kind, TabletPlan
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import Bounds, Record, Reservation, TabletId
from common.settings import CoordinatorSettings
from common.wire import Assignment, AttemptProgress, AttemptReport, Heartbeat, TakeRequest
from coordinator.core import assignment
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.limits import Limits
from coordinator.core.state import CoordinatorState, _decide, excuse_own_pause

RATIO_MIN = 0.95
TABLE = Table(id="t-0123456789", name="events", location="file:///t", schema=())
REMEMBERED_TABLETS = 100_000
COMPACTORS = 50
BEATS = 5
"""Heartbeats while a job runs: ten seconds."""


class StateWithoutStory(CoordinatorState):
    """The same turn as the state's own, without stories."""

    def handle(self, event: on.Event, now_s: float) -> list[Action]:
        assert not isinstance(event, on.StepAnswered)
        cluster = self._cluster
        excuse_own_pause(cluster, now_s)
        cluster.counters.turns += 1
        actions = _decide(cluster, event, now_s)
        actions += assignment.hand_out(cluster, now_s)
        return list(dict.fromkeys(actions)) if len(actions) > 1 else actions


def life_of(number: int) -> Iterator[on.Event]:
    """Yield what happens to a tablet until its files are compacted; every tenth job fails once.

    As the shell tells it: each change of the tablet, a reservation too, has it read and planned.
    """
    job = system_job(number, largest_mib=number % 100)
    tablet, inputs = job.tablet, job.inputs
    compactor = f"default-{number % COMPACTORS}"
    for attempt in range(2 if number % 10 == 0 else 1):
        own = f"att-{number:016d}{attempt}"
        yield on.ReservationsFound(tablet=tablet, reservations=())
        yield _planned(tablet, 3 * attempt, job)
        request = TakeRequest(take=own, compactor=compactor, incarnation="1", group="default")
        yield on.TakeAsked(request=request)
        entry = Reservation(
            attempt=own,
            job=job.id,
            kind=Kind.SYSTEM,
            inputs=inputs,
            output_prefix=f"_neve/last/{own}",
            outputs_max=1,
            group="default",
            compactor=compactor,
            since_s=0.0,
            now_s=0.0,
        )
        yield on.JobReserved(take=own, assignment=_assignment(job, entry))
        yield on.ReservationsFound(tablet=tablet, reservations=(entry,))
        yield _planned(tablet, 3 * attempt + 1)
        for _ in range(BEATS):
            yield _heard(compactor, own)
        fails = attempt == 0 and number % 10 == 0
        end = AttemptEnd.FAILED if fails else AttemptEnd.COMMITTED
        report = AttemptReport(
            compactor=compactor,
            attempt=own,
            end=end,
            error_class="InputError" if fails else "",
            cause=f"file {inputs[0]} has 99 rows, wanted 100" if fails else "",
            outputs=() if fails else (f"{entry.output_prefix}-0.parquet",),
        )
        yield on.AttemptReported(report=report)
        yield on.AttemptSettled(tablet=tablet, attempt=own, end=end)
        if fails:
            yield on.QuarantineLifted(table=tablet.table, tablet=tablet)
    yield on.ReservationsFound(tablet=tablet, reservations=())
    yield _planned(tablet, 9)
    yield on.Ticked()


def _planned(tablet: TabletId, version: int, *jobs: Job) -> on.TabletPlanned:
    record = Record(version=version, files=FILES)
    plan = TabletPlan(jobs=jobs)
    return on.TabletPlanned(tablet=tablet, plan=plan, record=record, settings_version=1)


def _heard(compactor: str, attempt: str) -> on.CompactorHeard:
    beat = Heartbeat(
        compactor=compactor,
        incarnation="1",
        group="default",
        node="n",
        slots=2,
        attempts=(AttemptProgress(attempt=attempt, state="rewriting"),),
    )
    return on.CompactorHeard(beat=beat)


def _assignment(job: Job, reservation: Reservation) -> Assignment:
    return Assignment(
        job=job,
        reservation=reservation,
        table=TABLE,
        bounds=Bounds(start=None, end=job.tablet.end),
        inputs=(),
        outside=(),
    )


def made_state(kind: type[CoordinatorState], limits: Limits | None = None) -> CoordinatorState:
    state = kind(CoordinatorSettings(), limits=limits)
    state.handle(on.TableSeen(table=TABLE), now_s=0.0)
    return state


def turns_per_s(kind: type[CoordinatorState], lives: list[list[on.Event]]) -> float:
    """Return turns per second of processor time."""
    state, now_s, turns = made_state(kind), 0.0, 0
    gc.collect()
    begun_s = time.process_time()
    for life in lives:
        for event in life:
            now_s += 0.001
            state.handle(event, now_s)
            turns += 1
    return turns / (time.process_time() - begun_s)


def compare(tablets: int, rounds: int) -> float:
    """Print turns per second with and without stories; return the ratio."""
    lives = [list(life_of(number)) for number in range(tablets)]
    rates: dict[type[CoordinatorState], list[float]] = {StateWithoutStory: [], CoordinatorState: []}
    for turn in range(rounds):
        for kind in list(rates)[:: 1 if turn % 2 else -1]:
            rates[kind].append(turns_per_s(kind, lives))
    without, with_stories = (max(rate) for rate in rates.values())
    print(f"{tablets:,} tablets, {sum(map(len, lives)):,} turns, best of {rounds} rounds")
    print(f"  without stories {without:>10,.0f} turns/s")
    print(f"  with stories    {with_stories:>10,.0f} turns/s")
    return with_stories / without


def memory_mb(kind: type[CoordinatorState], limits: Limits | None) -> tuple[float, int, float]:
    """Return memory of a state, its tablets with a story, and what these count themselves."""
    gc.collect()
    tracemalloc.start()
    state, now_s = made_state(kind, limits), 0.0
    for number in range(REMEMBERED_TABLETS):
        for event in life_of(number):
            now_s += 0.001
            state.handle(event, now_s)
    gc.collect()
    held_mb = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    stories = state._story.stories  # noqa: SLF001  nothing else counts them
    return held_mb, len(stories), stories.size_bytes / 1e6


def main() -> None:
    options = argparse.ArgumentParser(description="measure stories of tablets")
    options.add_argument("--tablets", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=7)
    given = options.parse_args()
    ratio = compare(given.tablets, given.rounds)
    outcome = "reached" if ratio >= RATIO_MIN else "MISSED "
    print(f"{outcome} turns with / without stories: {ratio:.3f}, goal {RATIO_MIN}\n")
    bare_mb, _, _ = memory_mb(StateWithoutStory, None)
    for name, limits in (("all kept", Limits(story_bytes_max=10**12)), ("usual bounds", None)):
        held_mb, tablets, counted_mb = memory_mb(CoordinatorState, limits)
        print(
            f"{REMEMBERED_TABLETS:,} tablets lived, {name}: {tablets:,} stories take"
            f" {held_mb - bare_mb:,.0f} MB, counted as {counted_mb:,.0f} MB"
        )


if __name__ == "__main__":
    main()
