"""What goes wrong in a simulated cluster: deaths, freezes, ghosts, and operators."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.core import events as on
from tests.support.sim_cluster import Cluster
from tests.support.sim_tasks import Process

RESTART_MAX_S = 5.0
FREEZE_MAX_S = 25.0
NOTICE_MAX_S = 3.0
GHOST_MAX_S = 12.0


class Chaos:
    """Does harm now and then, of the kinds that the options allow, until told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tasks = cluster.tasks
        self._process = Process("chaos")
        options = cluster.options
        self._kinds: list[Callable[[], None]] = []
        if options.compactor_dies:
            self._kinds.append(self._kill_compactor)
        if options.compactor_freezes:
            self._kinds.append(self._freeze_compactor)
        if options.coordinator_dies:
            self._kinds.append(self._kill_coordinator)
        if options.ghost:
            self._kinds.append(self._replace_coordinator)
        if options.operators:
            self._kinds += [self._pause_group, self._cancel, self._drain]

    def start(self) -> None:
        if self._kinds:
            self._tasks.spawn(self._process, self._run())

    def stop(self) -> None:
        """Do nothing more; whoever is dead or frozen comes back."""
        self._process.alive = False
        cluster = self._cluster
        if not cluster.coordinator.process.alive:
            cluster.start_coordinator()
        cluster.coordinator.process.frozen_until_s = 0.0
        for name, compactor in list(cluster.compactors.items()):
            if not compactor.process.alive and not compactor.said_goodbye:
                cluster.start_compactor(name)
        for group in ("small", "large"):
            cluster.coordinator.submit(on.GroupResumed(group=group))

    async def _run(self) -> None:
        while True:
            await self._tasks.sleep(1.0 + self._tasks.dice.random() * 8.0)
            self._tasks.dice.choice(self._kinds)()

    def _kill_compactor(self) -> None:
        cluster, tasks = self._cluster, self._tasks
        name = tasks.dice.choice(sorted(cluster.compactors))
        victim = cluster.compactors[name]
        if not victim.process.alive:
            return
        tasks.tell(f"{victim.incarnation} dies")
        victim.process.alive = False
        if tasks.chance(0.5):
            gone = on.CompactorGone(
                compactor=name, cause="its actor died", incarnation=victim.incarnation
            )
            self._later(NOTICE_MAX_S, lambda: self._tell(gone))
        self._later(RESTART_MAX_S, lambda: self._revive(name))

    def _revive(self, name: str) -> None:
        """Start a dead compactor again: under its name, or another one in its place."""
        cluster = self._cluster
        compactor = cluster.compactors.get(name)
        if compactor is None or compactor.process.alive or compactor.said_goodbye:
            return
        if self._tasks.chance(0.5):
            cluster.start_compactor(name)
        else:
            cluster.replace_compactor(name)

    def _freeze_compactor(self) -> None:
        """Let a compactor stand still, long enough to be taken for dead, and go on."""
        name = self._tasks.dice.choice(sorted(self._cluster.compactors))
        victim = self._cluster.compactors[name]
        frozen_s = self._tasks.dice.random() * FREEZE_MAX_S
        self._tasks.tell(f"{victim.incarnation} freezes for {frozen_s:.1f} s")
        victim.process.frozen_until_s = self._tasks.now_s() + frozen_s

    def _kill_coordinator(self) -> None:
        victim = self._cluster.coordinator
        if not victim.process.alive:
            return
        self._tasks.tell(f"{victim.name} dies")
        victim.process.alive = False
        self._later(RESTART_MAX_S, self._revive_coordinator)

    def _revive_coordinator(self) -> None:
        if not self._cluster.coordinator.process.alive:
            self._cluster.start_coordinator()

    def _replace_coordinator(self) -> None:
        """Start another coordinator: the old one is a ghost until it notices."""
        ghost = self._cluster.coordinator
        if not ghost.process.alive or not ghost.led:
            return
        for name in self._cluster.compactors:
            self._cluster.followed[name] = ghost
            self._later(GHOST_MAX_S, lambda name=name: self._cluster.followed.pop(name, None))
        if self._tasks.chance(0.5):
            frozen_s = self._tasks.dice.random() * GHOST_MAX_S
            self._tasks.tell(f"{ghost.name} freezes for {frozen_s:.1f} s")
            ghost.process.frozen_until_s = self._tasks.now_s() + frozen_s
        self._cluster.start_coordinator()

    def _pause_group(self) -> None:
        group = self._tasks.dice.choice(("small", "large"))
        self._tell(on.GroupPaused(group=group))
        self._later(10.0, lambda: self._tell(on.GroupResumed(group=group)))

    def _cancel(self) -> None:
        leader = self._cluster.coordinator
        running = leader.state.running(self._tasks.now_s())
        if running:
            attempt = self._tasks.dice.choice(running).attempt
            self._tell(on.AttemptCancelAsked(attempt=attempt, cause="an operator wants it"))

    def _drain(self) -> None:
        name = self._tasks.dice.choice(sorted(self._cluster.compactors))
        self._tell(on.DrainAsked(compactor=name))

    def _tell(self, event: on.Event) -> None:
        leader = self._cluster.coordinator
        if leader.led and leader.process.alive:
            self._tasks.call_at(self._tasks.now_s(), leader.process, lambda: leader.submit(event))

    def _later(self, longest_s: float, call: Callable[[], object]) -> None:
        at_s = self._tasks.now_s() + self._tasks.dice.random() * longest_s
        self._tasks.call_at(at_s, self._process, lambda: call() and None)
