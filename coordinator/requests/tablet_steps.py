"""Takes one step of a request in one tablet: calls plug-ins, and applies the change.

A step that the store refuses is not retried: the refusal is due to a change of the tablet, which
schedules the tablet again. As with any release, compactors learn of cancelled jobs from the answer
to their next heartbeat.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from common.errors import CompactionError
from common.metadata.changes import (
    Applied,
    CancelHere,
    CancelRange,
    CompleteHere,
    FinishHere,
    MarkWaiting,
    Outcome,
    Refused,
    SelectFiles,
    Unknown,
)
from common.model.job import Job, Kind
from common.model.outcome import RefusalCode
from common.model.request import Request, key_range_of
from common.model.table import Table, TableState
from common.model.tablet import Tablet
from common.spi.selector import Chosen
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
    begin_cancel,
    facts_of,
    matching_files,
    next_step,
    shown_files,
)
from coordinator.ports import PlanTablet, Submit
from coordinator.requests.selector_calls import SelectorCalls

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
        try:
            chosen = await self._policies.selectors.choose(
                request.selector, table, tablet.id, shown, now_s
            )
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
