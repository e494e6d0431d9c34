"""Drives user requests: reads their tablets, and takes one step in each.

    the feed reports a tablet ─► the tablet is read ─► a step of the request that has the turn
    a request changed, full scan ─► all tablets of all requests ─► … ─► DONE, FAILED, …

The store holds all state: open requests are read again with every pass over all tablets. Memory
holds only the pending work and the tables with requests, so that changes of other tables cost
nothing. The tablets of a range may not fit into memory, so they are read page by page.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

from common.errors import CompactionError, MetadataError, PluginError, UnavailableError, redacted
from common.metadata.changes import (
    Applied,
    CancelHere,
    CancelRange,
    CloseRequest,
    CompleteHere,
    FinishHere,
    MarkWaiting,
    Outcome,
    Refused,
    SelectFiles,
    SubmitRequest,
    Unknown,
    WriteAnalysis,
)
from common.metadata.keys import AUDITED_DELETES_MAX, HISTORY_MAX
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.job import Job, Kind
from common.model.outcome import RefusalCode
from common.model.request import Request, RequestState, SelectorSpec, TransformKind, key_range_of
from common.model.table import Table, TableState
from common.model.tablet import Analysis, Tablet, TabletId
from common.parquet.file_inspection import read_summaries
from common.parquet.location import open_location
from common.plugins import load_selector, require_options, summary_names
from common.primitives import BoundedMap
from common.spi.planner import Chosen, Selector, SelectorParameters
from common.wire import RequestEnds
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.core.requests import (
    NO_ANSWERS,
    AskPlanner,
    AskSelector,
    FailRequest,
    NothingLeft,
    PluginAnswers,
    WaitForTablet,
    ask_again_at_s,
    automatic_request,
    begin_cancel,
    closed_files,
    facts_of,
    matching_files,
    meets_tablet,
    must_ask_selector,
    next_state,
    next_step,
    requests_in_turn,
    selector_hash,
    shown_files,
    table_selector,
    why_cancel,
)
from coordinator.ports import PlanTablet, Submit

# ----------------------------------------------------------------------------------- Selector calls
# Calls selectors in threads, so that a slow selector delays only its own request.
#
# A table may have its own selector. The scanner reports every tablet that it reads. If the files or
# the selector have changed since the last call, the selector is called, and its answer becomes a
# request. A failed call is retried when the tablet changes or is replanned; nothing waits for it.


# ------------------------------------------------------------------------------- Calls of selectors


SELECTORS_AT_ONCE = 4
ANSWER_MAX_S = 60.0
"""Timeout of a call, after which the selector and its request have failed."""
UNENDED_MAX = 8
"""Maximum number of timed-out calls that still run, because Python cannot kill a thread. At this
number, no selector is called until one call has ended. Calls of built-in selectors always end:
their options are bounded, and the duration of a call depends on their length only."""


KEPT_MAX = 1000
"""Maximum number of kept answers; a request whose answer is not kept asks again."""


class SelectorCalls:
    """Calls of installed selectors, each in a thread."""

    def __init__(
        self,
        load: Callable[[str], Selector] = load_selector,
        answer_max_s: float = ANSWER_MAX_S,
    ) -> None:
        """Create an instance that loads selectors on demand."""
        self._load = load
        self._answer_max_s = answer_max_s
        self._threads = self._fresh_threads()
        self._unended: list[Event] = []
        self._kept: dict[str, tuple[str, Chosen]] = {}
        """Request → digest and answer, oldest first."""
        self.calls = 0
        self.failures = 0

    async def choose(
        self,
        spec: SelectorSpec,
        table: Table,
        tablet: TabletId,
        files: tuple[DataFile, ...],
        now_s: float,
    ) -> Chosen:
        """Return the choice of a selector among files of a tablet.

        Raises:
            CompactionError: The selector is not installed, rejects its options, fails, times out,
                or chooses a file that is not a candidate.
        """
        self.calls += 1
        try:
            return await self._chosen(spec, table, tablet, files, now_s)
        except CompactionError:
            self.failures += 1
            raise

    async def _chosen(
        self,
        spec: SelectorSpec,
        table: Table,
        tablet: TabletId,
        files: tuple[DataFile, ...],
        now_s: float,
    ) -> Chosen:
        parameters = SelectorParameters(
            tablet=tablet, table=table, files=files, options=spec.options, now_s=now_s
        )
        self._unended = [ended for ended in self._unended if not ended.is_set()]
        if len(self._unended) >= UNENDED_MAX:
            message = (
                f"selector {spec.name} is not called: {UNENDED_MAX} earlier selector calls"
                f" took longer than {self._answer_max_s:g} s and are still running; restart"
                " the coordinator"
            )
            raise PluginError(message)
        ended = Event()
        call = asyncio.get_running_loop().run_in_executor(
            self._threads, self._ask, spec, parameters, ended
        )
        try:
            async with asyncio.timeout(self._answer_max_s):
                chosen = await call
        except TimeoutError:
            self._unended.append(ended)
            # The thread is blocked until the call returns, so further calls get new threads.
            self._threads.shutdown(wait=False, cancel_futures=False)
            self._threads = self._fresh_threads()
            message = f"selector {spec.name} did not answer within {self._answer_max_s:g} s"
            raise PluginError(message) from None
        return _checked_choice(spec.name, chosen, files)

    def _ask(self, spec: SelectorSpec, parameters: SelectorParameters, ended: Event) -> object:
        try:
            selector = self._load(spec.name)
            require_options("selector", spec.name, selector, spec.options)
            if names := summary_names(selector, spec.options):
                paths = [file.path for file in parameters.files]
                location = open_location(parameters.table.location)
                summaries = read_summaries(location, paths, names)
                parameters = replace(parameters, summaries=summaries)
            return selector.select(parameters)
        except CompactionError:
            raise
        except Exception as error:
            message = f"selector {spec.name}: {type(error).__name__}: {error}"
            raise PluginError(message) from error
        finally:
            ended.set()

    def keep(self, request: str, digest: str, chosen: Chosen) -> None:
        """Keep the answer that caused a request, so that the request does not ask again.

        Args:
            request: Id of the request.
            digest: `selector_hash` of tablet, table and selector at the time of the answer.
            chosen: The answer.
        """
        self._kept[request] = (digest, chosen)
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def take_kept(self, request: str, digest: str) -> Chosen | None:
        """Return the kept answer of a request, once, if it is about the same files and settings."""
        kept_digest, chosen = self._kept.pop(request, ("", None))
        return chosen if kept_digest == digest else None

    def _fresh_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(SELECTORS_AT_ONCE, thread_name_prefix="selector")


def _checked_choice(name: str, chosen: object, files: tuple[DataFile, ...]) -> Chosen:
    if not isinstance(chosen, Chosen):
        message = f"selector {name} returned {type(chosen).__name__}, expected Chosen"
        raise PluginError(message)
    shown = {file.path for file in files}
    if strangers := [path for path in chosen.files if path not in shown]:
        message = f"selector {name} chose {strangers[0]!r}, which is not among its candidates"
        raise PluginError(message)
    return replace(chosen, files=tuple(sorted(set(chosen.files))))


# ------------------------------------------------------------ Automatic requests of table selectors


TABLETS_AT_ONCE = 4


class AutomaticRequests:
    """Watches the scanner for tablets whose table has a selector."""

    def __init__(self, context: ShellContext, selectors: SelectorCalls) -> None:
        """Create an instance without waiting tablets."""
        self._context = context
        self._selectors = selectors
        self._waiting: dict[TabletId, tuple[Tablet, Table]] = {}
        self._news = asyncio.Event()

    def tablet_read(self, tablet: Tablet, table: Table) -> None:
        """Schedule a call for a tablet if its files, its selector or the due time require one."""
        spec = table_selector(table)
        if spec is not None and must_ask_selector(tablet, table, spec, self._context.clock.now_s()):
            self._waiting[tablet.id] = (tablet, table)
            self._news.set()

    async def run_forever(self) -> None:
        """Call selectors for the waiting tablets, several at a time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(TABLETS_AT_ONCE):
                tasks.create_task(self._ask_forever())

    async def _ask_forever(self) -> None:
        while True:
            await self._news.wait()
            if not self._waiting:
                self._news.clear()
                continue
            tablet, table = self._waiting.pop(next(iter(self._waiting)))
            spec = table_selector(table)
            if spec is not None:
                work = partial(self._ask, spec, tablet, table)
                await self._context.faults.run("asking the selector", table.id, work)

    async def _ask(self, spec: SelectorSpec, tablet: Tablet, table: Table) -> None:
        now_s = self._context.clock.now_s()
        files = closed_files(tablet)
        try:
            chosen = await self._selectors.choose(spec, table, tablet.id, files, now_s)
        except CompactionError as error:
            self._log("selector of a table failed", tablet, cause=str(error))
            return
        request = automatic_request(tablet, table, spec, chosen, now_s)
        if request is not None:
            self._selectors.keep(request.id, selector_hash(tablet, table, spec), chosen)
            outcome = await self._context.apply_or_unknown(SubmitRequest(request=request))
            if not isinstance(outcome, Applied):
                self._log("automatic request not made", tablet, cause=outcome.reason)
                return
            self._log("automatic request made", tablet, request=request.id, reason=chosen.reason)
        await self._context.apply_or_unknown(
            WriteAnalysis(
                tablet=tablet.id,
                analysis=Analysis.UNKNOWN,
                version=-1,
                settings_version=-1,
                selector_hash=selector_hash(tablet, table, spec),
                selector_due_s=ask_again_at_s(chosen, now_s),
            )
        )

    def _log(self, event: str, tablet: Tablet, **fields: str) -> None:
        self._context.log(event, tablet=str(tablet.id), **fields)


