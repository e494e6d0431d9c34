"""Asks selectors, in threads: a slow one holds up its own request and nobody else."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from common.errors import CompactionError, PluginError
from common.model.file import DataFile
from common.model.request import SelectorSpec
from common.model.table import Table
from common.model.tablet import TabletId
from common.plugins import require_options
from common.spi.selector import Chosen, Selector, SelectorParameters
from coordinator.registry import load_selector

SELECTORS_AT_ONCE = 4
ANSWER_MAX_S = 60.0
"""Then the selector has failed, and so has its request."""


class Selectors:
    """The selectors that are installed, each call in a thread."""

    def __init__(
        self,
        load: Callable[[str], Selector] = load_selector,
        answer_max_s: float = ANSWER_MAX_S,
    ) -> None:
        """Load selectors when they are asked for."""
        self._load = load
        self._answer_max_s = answer_max_s
        self._threads = self._fresh_threads()
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
        """Return what a selector chooses among some files of a tablet.

        Raises:
            CompactionError: It is not installed, refuses its options, fails, is too slow,
                or chooses what it was not shown.
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
        call = asyncio.get_running_loop().run_in_executor(
            self._threads, self._ask, spec, parameters
        )
        try:
            async with asyncio.timeout(self._answer_max_s):
                chosen = await call
        except TimeoutError:
            # Its thread is lost until it returns; the others shall not wait for it.
            self._threads.shutdown(wait=False, cancel_futures=False)
            self._threads = self._fresh_threads()
            message = f"selector {spec.name} has not answered for {self._answer_max_s:g} s"
            raise PluginError(message) from None
        return _checked(spec.name, chosen, files)

    def _ask(self, spec: SelectorSpec, parameters: SelectorParameters) -> object:
        try:
            selector = self._load(spec.name)
            require_options("selector", spec.name, selector, spec.options)
            return selector.select(parameters)
        except CompactionError:
            raise
        except Exception as error:
            message = f"selector {spec.name}: {type(error).__name__}: {error}"
            raise PluginError(message) from error

    def _fresh_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(SELECTORS_AT_ONCE, thread_name_prefix="selector")


def _checked(name: str, chosen: object, files: tuple[DataFile, ...]) -> Chosen:
    if not isinstance(chosen, Chosen):
        message = f"selector {name} returned {type(chosen).__name__}, expected Chosen"
        raise PluginError(message)
    shown = {file.path for file in files}
    if strangers := [path for path in chosen.files if path not in shown]:
        message = f"selector {name} chose {strangers[0]!r}, which it was not shown"
        raise PluginError(message)
    return replace(chosen, files=tuple(sorted(set(chosen.files))))
