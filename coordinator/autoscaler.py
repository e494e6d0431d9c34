"""Adjusts the number of compactors of each group to the work, according to the policy.

The policy is `core.autoscaling`. Every round reads the current state: queues, what compactors
report, and the actors that Ray knows. State kept between rounds may be lost without harm.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from common.errors import MetadataError, RequestError, UnavailableError, UnknownGroupError
from common.metadata.changes import SetScale
from common.settings import COMPACTORS_MAX, Settings
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.core.autoscaling import (
    CompactorLoad,
    Decision,
    FailedStart,
    GroupLoad,
    Memory,
    RewriteRate,
    StartingCompactor,
    decide,
)
from coordinator.core.state import CoordinatorState
from coordinator.ports import CompactorLever, Lack, Submit
from coordinator.scan.scanner import Scanner
from neve import api

ROUND_INTERVAL_S = 2.0
SCALES_INTERVAL_S = 10.0
"""Interval between reads of the operators' settings; a restored store may hold different ones."""
DECISIONS_KEPT = 50
"""Decisions kept for each group, for display."""


@dataclass(slots=True)
class _Group:
    """State of a group that is kept between rounds."""

    memory: Memory = field(default_factory=Memory)
    rate: RewriteRate = field(default_factory=RewriteRate)
    starting: dict[str, float] = field(default_factory=dict)
    """Maps each starting compactor to the time of its start."""
    leaving: set[str] = field(default_factory=set)
    """Drained compactors whose actors still exist."""
    starts_failed: int = 0
    decisions: deque[api.ScalingDecision] = field(
        default_factory=lambda: deque(maxlen=DECISIONS_KEPT)
    )
    last: Decision | None = None
    lack: Lack = field(default_factory=Lack)