# ------------------------------------------------------------------------------------- Tablet steps
# Takes one step of a request in one tablet: calls plug-ins, and applies the change.
#
# A step that the store refuses is not retried: the refusal is due to a change of the tablet, which
# schedules the tablet again. As with any release, compactors learn of cancelled jobs from the
# answer to their next heartbeat.


RETRY_S = 1.0
"""Pause after the store did not answer."""

TabletChange = MarkWaiting | SelectFiles | CompleteHere | CancelHere | FinishHere


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies of requests: planners, selectors, and the check for jobs that are given up."""

    plan: PlanTablet
    selectors: SelectorCalls
    why_given_up: Callable[[Job], str | None]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step. `settled` means that no work is left in the tablet."""

    settled: bool
    look_again_s: float | None = None
    """Seconds until the next pass over the whole table; None if no pass is needed."""


class RequestSteps:
    """Takes steps. Stateless."""

    def __init__(
        self,
        context: ShellContext,
        policies: Policies,
        submit: Submit = lambda _event: None,
    ) -> None:
        """Create steps that change the context's store and report through `submit`."""
        self._context = context
        self._submit = submit
        self._policies = policies

    async def take(
        self, request: Request, table: Table, tablet: Tablet, now_s: float
    ) -> StepResult:
        """Take the next step of a request in a tablet.

        Args:
            request: The request that has the turn in the tablet.
            table: The current version of the table.
            tablet: The version that was read.
            now_s: The store's time.
        """
        step = next_step(request, tablet)
        if isinstance(step, AskSelector | AskPlanner):
            answers = NO_ANSWERS
            if isinstance(step, AskSelector):
                answers = await self._ask_selector(request, table, tablet, now_s)
            else:
                answers = self._ask_planner(request, table, tablet, now_s)
            step = next_step(request, tablet, answers)
        match step:
            case NothingLeft():
                return StepResult(settled=True)
            case FailRequest(cause=cause):
                self._submit_step("FailRequest", request, tablet, reason=cause)
                return await self._fail(request, cause)
            case WaitForTablet() | AskSelector() | AskPlanner():
                return StepResult(settled=False)
            case _:
                return await self._change(step, request, tablet)

    async def _fail(self, request: Request, cause: str) -> StepResult:
        """Begin to end a request as FAILED; its holds and markers are removed first."""
        outcome = await self._context.apply_or_unknown(begin_cancel(request, cause, fails=True))
        return StepResult(settled=False, look_again_s=_retry_at_s(outcome, applied_s=0.0))

    async def _change(self, step: TabletChange, request: Request, tablet: Tablet) -> StepResult:
        outcome = await self._context.apply_or_unknown(step)
        where = {"request": request.id, "tablet": str(tablet.id), "step": type(step).__name__}
        if not isinstance(outcome, Applied):
            code = outcome.code if isinstance(outcome, Refused) else "unknown"
            self._submit_step(where["step"], request, tablet, code=code, reason=outcome.reason)
            self._context.log("request step not taken", **where, cause=outcome.reason)
            if isinstance(outcome, Refused) and outcome.code == RefusalCode.TOO_LARGE:
                return await self._fail(request, outcome.reason)
            return StepResult(settled=False, look_again_s=_retry_at_s(outcome))
        self._context.log("request step taken", **where)
        files = len(step.chosen) if isinstance(step, SelectFiles) else 0
        self._submit_step(where["step"], request, tablet, chosen=files)
        match step:
            case MarkWaiting():
                return StepResult(settled=False)
            case SelectFiles(chosen=chosen):
                return StepResult(settled=not chosen)
            case CancelHere() | CompleteHere() | FinishHere():
                return StepResult(settled=True)

    def _submit_step(
        self,
        step: str,
        request: Request,
        tablet: Tablet,
        *,
        chosen: int = 0,
        code: str = "",
        reason: str = "",
    ) -> None:
        self._submit(
            on.StepAnswered(
                tablets=(tablet.id,),
                of=request.id,
                step=step,
                chosen=chosen,
                code=code,
                reason=reason,
            )
        )

    async def _ask_selector(
        self, request: Request, table: Table, tablet: Tablet, now_s: float
    ) -> PluginAnswers:
        shown = matching_files(request, table, tablet, shown_files(request, tablet))
        if not shown:
            return PluginAnswers(chosen=Chosen(reason="a rewrite would not change any file"))
        selectors, spec = self._policies.selectors, request.selector
        if request.automatic and shown == closed_files(tablet):
            kept = selectors.take_kept(request.id, selector_hash(tablet, table, spec))
            if kept is not None:
                return PluginAnswers(chosen=kept)
        try:
            chosen = await selectors.choose(spec, table, tablet.id, shown, now_s)
        except CompactionError as error:
            return PluginAnswers(problem=str(error))
        return PluginAnswers(chosen=chosen)

    def _ask_planner(
        self, request: Request, table: Table, tablet: Tablet, now_s: float
    ) -> PluginAnswers:
        """Get the jobs of a selection as if the table were live: a pause only delays jobs."""
        live = replace(table, state=TableState.LIVE)
        facts = {request.id: facts_of(request)}
        try:
            plan = self._policies.plan(tablet, live, now_s, facts, only=Kind.USER)
        except CompactionError as error:
            return PluginAnswers(problem=str(error))
        assert tablet.selection is not None, tablet.id
        left = [plan.left[path] for path in tablet.selection.files if path in plan.left]
        stuck = (self._policies.why_given_up(job) for job in plan.jobs)
        return PluginAnswers(
            jobs=len(plan.jobs),
            left=left[0] if left else "no reason was given",
            given_up=next((why for why in stuck if why is not None), ""),
        )


