"""A bar that shows how far a request is. Imports nothing of the project but the wire."""

import importlib.util
from types import TracebackType
from typing import TYPE_CHECKING, Self

from neve.api_requests import Progress as Told
from neve.api_requests import Request

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressBar:
    """Shown on standard error between `with` and its end, if it is wanted and rich is there."""

    def __init__(self, title: str, *, shown: bool) -> None:
        self._title = title
        self._bar: Progress | None = None
        if shown and importlib.util.find_spec("rich") is not None:
            self._bar = _made()
            self._task = self._bar.add_task(title, total=1.0, told="asked for")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, request: Request) -> None:
        """Show how far a request is now."""
        if self._bar is not None:
            told = request.progress or Told()
            completed = 1.0 if request.state.startswith("done") else told.fraction
            self._bar.update(self._task, completed=completed, told=sentence(request))


def sentence(request: Request) -> str:
    """Return how far a request is, in a line: `3/8 tablets · 2 jobs run · 1 m 05 s left`."""
    told = request.progress
    if request.ended or told is None:
        return request.state + (f": {request.cause}" if request.cause else "")
    ended = told.done + told.cancelled
    parts = [f"{ended}/{told.tablets} tablets"]
    counts = {"wait": told.waiting, "selected": told.selected, "pending": told.pending}
    parts += [f"{count} {word}" for word, count in counts.items() if count]
    if told.running:
        parts.append("1 job runs" if told.running == 1 else f"{told.running} jobs run")
    if told.eta_s is not None:
        parts.append(f"{_duration(told.eta_s)} left")
    if request.state == "cancelling":
        parts.insert(0, "cancelling")
    return " · ".join(parts)


def _made() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[told]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True))


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
