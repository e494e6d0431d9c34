"""The simulation: a clock that jumps from event to event, and the service's own decisions.

    files arrive, jobs end, compactors start   events, in a heap, ordered by time
    changed tablets are planned                the planner, checked as in the service
    the plan replaces a tablet's queued jobs   the queues of the coordinator
    free slots take the best jobs              the coordinator's capacity, fair share, backfill
    every few seconds the autoscaler runs      its policy, with measured rates

All events of one moment precede the plans of that moment. Attempts and compactors fail as
specified, and the service's own retry rules decide when a failed job is tried again.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import Any

from common.errors import PluginError, RequestError
from common.model.job import Job, Kind
from common.model.key_values import KeyType
from common.model.tablet import Tablet, TabletId
from common.spi.controller import DEFAULT_SHARES
from common.spi.planner import PlanParameters
from common.units import format_count, format_duration
from coordinator.core.autoscaling import GroupLoad
from coordinator.core.control import ClusterFacts, Pressures, tablet_pressure
from coordinator.core.limits import Limits
from coordinator.core.planning import checked_jobs
from coordinator.core.queue import Backfill, Capacity, JobQueue, JobQueues
from coordinator.core.queue_index import FairShare
from coordinator.core.retry import Deferrals, Failure, Retry
from neve.simulate.cluster import Lane, Requests, SimulatedAttempt, SimulatedGroup, Volume
from neve.simulate.figures import Outcome, Sample, TabletMeasures
from neve.simulate.sections import Failures, RequestRule, SimulatedControl, is_capped, submissions
from neve.simulate.specification import Specification, TableRule
from neve.simulate.tablet import Flush, SimulatedTable, SimulatedTablet, flushes

ROUND_S = 5.0
"""Interval of the autoscaler; its policy counts longer gaps only up to a limit."""
FILES_MAX = 3_000_000
"""Maximum number of stored files, limited by memory."""

Event = tuple[float, int, Callable[..., None], tuple[Any, ...]]
"""Time, sequence number for events at one moment, function, and its arguments."""


class World:
    """One run. Invariant: a file is an input of at most one job; slots are never exceeded."""

    def __init__(self, specification: Specification) -> None:
        """Start at time 0 with the initial files."""
        self.specification = specification
        self.now_s = 0.0
        self.outcome = _new_outcome(specification)
        cluster = specification.cluster
        self._limits = Limits(queue_count_max=cluster.queue_count_max)
        self.queues = JobQueues(self._new_queue)
        self.capacity = Capacity(self._limits)
        self._backfill = Backfill(self.queues, self.capacity)
        self._deferrals = Deferrals(self._limits.deferrals_max)
        self._retry, self._failures = Retry(self._limits), _new_failures(specification)
        self._requests = Requests(
            self.outcome, tuple(group.group for group in cluster.groups), self._retry.why_given_up
        )
        self._volumes = {name: Volume(limit) for name, limit in cluster.volumes.items()}
        self.control = (
            None if specification.control is None else SimulatedControl(specification.control)
        )
        self._shares: list[FairShare] = []
        self.groups = {
            group.group.name: SimulatedGroup(group, cluster.scaling) for group in cluster.groups
        }
        self._events: list[Event] = []
        self._changed: dict[SimulatedTablet, None] = {}
        self._measures, self._pressures = TabletMeasures(), Pressures(self._limits.last_plans_max)
        self._end_s = specification.length_s + specification.drain_max_s
        """End of the run; later events are not processed."""
        self._offered: dict[str, float] = {}
        """Queued job → when it was first planned."""
        self._by_age: dict[str, deque[str]] = {name: deque() for name in self.groups}
        self._queued_bytes = dict.fromkeys(self.groups, 0)
        self._pushed = self._arrival = self._arriving = 0
        """`_arriving`: number of sources, of flushes or requests, that have not ended."""
        self.tables = [self._new_table(table, at) for at, table in enumerate(specification.tables)]
        self._by_id = {tablet.id: tablet for tablet in self.tablets()}
        self._begin()

    def tablets(self) -> Iterator[SimulatedTablet]:
        """Yield all tablets."""
        for table in self.tables:
            yield from table.tablets

    def run(self, progress: Callable[[float], None] = lambda _: None) -> Outcome:
        """Run the simulation until all work is done.

        Args:
            progress: Called every thousand moments with the time of the run, in seconds.

        Raises:
            PluginError: A planner or tracker fails or returns an invalid result.
            RequestError: More than `FILES_MAX` files are stored.
        """
        moments = 0
        while self.step():
            moments += 1
            if not moments % 1000:
                progress(self.now_s)
        self._finish()
        return self.outcome

    def step(self) -> bool:
        """Process all events of the next moment; return whether there was one."""
        events = self._events
        if not events or events[0][0] > self._end_s or self._is_over():
            return False
        now_s = self.now_s = events[0][0]
        while events and events[0][0] <= now_s:
            _, _, happen, given = heappop(events)
            happen(*given)
        changed, self._changed = self._changed, {}
        for tablet in changed:
            self._plan(tablet)
        if self._offered or self._deferrals:
            self._hand_out()
        return True

    # -------------------------------------------------------------------------------- The beginning

    def _begin(self) -> None:
        for table in self.tables:
            self._begin_table(table)
        for group in self.groups.values():
            if group.scales:
                self._push(ROUND_S, self._scale, group)
            if self._failures is not None and self._failures.rule.compactor_life_s:
                self._push(self._failures.next_loss_s(group.rule.count_max), self._lose, group)
        self._push(0.0, self._sample)
        if self.control is not None:
            # The controller's byte limit is shared on volumes.
            for table in self.tables:
                self._volumes.setdefault(table.volume, Volume())
            self._push(self.control.period_s, self._steer, self.control)

    def _begin_table(self, table: SimulatedTable) -> None:
        for number, file in table.rule.files:
            table.tablets[number].begin_with(file, 0)
        for tablet in table.tablets:
            if table.rule.initial_bytes:
                tablet.begin_with_bytes(table.rule.initial_bytes, self.specification.begin_s)
            self.outcome.initial_bytes += tablet.stored_bytes
            self.outcome.files += len(tablet.files)
            self._note_change(tablet)
        self._arriving += 1
        self._next_flush(table)
        rule = table.rule.requests
        if rule is not None:
            seed, length_s = self.specification.seed, self.specification.length_s
            coming = submissions(rule, table.rule.name, table.rule.tablets, seed, length_s)
            self._arriving += 1
            self._next_request(table, rule, coming)

    def _new_table(self, rule: TableRule, at: int) -> SimulatedTable:
        own_id = f"table{at}"
        arrivals = rule.arrivals
        each_s = rule.tablets / arrivals.flushes_s if arrivals.flushes_s else 60.0
        table = SimulatedTable(
            rule=rule,
            id=own_id,
            tablets=[],
            coming=flushes(rule, self.specification.seed, self.specification.length_s),
            volume=rule.settings.volume,
            interval_s=min(each_s, 86_400.0),
            parameters={
                "table_name": rule.name,
                "kind": Kind.SYSTEM,
                "settings": rule.settings,
                "options": rule.options,
                "groups": tuple(group.group for group in self.specification.cluster.groups),
                "keyed": rule.keyed,
                "timed": not rule.keyed,
                "explains": False,
                "key_types": (KeyType.INT,) if rule.keyed else (),
            },
        )
        table.tablets = [SimulatedTablet(table, number) for number in range(rule.tablets)]
        return table

    def _new_queue(self, _group: str) -> JobQueue:
        tables = self.specification.tables
        weights = {f"table{at}": table.settings.weight for at, table in enumerate(tables)}
        limits, shares = self._limits, FairShare(weights, DEFAULT_SHARES)
        self._shares.append(shares)
        return JobQueue(
            limits.queue_bytes_max,
            limits.queue_count_max,
            ageing_s=1.0 / limits.ageing_per_s,
            shares=shares,
        )

    def _push(self, at_s: float, happen: Callable[..., None], *given: Any) -> None:
        self._pushed += 1
        heappush(self._events, (at_s, self._pushed, happen, given))

    # ------------------------------------------------------------------------------------- Arrivals

    def _next_flush(self, table: SimulatedTable) -> None:
        flush = next(table.coming, None)
        if flush is None:
            self._arriving -= 1
        else:
            self._push(flush.at_s, self._arrive, table, flush)

    def _arrive(self, table: SimulatedTable, flush: Flush) -> None:
        tablet, outcome = table.tablets[flush.tablet], self.outcome
        now_s = self.specification.begin_s + self.now_s
        for coming in flush.files:
            self._arrival += 1
            outcome.arrived_files += 1
            outcome.arrived_bytes += tablet.arrive(coming, self._arrival, now_s, table.interval_s)
        outcome.files += len(flush.files)
        if outcome.files > FILES_MAX:
            raise RequestError(
                f"after {format_duration(self.now_s)} {format_count(outcome.files, 'file')}"
                f" are stored, expected at most {FILES_MAX:,}: compaction does not keep up;"
                " give the cluster more compactors, or let fewer files arrive"
            )
        self._note_change(tablet)
        self._next_flush(table)

    def _next_request(
        self, table: SimulatedTable, rule: RequestRule, coming: Iterator[tuple[float, int]]
    ) -> None:
        submission = next(coming, None)
        if submission is None:
            self._arriving -= 1
        else:
            self._push(submission[0], self._ask, table, rule, submission[1], coming)

    def _ask(
        self,
        table: SimulatedTable,
        rule: RequestRule,
        number: int,
        coming: Iterator[tuple[float, int]],
    ) -> None:
        """Submit a user request for a whole tablet."""
        tablet = table.tablets[number]
        self._requests.submit(tablet, rule, self.now_s)
        self._note_change(tablet)
        self._next_request(table, rule, coming)

    def _note_change(self, tablet: SimulatedTablet) -> None:
        self._changed[tablet] = None
        self._measures.note_change(tablet)

    # ------------------------------------------------------------------------------------- Planning

    def _plan(self, tablet: SimulatedTablet) -> None:
        table = tablet.table
        files, reserved = tablet.files, tablet.reserved
        candidates = (
            tuple([file for path, file in files.items() if path not in reserved])
            if reserved
            else tuple(files.values())
        )
        outcome = self.outcome
        outcome.plans += 1
        if len(files) > outcome.files_max:
            outcome.files_max = len(files)
        if tablet in self._requests:
            jobs = self._wanted_with_request(tablet)
        else:
            jobs = self._wanted(tablet, table, candidates) if candidates else []
        if self._failures is not None:
            jobs = self._not_paused(tablet, jobs)
        tablet.planned_bytes = sum(job.input_bytes for job in jobs) if jobs else 0
        if self.control is not None:
            pressure = tablet_pressure(files.values(), jobs, reserved)
            self._pressures.put(tablet.id, pressure)
        if jobs or tablet.queued:
            self._replace(tablet, jobs)

    def _wanted(
        self, tablet: SimulatedTablet, table: SimulatedTable, candidates: tuple[Any, ...]
    ) -> list[Job]:
        """Return the jobs to queue; a job that depends on others is planned again later."""
        now_s = self.specification.begin_s + self.now_s
        parameters = PlanParameters(
            tablet=tablet.id,
            files=tablet.files,
            candidates=candidates,
            running=tuple(tablet.running.values()) if tablet.running else (),
            now_s=now_s,
            **table.parameters,
        )
        name = table.rule.planner_name
        try:
            plan = table.rule.planner.plan(parameters)
        except Exception as error:
            raise PluginError(f"planner {name}: {type(error).__name__}: {error}") from error
        if plan.due_at_s is not None:
            self._note_due(tablet, plan.due_at_s - self.specification.begin_s)
        if not plan.jobs:
            return []
        return [job for job in checked_jobs(name, plan, parameters) if not job.depends_on]

    def _wanted_with_request(self, tablet: SimulatedTablet) -> list[Job]:
        """Return the jobs that may be queued for a tablet with a user request."""
        plan = self._requests.wanted(tablet, self.now_s, self.specification.begin_s)
        if plan.due_at_s is not None:
            self._note_due(tablet, plan.due_at_s - self.specification.begin_s)
        return [job for job in plan.jobs if not job.depends_on]

    def _not_paused(self, tablet: SimulatedTablet, jobs: list[Job]) -> list[Job]:
        """Return the jobs that may be tried now; schedule another plan for paused jobs."""
        if not self._retry.has_history(tablet.id) and not jobs:
            return jobs
        self._retry.keep(tablet.id, tablet.files)
        allowed: list[Job] = []
        for job in jobs:
            pause = self._retry.pause_of(job, self.now_s)
            if pause is None:
                allowed.append(job)
            elif pause.until_s is not None:
                self._note_due(tablet, pause.until_s, even_later=True)
        return allowed

    def _note_due(self, tablet: SimulatedTablet, at_s: float, *, even_later: bool = False) -> None:
        """Schedule another plan of a tablet, even without a change until then.

        Args:
            tablet: The tablet to plan.
            at_s: Time of the plan.
            even_later: Whether the plan may also run after the end of the arrivals.
        """
        at_s = max(at_s, self.now_s + 1.0)
        last_s = self._end_s if even_later else self.specification.length_s
        if at_s < tablet.due_s and at_s <= last_s:
            tablet.due_s = at_s
            self._push(at_s, self._become_due, tablet, at_s)

    def _become_due(self, tablet: SimulatedTablet, at_s: float) -> None:
        if tablet.due_s == at_s:
            tablet.due_s = inf
            self._note_change(tablet)

    def _replace(self, tablet: SimulatedTablet, jobs: list[Job]) -> None:
        """Replace the queued jobs of a tablet; jobs that a full queue sheds are planned later."""
        self._deferrals.discard(tablet.id)
        answer = self.queues.replace(tablet.id, jobs, self.now_s)
        for job in answer.accepted:
            self._offered[job.id] = self.now_s
            self._by_age[job.group].append(job.id)
            self._queued_bytes[job.group] += job.input_bytes
        # A job that was evicted by another job of its plan may have been admitted again.
        inside = {job.id for job in (*answer.kept, *answer.accepted)}
        evicted = [job for job in answer.evicted if job.id not in inside]
        for job in (*answer.removed, *evicted):
            if self._offered.pop(job.id, None) is not None:
                self._queued_bytes[job.group] -= job.input_bytes
        for job in evicted:
            self._by_id[job.tablet].queued -= 1
        for job in (*evicted, *(job for job, _ in answer.rejected)):
            self.outcome.deferred += 1
            self._deferrals.defer(job.tablet, job.group, self.now_s)
        tablet.queued = len(answer.kept) + len(answer.accepted)

    # ------------------------------------------------------------------------------------- Hand-out

    def _hand_out(self) -> None:
        for name, group in self.groups.items():
            queue = self.queues.queue(name)
            while len(queue) and not self.capacity.full(name):
                compactor = group.free_slot()
                job = None if compactor is None else self._take(name, group)
                if compactor is None or job is None:
                    break
                tablet = self._by_id[job.tablet]
                is_reserved = not tablet.reserved.isdisjoint(job.inputs)
                if is_reserved or self._requests.is_stale(tablet, job):
                    self._refuse(tablet, job)
                else:
                    self._launch(group, SimulatedAttempt(job, tablet, compactor, self.now_s))
            self._plan_deferred(name, queue)

    def _refuse(self, tablet: SimulatedTablet, job: Job) -> None:
        """Drop a job that the store would refuse: its files are taken or its selection is gone.

        User and system jobs may compete for files after the hold of a request has expired.
        """
        del self._offered[job.id]
        tablet.queued -= 1
        self._queued_bytes[job.group] -= job.input_bytes
        self._push(self.now_s + 0.001, self._note_change, tablet)

    def _take(self, name: str, group: SimulatedGroup) -> Job | None:
        """Take the next job of a group that the controller admits."""
        if self.control is None:
            return self._backfill.take(name)

        def running() -> int:
            return sum(is_capped(attempt.job) for attempt in group.running)

        return self._backfill.take(name, admits=self.control.admission(name, running))

    def _plan_deferred(self, group: str, queue: JobQueue) -> None:
        """Plan deferred tablets again when the queue has drained to a fraction of its bounds."""
        if not self._deferrals:
            return
        fraction = self._limits.drained_fraction
        if len(queue) <= queue.count_max * fraction and (
            queue.size_bytes <= queue.bytes_max * fraction
        ):
            for tablet in self._deferrals.pop(group, self._limits.replans_per_turn_max):
                self._push(self.now_s + 0.001, self._note_change, self._by_id[tablet])

    def _launch(self, group: SimulatedGroup, attempt: SimulatedAttempt) -> None:
        job, tablet = attempt.job, attempt.tablet
        waited_s = self.now_s - self._offered.pop(job.id)
        tablet.queued -= 1
        self._queued_bytes[job.group] -= job.input_bytes
        self.outcome.waits.note(waited_s)
        self.capacity.enter(job.id, job.group, job.input_bytes)
        group.begin(attempt, self.now_s)
        tablet.reserve(job)
        if tablet in self._requests:
            self._requests.note_start(tablet, job, self.now_s)
            if job.kind is not Kind.USER:
                self._changed[tablet] = None
        self._measures.note_change(tablet)
        overhead_s = self.specification.cluster.job_overhead_s
        moves = job.cost_bytes > 0
        if self._failures is not None:
            attempt.dies_after = self._failures.dies_after()
        volume = self._volumes.get(tablet.table.volume)
        if moves and volume is not None:
            self._push(self.now_s + overhead_s, self._begin_to_move, group, attempt, volume)
            return
        # Only its slot limits the job, so its end is already known.
        work_s = job.input_bytes * attempt.dies_after / group.rule.slot_bytes_s if moves else 0.0
        self._push(round(self.now_s + overhead_s + work_s, 3), self._end, group, attempt)

    def _begin_to_move(
        self, group: SimulatedGroup, attempt: SimulatedAttempt, volume: Volume
    ) -> None:
        if attempt.gone:
            return
        name = attempt.tablet.table.volume
        lane = group.lanes.get(name)
        if lane is None:
            lane = group.lanes[name] = Lane(group.rule.slot_bytes_s, volume)
            volume.lanes.append(lane)
        volume.moving += 1
        lane.enter(attempt, self.now_s)
        self._foresee({lane: None, **self._changed_rates(volume)})

    def _changed_rates(self, volume: Volume) -> dict[Lane, None]:
        """Divide the byte limits among the moving jobs; return the lanes whose rate has changed."""
        limit = None if self.control is None else self.control.moving_bytes_s
        if limit is None:
            return dict.fromkeys(volume.set_rates(self.now_s))
        moving = sum(volume.moving for volume in self._volumes.values())
        most = limit / max(1, moving)
        return dict.fromkeys(
            lane for volume in self._volumes.values() for lane in volume.set_rates(self.now_s, most)
        )

    def _foresee(self, lanes: dict[Lane, None]) -> None:
        """Reschedule the next end of each lane."""
        for lane in lanes:
            lane.turn += 1
            end_s = lane.next_end_s()
            if end_s is not None:
                self._push(max(self.now_s, end_s), self._lane_end, lane, lane.turn)

    def _lane_end(self, lane: Lane, turn: int) -> None:
        if turn != lane.turn:
            return
        ended = lane.pop_ended(self.now_s)
        lane.volume.moving -= len(ended)
        for attempt in ended:
            self._end(self.groups[attempt.job.group], attempt)
        self._foresee({lane: None, **self._changed_rates(lane.volume)})

    def _end(self, group: SimulatedGroup, attempt: SimulatedAttempt) -> None:
        """Commit a job, or fail it if it died."""
        if attempt.dies_after < 1.0 or attempt.gone:
            self._fail(group, attempt)
            return
        job, tablet, outcome = attempt.job, attempt.tablet, self.outcome
        before = len(tablet.files)
        files_before = set(tablet.files) if tablet in self._requests else None
        stored = tablet.stored_bytes
        written_bytes = tablet.commit(job, self.specification.begin_s + self.now_s)
        outcome.files += len(tablet.files) - before
        outcome.jobs[str(job.action)] += 1
        outcome.rewritten_bytes += written_bytes
        outcome.read_bytes += job.input_bytes if job.cost_bytes else 0
        outcome.dropped_bytes += stored - tablet.stored_bytes
        if files_before is not None:
            self._requests.note_commit(
                tablet, job, [file for file in tablet.files if file not in files_before]
            )
        if self._failures is not None:
            self._retry.note_success(attempt.compactor.name, tablet.id, job.inputs)
        self.capacity.leave(job.id)
        group.end(attempt, self.now_s)
        self._note_change(tablet)

    # ------------------------------------------------------------------------------------- Failures

    def _fail(self, group: SimulatedGroup, attempt: SimulatedAttempt) -> None:
        """Fail an attempt; the service's retry rules decide when the job is tried again."""
        if attempt.gone:
            return
        self._retry.note_failure(
            Failure(
                compactor=attempt.compactor.name,
                tablet=attempt.tablet.id,
                inputs=attempt.job.inputs,
                error_class="RewriteError",
                cause="it was to die",
            ),
            self.now_s,
        )
        self.outcome.failed_attempts += 1
        self._waste(group, attempt)
        group.give_back(attempt, self.now_s)

    def _waste(self, group: SimulatedGroup, attempt: SimulatedAttempt) -> None:
        """Count the bytes that a dead attempt moved, and release its files."""
        attempt.gone = True
        moved = attempt.job.input_bytes * self._moved_share(group, attempt)
        self.outcome.wasted_bytes += round(moved)
        self.capacity.leave(attempt.job.id)
        attempt.tablet.release(attempt.job)
        self._note_change(attempt.tablet)

    def _lose(self, group: SimulatedGroup) -> None:
        """Lose a compactor with its jobs, start a replacement, and schedule the next loss."""
        assert self._failures is not None
        most = group.rule.count_max
        number = self._failures.lost(len(group.compactors), most)
        if number is not None:
            self._lose_compactor(group, number, self._failures.rule.restart_s)
        self._push(self.now_s + self._failures.next_loss_s(most), self._lose, group)

    def _lose_compactor(self, group: SimulatedGroup, number: int, restart_s: float) -> None:
        dying, successor = group.lose(number, self.now_s)
        self.outcome.lost_compactors += 1
        self.outcome.lost_attempts += len(dying)
        changed: dict[Lane, None] = {}
        for attempt in dying:
            self._waste(group, attempt)
            if (lane := attempt.lane) is not None:
                lane.leave(attempt)
                lane.volume.moving -= 1
                changed |= {lane: None, **self._changed_rates(lane.volume)}
        self._foresee(changed)
        self._push(self.now_s + restart_s, group.ready, successor, self.now_s + restart_s)

    # -------------------------------------------------------------------------------------- Scaling

    def _scale(self, group: SimulatedGroup) -> None:
        rule = group.rule
        queue = self.queues.queue(group.name)
        waiting = GroupLoad(
            group=group.name,
            count_min=rule.count_min,
            count_max=rule.count_max,
            slots=rule.slots,
            queued_jobs=len(queue),
            queued_bytes=self._queued_bytes[group.name],
            deferred_tablets=self._deferrals.count(group.name),
            oldest_age_s=self._oldest_s(group.name),
            slots_wanted=None if self.control is None else self.control.slots_of(group.name),
        )
        for name in group.scale(waiting, self.now_s):
            self._push(self.now_s + rule.start_s, group.ready, name, self.now_s + rule.start_s)
        self._push(self.now_s + ROUND_S, self._scale, group)

    def _steer(self, control: SimulatedControl) -> None:
        """Run the controller, and apply its decision to queues and volumes."""
        self._measure()
        before = control.moving_bytes_s
        decision = control.look(self._facts(), self.now_s)
        for shares in self._shares:
            shares.set_shares(decision.shares)
        if control.moving_bytes_s != before:
            changed: dict[Lane, None] = {}
            for volume in self._volumes.values():
                changed |= self._changed_rates(volume)
            self._foresee(changed)
        self._push(self.now_s + control.period_s, self._steer, control)

    def _facts(self) -> ClusterFacts:
        groups = self.groups.values()
        moved = sum(
            attempt.job.input_bytes * self._moved_share(group, attempt)
            for group in groups
            for attempt in group.running
        )
        return ClusterFacts(
            backlog_bytes=self._measures.backlog_bytes,
            done_bytes=sum(group.committed_bytes for group in groups) + moved,
            group_slots={
                group.name: sum(compactor.slots for compactor in group.compactors.values())
                for group in groups
            },
            busy_slots=sum(len(group.running) for group in groups),
            queued_jobs=len(self.queues),
            deepest_files=self._pressures.deepest_files,
            garbage_fraction=self._pressures.garbage_fraction,
        )

    def _oldest_s(self, group: str) -> float:
        """Return how long the oldest queued job of a group has waited."""
        ages, offered = self._by_age[group], self._offered
        while ages and ages[0] not in offered:
            ages.popleft()
        return self.now_s - offered[ages[0]] if ages else 0.0

    # ------------------------------------------------------------------------------------- Sampling

    def _sample(self) -> None:
        self._measure()
        outcome, tablets = self.outcome, sum(len(table.tablets) for table in self.tables)
        stored = sum(tablet.stored_bytes for tablet in self.tablets())
        spans = sum(tablet.spans for tablet in self.tablets())
        outcome.samples.append(
            Sample(
                at_s=self.now_s,
                arrived_bytes=outcome.arrived_bytes,
                rewritten_bytes=outcome.rewritten_bytes,
                stored_bytes=stored,
                live_bytes=round(self._measures.live_bytes),
                files=outcome.files,
                files_per_tablet=outcome.files / tablets,
                files_per_key=spans / tablets,
                backlog_bytes=round(self._measures.backlog_bytes),
                queued_jobs=len(self.queues),
                queued_bytes=sum(self._queued_bytes.values()),
                oldest_s=max(map(self._oldest_s, self.groups)),
                running_jobs=sum(len(group.running) for group in self.groups.values()),
                compactors=sum(group.count for group in self.groups.values()),
                wasted_bytes=outcome.wasted_bytes,
                open_requests=len(self._requests),
            )
        )
        self._push(self.now_s + self.specification.sample_s, self._sample)

    def _measure(self) -> None:
        """Measure the tablets that have changed since the last measurement."""
        self._measures.measure(self._progress(), self.specification.begin_s + self.now_s)

    def _progress(self) -> dict[TabletId, dict[str, int]]:
        """Return the rewritten bytes of running jobs' inputs, keyed by tablet and path."""
        progress: dict[TabletId, dict[str, int]] = {}
        for group in self.groups.values():
            for attempt in group.running:
                share = self._moved_share(group, attempt)
                tablet = attempt.tablet
                read = progress.setdefault(tablet.id, {})
                for path in attempt.job.inputs:
                    read[path] = int(tablet.files[path].size_bytes * share)
        return progress

    def _moved_share(self, group: SimulatedGroup, attempt: SimulatedAttempt) -> float:
        if attempt.lane is not None or not attempt.job.cost_bytes:
            return attempt.moved_share(self.now_s)
        if attempt.tablet.table.volume in self._volumes:
            return 0.0
        moving_s = self.now_s - attempt.begun_s - self.specification.cluster.job_overhead_s
        work_s = attempt.job.input_bytes / group.rule.slot_bytes_s
        return min(attempt.dies_after, max(0.0, moving_s / work_s))

    # -------------------------------------------------------------------------------------- The end

    def _is_over(self) -> bool:
        """Return whether all arrivals have ended and no work is left."""
        if self._arriving or self._changed or self._offered or self._deferrals:
            return False
        return not any(group.running for group in self.groups.values())

    def _finish(self) -> None:
        """Take the last sample and compute the totals."""
        outcome = self.outcome
        outcome.at_rest = self._is_over()
        self.now_s = max(self.now_s, self.specification.length_s)
        outcome.ended_s = self.now_s
        if not outcome.samples or outcome.samples[-1].at_s < self.now_s:
            self._sample()
        for group in self.groups.values():
            group.note_time(self.now_s)
            outcome.compactor_s += group.compactor_s
            outcome.busy_slot_s += group.busy_s
        outcome.stored_bytes = sum(tablet.stored_bytes for tablet in self.tablets())

    def stored(self, tablet: SimulatedTablet) -> Tablet:
        """Return a tablet as the store would hold it; for tests."""
        return self._requests.stored(tablet)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        outcome = self.outcome
        stored = sum(tablet.stored_bytes for tablet in self.tablets())
        assert outcome.initial_bytes + outcome.arrived_bytes == stored + outcome.dropped_bytes
        assert outcome.files == sum(len(tablet.files) for tablet in self.tablets())
        for tablet in self.tablets():
            tablet.check()
        for group in self.groups.values():
            assert sum(compactor.busy for compactor in group.compactors.values()) == len(
                group.running
            )
            assert all(compactor.busy <= compactor.slots for compactor in group.compactors.values())
        assert len(self._offered) == len(self.queues)
        self.queues.check()
        self.capacity.check()


def _new_outcome(specification: Specification) -> Outcome:
    planners = dict.fromkeys(table.planner_name for table in specification.tables)
    return Outcome(
        variant=specification.variant or ", ".join(planners),
        planners=tuple(planners),
        length_s=specification.length_s,
    )


def _new_failures(specification: Specification) -> Failures | None:
    rule = specification.cluster.failures
    return None if rule is None else Failures(rule, specification.seed)