def _retry_at_s(outcome: Outcome, applied_s: float | None = None) -> float | None:
    """Return when to check again, because an unanswered change may never appear in the feed."""
    if isinstance(outcome, Unknown):
        return RETRY_S
    return applied_s if isinstance(outcome, Applied) else None


def cancel_part(request: str, tablet: Tablet) -> CancelRange:
    """Return the change that excludes one tablet from a request."""
    return CancelRange(table=tablet.id.table, request=request, range=key_range_of(tablet.bounds))


# ------------------------------------------------------------------------------------------- Driver


# ---------------------------------------------------------------- Tablets of requests, page by page


PAGE_TABLETS = 500


async def tablet_pages(
    store: TabletStore, table: Table, requests: Sequence[Request]
) -> AsyncIterator[list[Tablet]]:
    """Yield the tablets that may hold rows of any of these requests, in order.

    A tablet that is split meanwhile may be missed: a request is checked again until the store
    confirms its end.

    Raises:
        MetadataError: The store did not answer as it should.
    """
    start, until = (None, None) if table.partition_by else _common_span(requests)
    first = None if start is None else await store.locate(table.id, start)
    ids: list[TabletId] = [] if first is None else [first]
    after = None if first is None else first.end
    while True:
        ids += await store.tablet_ids(table.id, after=after, count=PAGE_TABLETS)
        if not ids:
            return
        yield [tablet for tablet in await store.tablets(ids) if tablet is not None]
        after = ids[-1].end
        if until is not None and after >= until:
            return
        ids = []


