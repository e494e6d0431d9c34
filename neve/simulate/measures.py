"""What tablets owe and what of them is alive, measured anew only where something has changed."""

from collections.abc import Mapping

from common.errors import PluginError
from common.model.tablet import TabletId
from common.spi.tracker import WorkUnderWay
from neve.simulate.tablet import SimulatedTablet

Progress = Mapping[TabletId, Mapping[str, int]]
"""Tablet → path of an input → bytes of it that are rewritten."""


class TabletMeasures:
    """Backlog and live bytes of all tablets, as of the last measurement."""

    def __init__(self) -> None:
        self._changed: dict[SimulatedTablet, None] = {}
        self._backlogs: dict[SimulatedTablet, float] = {}
        self._live: dict[SimulatedTablet, float] = {}

    @property
    def backlog_bytes(self) -> float:
        """Bytes that are still to be rewritten."""
        return sum(self._backlogs.values())

    @property
    def live_bytes(self) -> float:
        """Bytes that would be left if each tablet were merged into one file."""
        return sum(self._live.values())

    def note_change(self, tablet: SimulatedTablet) -> None:
        """Have a tablet measured the next time."""
        self._changed[tablet] = None

    def measure(self, progress: Progress, now_s: float) -> None:
        """Measure the tablets that have changed, and those in which time or jobs go on.

        Raises:
            PluginError: A tracker misbehaves.
        """
        changed, self._changed = self._changed, {}
        for tablet in changed:
            self._live[tablet] = tablet.live_bytes(now_s)
            backlog = _backlog_bytes(tablet, progress.get(tablet.id, {}), now_s)
            if backlog:
                self._backlogs[tablet] = backlog
            else:
                self._backlogs.pop(tablet, None)
            if tablet.running or tablet.rule.settings.ttl_s is not None:
                self._changed[tablet] = None


def _backlog_bytes(tablet: SimulatedTablet, read_bytes: Mapping[str, int], now_s: float) -> float:
    rule = tablet.rule
    if rule.tracker is None:
        under_way = sum(job.size_bytes for job in tablet.running.values())
        return tablet.planned_bytes + under_way - sum(read_bytes.values())
    name, plugin = rule.tracker
    try:
        known = {key: value for key, value in rule.options.items() if key in plugin.option_names}
        tracker = plugin.tracker(rule.settings, known)
        for file in tablet.files.values():
            tracker.add(file)
        return tracker.backlog_bytes(WorkUnderWay(read_bytes=read_bytes, now_s=now_s))
    except Exception as error:
        raise PluginError(f"tracker {name}: {type(error).__name__}: {error}") from error