class Autoscaler:
    """Scales every group in the settings."""

    def __init__(
        self,
        settings: Settings,
        context: ShellContext,
        lever: CompactorLever | None,
        *,
        state: CoordinatorState,
        scanner: Scanner,
        submit: Submit,
    ) -> None:
        """Create an idle autoscaler.

        Args:
            settings: Settings of the service.
            context: Shared dependencies of the shell.
            lever: Starts and ends compactors; None disables scaling.
            state: State of groups and compactors; read-only.
            scanner: Provides the number of unplanned tablets.
            submit: Sends an event to the core.
        """
        self._settings, self._context, self._lever = settings, context, lever
        self._state, self._scanner = state, scanner
        self._submit = submit
        self._rules = settings.autoscaler
        self._groups = {name: _Group() for name in settings.groups}
        self._first = {service.groups[0].name for service in settings.services.values()}
        self._scales: Mapping[str, int] = {}
        self._scales_s: float | None = None
        self._stopped = lever is None

    def stop(self) -> None:
        """Stop starting and draining compactors."""
        self._stopped = True

    async def run_forever(self) -> None:
        """Run rounds forever; the next round makes up for a failed one."""
        while True:
            try:
                await self.round()
            except (MetadataError, UnavailableError) as error:
                self._context.log("scaling fails", cause=str(error))
            await asyncio.sleep(ROUND_INTERVAL_S)

    async def round(self) -> None:
        """Examine every group once and do what the policy decides.

        Raises:
            MetadataError: The operators' settings cannot be read.
            UnavailableError: The store or Ray does not answer.
        """
        if self._stopped:
            return
        now_s = self._context.clock.now_s()
        if self._scales_s is None or now_s - self._scales_s >= SCALES_INTERVAL_S:
            await self._read_scales()
        names = await self._ray.names()
        status = self._state.status(now_s)
        for group_status in status.groups:
            group = self._groups.get(group_status.group)
            if group is not None:
                members = [
                    compactor
                    for compactor in status.compactors
                    if compactor.group == group_status.group
                    and _group_of(compactor.compactor) == group_status.group
                ]
                await self._scale(group, group_status, members, names, now_s)

    async def scale(self, group: str, wanted: int | None) -> None:
        """Set the number of compactors of a group.

        Args:
            group: Name of the group.
            wanted: Number of compactors; None follows settings and work.

        Raises:
            UnknownGroupError: The settings have no such group.
            RequestError: The number is out of range.
            MetadataError: The store refused.
            UnavailableError: The store does not answer; the number may or may not be written.
        """
        if group not in self._groups:
            names = ", ".join(self._groups)
            raise UnknownGroupError(
                f"group {group!r} does not exist or has no compactors, expected one of: {names}"
            )
        if wanted is not None and not 0 <= wanted <= COMPACTORS_MAX:
            raise RequestError(f"number of compactors is {wanted}, expected 0 to {COMPACTORS_MAX}")
        change = SetScale(group=group, count=wanted)
        await self._context.write(change, f"number of compactors of group {group}")
        self._context.log("group set", group=group, compactors=wanted)
        await self._read_scales()

    async def shut_down(self, compactor: str, wait_max_s: float | None) -> None:
        """Ask a compactor to finish its jobs within a time, and to exit.

        Raises:
            UnavailableError: Ray does not answer, or this coordinator cannot end compactors.
        """
        if self._lever is None:
            raise UnavailableError("this coordinator cannot end compactors")
        self._submit(on.DrainAsked(compactor=compactor))
        for group in self._groups.values():
            group.leaving.add(compactor)
        await self._lever.shut_down(compactor, wait_max_s)

    def scaling(self, group: str, compactors: Sequence[api.Compactor]) -> api.GroupScaling | None:
        """Return the scaling status of a group, or None if the group is not scaled.

        Args:
            group: Name of the group.
            compactors: Compactors of the group that send heartbeats.
        """
        group_state = self._groups.get(group)
        if group_state is None or self._lever is None:
            return None
        least, most = self._bounds(group)
        last = group_state.last
        return api.GroupScaling(
            least=least,
            most=most,
            set_to=self._scales.get(group),
            desired=least if last is None else last.desired,
            starting=len(group_state.starting),
            draining=sum(compactor.draining for compactor in compactors),
            reason="not examined so far" if last is None else last.reason,
            blocked="" if last is None else last.blocked,
            missing=group_state.lack.sentence,
            unobtainable=group_state.lack.final,
            starts_failed=group_state.starts_failed,
            decisions=tuple(group_state.decisions),
        )

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the desired and the starting compactors of each group that is scaled."""
        if self._lever is None:
            return {}
        return {
            name: (group.last.desired, len(group.starting))
            for name, group in self._groups.items()
            if group.last is not None
        }

    @property
    def _ray(self) -> CompactorLever:
        """The lever during a round; without a lever there are no rounds."""
        assert self._lever is not None
        return self._lever

    def _bounds(self, group: str) -> tuple[int, int]:
        wanted = self._scales.get(group)
        if wanted is not None:
            return wanted, wanted
        counts = self._settings.groups[group].compactors
        return counts.min, counts.max

    async def _read_scales(self) -> None:
        self._scales = await self._context.store.scales()
        self._scales_s = self._context.clock.now_s()

    async def _scale(
        self,
        group: _Group,
        group_status: api.Group,
        heard: Sequence[api.Compactor],
        names: frozenset[str],
        now_s: float,
    ) -> None:
        """Examine one group and do what the policy decides."""
        failed = await self._note_starting(group, group_status.group, heard, names, now_s)
        group.lack = await self._lack(group, group_status.group)
        problems = (
            compactor.start_problem for compactor in heard if compactor.compactor in group.starting
        )
        obstacle = group.lack.sentence or next(filter(None, problems), "")
        load = replace(self._load(group, group_status, heard, failed, now_s), obstacle=obstacle)
        decision, group.memory = decide(load, group.memory, self._rules, now_s)
        decision = replace(decision, drain=decision.drain or self._outdated(load, heard))
        group.last, before = decision, group.last
        started = await self._perform(group, decision, names)
        changed = started or decision.drain or decision.give_up
        if changed or before is None or before.desired != decision.desired:
            self._remember(group, decision, started, now_s)

    async def _lack(self, group: _Group, name: str) -> Lack:
        """Return the resources that nodes lack for a group; none if it needs no compactor."""
        if not (group.starting or self._bounds(name)[1]):
            return Lack()
        return await self._ray.lack(name, asked=bool(group.starting))

    def _outdated(self, load: GroupLoad, heard: Sequence[api.Compactor]) -> tuple[str, ...]:
        """Return a compactor of other settings or another release to drain: one at a time.

        A draining compactor no longer counts, so the policy starts another if the work needs it.
        """
        if load.starting or any(compactor.draining for compactor in load.running):
            return ()
        edition = self._ray.edition
        others = [
            compactor for compactor in heard if compactor.ready and compactor.edition != edition
        ]
        least = min(
            others, key=lambda compactor: (compactor.busy, compactor.compactor), default=None
        )
        return () if least is None else (least.compactor,)

    async def _note_starting(
        self,
        group: _Group,
        name: str,
        heard: Sequence[api.Compactor],
        names: frozenset[str],
        now_s: float,
    ) -> tuple[FailedStart, ...]:
        """Record starting compactors; return those that failed to start since the last round."""
        answers = {compactor.compactor for compactor in heard if compactor.ready}
        group.leaving |= {compactor.compactor for compactor in heard if compactor.draining}
        group.leaving &= names
        existing = {compactor for compactor in names if _group_of(compactor) == name}
        existing |= {compactor.compactor for compactor in heard}
        starting = existing - answers - group.leaving
        failed = [
            FailedStart(name=compactor, cause=await self._ray.why_gone(compactor))
            for compactor in group.starting
            if compactor not in existing and compactor not in group.leaving
        ]
        group.starts_failed += len(failed)
        group.starting = {
            compactor: group.starting.get(compactor, now_s) for compactor in sorted(starting)
        }
        return tuple(failed)

    def slot_rate(self, group: str) -> float | None:
        """Return the input bytes/s that a busy slot of a group rewrites, or None if unknown."""
        state = self._groups.get(group)
        return None if state is None else state.rate.bytes_s(1)

    def _load(
        self,
        group: _Group,
        group_status: api.Group,
        heard: Sequence[api.Compactor],
        failed: tuple[FailedStart, ...],
        now_s: float,
    ) -> GroupLoad:
        slots = self._settings.compactor_of(group_status.group).slots
        least, most = self._bounds(group_status.group)
        busy = sum(compactor.busy for compactor in heard)
        group.rate = group.rate.seen(group_status.committed_bytes, busy, now_s)
        return GroupLoad(
            group=group_status.group,
            count_min=least,
            count_max=most,
            slots=slots,
            queued_jobs=group_status.queued,
            queued_bytes=group_status.queued_input_bytes,
            running_jobs=group_status.running,
            running_bytes=group_status.running_left_bytes,
            deferred_tablets=group_status.deferred,
            unplanned_tablets=self._scanner.waiting if group_status.group in self._first else 0,
            oldest_age_s=group_status.oldest_age_s,
            rate_bytes_s=group.rate.bytes_s(slots),
            running=tuple(
                CompactorLoad(
                    name=compactor.compactor,
                    slots=compactor.slots,
                    busy=compactor.busy,
                    draining=compactor.draining or compactor.compactor in group.leaving,
                )
                for compactor in heard
                if compactor.ready
            ),
            starting=tuple(
                StartingCompactor(name=name, since_s=since_s)
                for name, since_s in group.starting.items()
            ),
            failed=failed,
            paused=group_status.paused,
            slots_wanted=self._state.slots_wanted(group_status.group),
        )

    async def _perform(
        self, group: _Group, decision: Decision, names: frozenset[str]
    ) -> tuple[str, ...]:
        """Carry out a decision; return the compactors that were started."""
        for name in decision.give_up:
            self._context.log("compactor does not come up", compactor=name)
            await self._ray.kill(name)
        for name in decision.drain:
            await self.shut_down(name, None)
        free = (name for n in count(1) if (name := f"{decision.group}-{n}") not in names)
        started = tuple(next(free) for _ in range(decision.start))
        for name in started:
            # Record it now; otherwise the failure would stay invisible.
            group.starting[name] = self._context.clock.now_s()
            try:
                await self._ray.start(decision.group, name)
            except UnavailableError as error:
                self._context.log("compactor does not come up", compactor=name, cause=str(error))
        return started

    def _remember(
        self, group: _Group, decision: Decision, started: tuple[str, ...], now_s: float
    ) -> None:
        group.decisions.append(
            api.ScalingDecision(
                at_s=now_s,
                desired=decision.desired,
                reason=decision.blocked or decision.reason,
                started=started,
                drained=decision.drain,
                given_up=decision.give_up,
            )
        )
        self._context.log(
            "group scaled",
            group=decision.group,
            desired=decision.desired,
            current=decision.current,
            started=list(started),
            drained=list(decision.drain),
            reason=decision.reason,
            blocked=decision.blocked,
        )


def _group_of(compactor: str) -> str:
    """Return the group for which this autoscaler started a compactor, or an empty text.

    The group is part of the name. Compactors started by others are ended by others.
    """
    group, _, number = compactor.rpartition("-")
    return group if number.isdecimal() else ""
