"""What goes wrong in a simulated cluster: deaths, freezes, ghosts, fail-overs, and operators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.core import events as on
from tests.support.sim_cluster import Cluster
from tests.support.sim_store import Refusal
from tests.support.sim_users import SimCreator

RESTART_MAX_S = 5.0
FREEZE_MAX_S = 25.0
NOTICE_MAX_S = 3.0
GHOST_MAX_S = 12.0
REFUSAL_MAX_S = 12.0


class Chaos:
    """Does harm now and then, of the kinds that the options allow, until told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._process = cluster.world.process("chaos")
        options = cluster.options
        self._kinds: list[Callable[[], object]] = []
        if options.compactor_dies:
            self._kinds.append(self._kill_compactor)
        if options.compactor_freezes:
            self._kinds.append(self._freeze_compactor)
        if options.coordinator_dies:
            self._kinds.append(self._kill_coordinator)
        if options.ghost:
            self._kinds.append(self._replace_coordinator)
        if options.fail_over:
            self._kinds += [self._fail_over, self._fail_over]
        if options.operators:
            self._kinds += [self._pause_group, self._pause_table, self._cancel, self._drain]
        if options.store_refuses:
            self._kinds.append(self._refuse)
        self._kinds += [self._kill_creator] * bool(options.creators)
        self._kinds += self._kinds_of_gateways()

    def _kinds_of_gateways(self) -> list[Callable[[], object]]:
        options = self._cluster.options
        if not options.gateways:
            return []
        deaths = [self._kill_gateway] if options.gateway_dies else []
        return deaths + [self._freeze_gateway, self._freeze_gateway] * options.gateway_freezes

    def start(self) -> None:
        if self._kinds:
            self._process.start(self._run())

    def stop(self) -> None:
        """Do nothing more; whoever is dead or frozen comes back."""
        self._process.alive = False
        cluster = self._cluster
        cluster.server.refuse(Refusal.FULL, 0.0)
        if not cluster.coordinator.process.alive:
            cluster.start_coordinator()
        cluster.coordinator.process.frozen_until_s = 0.0
        for name, compactor in list(cluster.compactors.items()):
            if not compactor.process.alive and not compactor.said_goodbye:
                cluster.start_compactor(name)
        for group in ("small", "large"):
            resumed = on.GroupResumed(group=group)
            cluster.coordinator.process.start(cluster.coordinator.tell(resumed))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(1.0 + self._world.random() * 6.0)
            self._world.dice.choice(self._kinds)()

    def _note(self, kind: str) -> None:
        self._cluster.truth.seen[f"chaos: {kind}"] += 1

    def _kill_compactor(self) -> None:
        cluster, world = self._cluster, self._world
        name = world.dice.choice(sorted(cluster.compactors))
        victim = cluster.compactors[name]
        if not victim.process.alive:
            return
        self._note("compactor killed")
        world.tell(name, "dies")
        victim.process.alive = False
        if world.chance(0.5):
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
        if self._world.chance(0.5):
            cluster.start_compactor(name)
        else:
            cluster.replace_compactor(name)

    def _freeze_compactor(self) -> None:
        """Let a compactor stand still, long enough to be taken for dead, and go on."""
        name = self._world.dice.choice(sorted(self._cluster.compactors))
        victim = self._cluster.compactors[name]
        frozen_s = self._world.random() * FREEZE_MAX_S
        self._note("compactor frozen")
        self._world.tell(name, "freezes", seconds=frozen_s)
        victim.process.frozen_until_s = self._world.now_s() + frozen_s

    def _kill_coordinator(self) -> None:
        victim = self._cluster.coordinator
        if not victim.process.alive:
            return
        self._note("coordinator killed")
        self._world.tell(victim.name, "dies")
        victim.die()
        self._later(RESTART_MAX_S, self._revive_coordinator)

    def _revive_coordinator(self) -> None:
        if not self._cluster.coordinator.process.alive:
            self._cluster.start_coordinator()

    def _replace_coordinator(self) -> None:
        """Start another coordinator: the old one is a ghost until it notices."""
        ghost = self._cluster.coordinator
        if not ghost.process.alive or not ghost.led:
            return
        self._note("second coordinator")
        for name in self._cluster.compactors:
            self._cluster.followed[name] = ghost
            self._later(GHOST_MAX_S, lambda name=name: self._cluster.followed.pop(name, None))
        if self._world.chance(0.5):
            frozen_s = self._world.random() * GHOST_MAX_S
            self._world.tell(ghost.name, "freezes", seconds=frozen_s)
            ghost.process.frozen_until_s = self._world.now_s() + frozen_s
        self._cluster.start_coordinator()

    def _kill_creator(self) -> None:
        """End a user in the middle of a creation or a drop; another one comes."""
        makers = [client for client in self._cluster.clients if isinstance(client, SimCreator)]
        victim = self._world.dice.choice([maker for maker in makers if not maker.done] or makers)
        if victim.done:
            return
        self._note("creator killed")
        self._world.tell(victim.name, "dies")
        victim.process.alive, victim.done = False, True
        self._cluster.start_creator(f"maker{len(makers)}")

    def _kill_gateway(self) -> None:
        self._note("gateway killed")
        self._cluster.gateways.kill()

    def _freeze_gateway(self) -> None:
        self._note("gateway frozen")
        self._cluster.gateways.freeze()

    def _fail_over(self) -> None:
        """Let a replica take over, soon after a write rather than long after the last."""
        server = self._cluster.server
        if self._world.chance(0.7):
            self._process.start(self._after_a_write())
            return
        forgotten = server.fail_over()
        self._note(f"fail-over that forgot {forgotten}")
        self._world.tell("server", "fails over", forgotten=forgotten)

    async def _after_a_write(self) -> None:
        await self._cluster.server.news(5.0)
        forgotten = self._cluster.server.fail_over()
        self._note(f"fail-over that forgot {forgotten}")
        self._world.tell("server", "fails over", forgotten=forgotten)

    def _refuse(self) -> None:
        """Let the store live, and take nothing: shorter or longer than a change is tried."""
        refusal = self._world.dice.choice([*Refusal])
        for_s = self._world.random() * self._world.dice.choice((1.0, REFUSAL_MAX_S))
        self._note(f"store refuses: {refusal.value}")
        self._world.tell("server", "refuses", kind=refusal.value, seconds=for_s)
        self._cluster.truth.seen["refusals"] += 1
        self._cluster.server.refuse(refusal, for_s)

    def _pause_group(self) -> None:
        group = self._world.dice.choice(("small", "large"))
        self._note("group paused")
        self._tell(on.GroupPaused(group=group))
        self._later(10.0, lambda: self._tell(on.GroupResumed(group=group)))

    def _pause_table(self) -> None:
        cluster = self._cluster
        self._note("table paused")
        cluster.operator.start(cluster.owner.pause_table(self._world.dice.choice(cluster.tables)))

    def _cancel(self) -> None:
        views = self._cluster.truth.views.values()
        running = [attempt for view in views for attempt in view.running]
        leader = self._cluster.coordinator
        if running and leader.process.alive:
            self._note("attempt cancelled")
            leader.process.start(leader.cancel_safely(self._world.dice.choice(running)))

    def _drain(self) -> None:
        name = self._world.dice.choice(sorted(self._cluster.compactors))
        self._note("compactor drained")
        self._tell(on.DrainAsked(compactor=name))

    def _tell(self, event: on.Event) -> None:
        leader = self._cluster.coordinator
        if leader.led and leader.process.alive:
            leader.process.start(leader.tell(event))

    def _later(self, longest_s: float, call: Callable[[], object]) -> None:
        self._process.call_later(self._world.random() * longest_s, call)