def _common_span(requests: Sequence[Request]) -> tuple[bytes | None, bytes | None]:
    """Return the common bounds of all ranges."""
    starts = [request.range.start for request in requests]
    ends = [request.range.until for request in requests]
    start = None if None in starts else min(bound for bound in starts if bound is not None)
    until = None if None in ends else max(end for end in ends if end is not None)
    return start, until


# --------------------------------------------------------------------------------------- The driver


STEPS_AT_ONCE = 16
"""Concurrent steps in the tablets of one table."""
REST_PER_TABLET_S = 0.001
REST_MAX_S = 60.0
"""Maximum pause between two passes over all tablets that only count the remaining work."""


class _TableNews:
    """Pending work in one table."""

    def __init__(self) -> None:
        self.whole = False
        self.tablets: dict[TabletId, None] = {}


ENDS_MAX = 1000
"""Tables and states whose ended requests are counted for notifications."""
CAUSE_CHARS_MAX = 300


class RequestDriver:
    """The driver of all requests. Every method is called from one event loop."""

    def __init__(self, context: ShellContext, steps: RequestSteps) -> None:
        """Create a driver without pending work."""
        self._context = context
        self._steps = steps
        self._news: dict[str, _TableNews] = {}
        self._driven: set[str] = set()
        self._awake = asyncio.Event()
        self._open: dict[str, tuple[Request, ...]] = {}
        self._rests_until_s: dict[str, float] = {}
        self._counts: dict[str, asyncio.TimerHandle] = {}
        self._waiting: dict[str, set[TabletId]] = {}
        self.ended: Counter[RequestState] = Counter()
        """Number of requests that have ended since the start, by final state."""
        self.request_ends: BoundedMap[tuple[str, RequestState], RequestEnds] = BoundedMap(ENDS_MAX)
        """Table and state → its requests that have ended, without those of selectors."""

    def table_changed(self, table: str) -> None:
        """Schedule a pass over all requests of a table and all their tablets."""
        self._news.setdefault(table, _TableNews()).whole = True
        self._awake.set()

    def tablet_changed(self, tablet: TabletId) -> None:
        """Schedule a step in a tablet if its table has requests."""
        if tablet.table in self._open:
            self._news.setdefault(tablet.table, _TableNews()).tablets[tablet] = None
            self._awake.set()

    def look_at_deadlines(self) -> None:
        """Schedule a pass over the tables with a request whose deadline has passed."""
        now_s = self._context.clock.now_s()
        for table, requests in self._open.items():
            if any(_is_late(request, now_s) for request in requests):
                self.table_changed(table)

    def open_requests(self) -> list[Request]:
        """Return the open requests of all tables."""
        return [
            request
            for requests in self._open.values()
            for request in requests
            if not request.state.ended
        ]

    @property
    def waiting_tablets(self) -> int:
        """Number of tablets in which a request waits for running jobs, at their last read."""
        return sum(map(len, self._waiting.values()))

    async def cancel_here(self, tablet: TabletId, attempt: str) -> None:
        """Exclude a tablet from the request that an attempt in it belongs to, if any."""
        seen = await self._context.store.tablet(tablet)
        entry = None if seen is None else seen.running.get(attempt)
        if seen is not None and entry is not None and entry.request is not None:
            await self._context.apply_or_unknown(cancel_part(entry.request, seen))
            self.table_changed(tablet.table)

    async def run_forever(self) -> None:
        """Drive tables concurrently, so that a slow selector does not delay other tables."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._awake.wait()
                self._awake.clear()
                for table in [new for new in self._news if new not in self._driven]:
                    self._driven.add(table)
                    tasks.create_task(self._drive(table))

    async def _drive(self, table: str) -> None:
        try:
            while (news := self._news.pop(table, None)) is not None:
                work = partial(self._look_or_wait, table, news)
                again = partial(self.table_changed, table)
                await self._context.faults.run("driving requests", table, work, retry=again)
        finally:
            self._driven.discard(table)

    async def _look_or_wait(self, table: str, news: _TableNews) -> None:
        try:
            await self._look(table, news)
        except (MetadataError, UnavailableError) as error:
            self._context.log("requests wait for the store", table=table, cause=str(error))
            await asyncio.sleep(RETRY_S)
            self.table_changed(table)

    async def _look(self, table_id: str, news: _TableNews) -> None:
        if news.whole:
            await self._look_at_all(table_id)
            return
        table = await self._context.store.table(table_id)
        requests = self._open.get(table_id, ())
        if table is None or not requests:
            return
        now_s = await self._context.store.now_s()
        tablets = await self._context.store.tablets([*news.tablets])
        existing = [tablet for tablet in tablets if tablet is not None]
        unsettled = await self._step_in(requests, table, existing, now_s)
        if len(existing) < len(tablets) or _any_settled(requests, existing, unsettled):
            self._count_soon(table_id)

    async def _look_at_all(self, table_id: str) -> None:
        store = self._context.store
        requests = tuple(await store.open_requests(table_id))
        if not requests:
            self._open.pop(table_id, None)
            self._rests_until_s.pop(table_id, None)
            self._waiting.pop(table_id, None)
            return
        self._open[table_id] = requests
        table, now_s = await store.table(table_id), await store.now_s()
        early = [why_cancel(request, table, now_s) for request in requests]
        if moves := [change for change in early if change is not None]:
            outcomes = [await self._context.apply_or_unknown(change) for change in moves]
            if any(isinstance(outcome, Applied) for outcome in outcomes):
                self.table_changed(table_id)
        elif table is not None:
            await self._step_everywhere(requests, table, now_s)

    async def _step_everywhere(
        self, requests: Sequence[Request], table: Table, now_s: float
    ) -> None:
        """Take a step in every tablet; end the requests that have no work left in any."""
        left = dict.fromkeys((request.id for request in requests), 0)
        count = 0
        async for page in tablet_pages(self._context.store, table, requests):
            count += len(page)
            for _, request in await self._step_in(requests, table, page, now_s):
                left[request] += 1
        await self._move_on([request for request in requests if not left[request.id]], table, now_s)
        rest_s = min(count * REST_PER_TABLET_S, REST_MAX_S)
        self._rests_until_s[table.id] = asyncio.get_running_loop().time() + rest_s

    async def _step_in(
        self, requests: Sequence[Request], table: Table, tablets: Collection[Tablet], now_s: float
    ) -> set[tuple[TabletId, str]]:
        """Take one step in each tablet; return the (tablet, request) pairs with work left."""
        waiting = self._waiting.setdefault(table.id, set())
        waiting.difference_update(tablet.id for tablet in tablets if not tablet.waiting)
        waiting.update(tablet.id for tablet in tablets if tablet.waiting)
        gate = asyncio.Semaphore(STEPS_AT_ONCE)
        unsettled: set[tuple[TabletId, str]] = set()

        async def step(tablet: Tablet) -> None:
            turn = requests_in_turn(requests, tablet)
            for request in requests:
                if request not in turn:
                    if meets_tablet(request, tablet.bounds):
                        unsettled.add((tablet.id, request.id))
                    continue
                async with gate:
                    stepped = await self._steps.take(request, table, tablet, now_s)
                if not stepped.settled:
                    unsettled.add((tablet.id, request.id))
                if stepped.look_again_s is not None:
                    self._look_later(table.id, stepped.look_again_s)

        await asyncio.gather(*(step(tablet) for tablet in tablets))
        return unsettled

    async def _move_on(self, requests: Iterable[Request], table: Table, now_s: float) -> None:
        """Change the state of requests that have no work left in any tablet."""
        for request in requests:
            change = next_state(request, 0)
            if change is not None and change.state.ended:
                await self._audit_rows(request, change.state, table, now_s)
            close = CloseRequest(table=request.table, request=request.id)
            outcome = await self._context.apply_or_unknown(close if change is None else change)
            if isinstance(outcome, Applied):
                self._context.log(
                    "request moves on",
                    request=request.id,
                    state="closed" if change is None else change.state.value,
                )
                self.table_changed(request.table)
                if change is not None and change.state.ended:
                    self.ended[change.state] += 1
                    self._note_end(request, change.state, table)
            elif isinstance(outcome, Unknown):
                self._look_later(request.table, RETRY_S)

    def _note_end(self, request: Request, state: RequestState, table: Table) -> None:
        if request.automatic:
            return
        before = self.request_ends.get((table.id, state))
        ends = RequestEnds(
            table=table.name,
            state=state.value,
            count=1 if before is None else before.count + 1,
            request=request.id,
            cause=redacted(request.cause[:CAUSE_CHARS_MAX]),
        )
        self.request_ends.put((table.id, state), ends)

    async def _audit_rows(
        self, request: Request, state: RequestState, table: Table, now_s: float
    ) -> None:
        """Record in the audit how many rows a request has deleted and changed.

        The entry is written before the last change of state. If the coordinator dies in between,
        the entry is written twice under the same id, and the last one counts.
        """
        if request.transform.kind is TransformKind.NONE:
            return
        store = self._context.store
        history = await store.history(table.id, HISTORY_MAX)
        records = [record for record in history if record.request == request.id]
        deleted = sum(max(record.rows_deleted, record.transform_dropped) for record in records)
        changed = sum(record.rows_changed for record in records)
        entry = {
            "id": f"end-{request.id}",
            "at_s": round(now_s, 3),
            "caller": "coordinator",
            "action": f"compaction request ended: {state.value}",
            "table": table.name,
            "outcome": "done",
            "details": f"request={request.id} deleted_rows={deleted} changed_rows={changed}",
        }
        line = json.dumps(entry, separators=(",", ":")).encode()
        await store.note_audit([line], AUDITED_DELETES_MAX, "deletes")

    def _count_soon(self, table: str) -> None:
        """Schedule a count of the remaining tablets, at a limited rate."""
        loop = asyncio.get_running_loop()
        self._look_later(table, max(0.0, self._rests_until_s.get(table, 0.0) - loop.time()))

    def _look_later(self, table: str, wait_s: float) -> None:
        pending = self._counts.get(table)
        if pending is not None and not pending.cancelled():
            return

        def look() -> None:
            self._counts.pop(table, None)
            self.table_changed(table)

        self._counts[table] = asyncio.get_running_loop().call_later(wait_s, look)


def _is_late(request: Request, now_s: float) -> bool:
    late = request.deadline_s is not None and request.deadline_s <= now_s
    return late and request.state is RequestState.ACTIVE


def _any_settled(
    requests: Iterable[Request],
    tablets: Iterable[Tablet],
    unsettled: Collection[tuple[TabletId, str]],
) -> bool:
    """Return whether any request has no work left in one of these tablets."""
    return any(
        (tablet.id, request.id) not in unsettled
        for tablet in tablets
        for request in requests
        if meets_tablet(request, tablet.bounds)
    )
