"""Calls selectors in threads, so that a slow selector delays only its own request.

A table may have its own selector. The scanner reports every tablet that it reads. If the files or
the selector have changed since the last call, the selector is called, and its answer becomes a
request. A failed call is retried when the tablet changes or is replanned; nothing waits for it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event

from common.errors import CompactionError, PluginError
from common.metadata.changes import Applied, SubmitRequest, WriteAnalysis
from common.model.file import DataFile
from common.model.request import SelectorSpec
from common.model.table import Table
from common.model.tablet import Analysis, Tablet, TabletId
from common.parquet.file_inspection import read_summaries
from common.parquet.location import open_location
from common.plugins import load_selector, require_options, summary_names
from common.spi.selector import Chosen, Selector, SelectorParameters
from coordinator.context import ShellContext
from coordinator.core.requests import (
    ask_again_at_s,
    automatic_request,
    closed_files,
    must_ask_selector,
    selector_hash,
    table_selector,
)

# ------------------------------------------------------------------------------- Calls of selectors


SELECTORS_AT_ONCE = 4
ANSWER_MAX_S = 60.0
"""Timeout of a call, after which the selector and its request have failed."""
UNENDED_MAX = 8
"""Maximum number of timed-out calls that still run, because Python cannot kill a thread. At this
number, no selector is called until one call has ended. Calls of built-in selectors always end:
their options are bounded, and the duration of a call depends on their length only."""


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
