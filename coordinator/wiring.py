"""Puts the parts of a coordinator together; what they are for stands in each of them."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from common.metadata.ports import TabletStore
from common.settings import Settings
from coordinator.automatic import Automatic
from coordinator.collector import Collector, CollectorRules
from coordinator.core import events as on
from coordinator.core.state import CoordinatorState
from coordinator.full_scan import FullScan
from coordinator.performing import Context
from coordinator.pieces import PieceScans, ScansHere
from coordinator.registry import planner_for
from coordinator.request_steps import Minds, Steps
from coordinator.requests import Requests
from coordinator.scanner import Scanner
from coordinator.selecting import Selectors
from coordinator.service import CoordinatorService
from coordinator.storage import ArrowStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one coordinator that turn, wait and read; nothing runs yet."""

    store: TabletStore
    context: Context
    state: CoordinatorState
    scanner: Scanner
    full_scan: FullScan
    service: CoordinatorService
    requests: Requests
    automatic: Automatic

    def loops(self, settings: Settings) -> list[Coroutine[Any, Any, None]]:
        """Return what has to run for ever, beside the collector and who leads."""
        own = settings.coordinator
        return [
            self.scanner.plan_forever(),
            self.scanner.follow_forever(),
            self.scanner.refresh_tables_forever(),
            self.full_scan.run_forever(own),
            self.requests.run_forever(),
            self.automatic.run_forever(),
            self._tick_forever(own.tick_s),
        ]

    async def _tick_forever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self.service.submit(on.Ticked())
            self.requests.look_at_deadlines()


def collector_of(settings: Settings, context: Context) -> Collector:
    """Return the collector that the settings ask for."""
    rules = CollectorRules(
        grace_s=settings.coordinator.garbage_grace_s,
        clock_skew_max_s=settings.coordinator.clock_skew_max_s,
    )
    return Collector(context.store, ArrowStorage(), rules, context.log)


def assemble(settings: Settings, context: Context, elsewhere: PieceScans | None = None) -> Parts:
    """Return the parts, each knowing those that it needs.

    Must be called in the event loop that will run them.

    Args:
        settings: The operator's.
        context: What the shell is made of.
        elsewhere: Where pieces of large tables are scanned; None: in this process.

    Raises:
        ConfigError: A plug-in of the settings is not installed.
        PluginError: One of them does not load.
    """
    plan = planner_for(settings)
    scanner = Scanner(context.store, plan, context.log)
    state = CoordinatorState(settings.coordinator, coordinator=context.coordinator)
    service = CoordinatorService(state, context, scanner)
    scanner.attach(service.submit)
    selectors = Selectors()
    minds = Minds(plan=plan, selectors=selectors, why_quarantined=state.why_quarantined)
    requests = Requests(context, Steps(context, minds))
    automatic = Automatic(context, selectors)
    here = ScansHere(context.store, plan)
    full_scan = FullScan(context.store, scanner, state, here, context.log)
    full_scan.use(elsewhere, settings.coordinator.full_scan_tasks)
    scanner.watch(requests)
    scanner.watch(automatic)
    return Parts(
        store=context.store,
        context=context,
        state=state,
        scanner=scanner,
        full_scan=full_scan,
        service=service,
        requests=requests,
        automatic=automatic,
    )
