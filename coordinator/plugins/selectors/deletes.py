"""The selector `deletes`: all files of a tablet that has too many tombstones."""

from collections.abc import Mapping

from common.spi.selector import Chosen, SelectorParameters
from coordinator.plugins.selectors.options import check_names, share

THRESHOLD = "threshold"
THRESHOLD_DEFAULT = 0.25
SLACK_MIN_S = 300.0


class TooManyDeletes:
    """Chooses all or nothing: tombstones per other row must reach `threshold` (0.25).

    Accumulo's rule: tombstones / (rows - tombstones), of all files together. Tombstones
    that are too young to be dropped are merged, and chosen again when they are old enough.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse wrong options.

        Raises:
            RequestError: An option is unknown, or the threshold is not in (0, 1].
        """
        check_names("deletes", options, {THRESHOLD})
        share(options, THRESHOLD, THRESHOLD_DEFAULT)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return all files, or none."""
        threshold = share(parameters.options, THRESHOLD, THRESHOLD_DEFAULT)
        tombstones = sum(file.tombstones for file in parameters.files)
        others = sum(file.rows for file in parameters.files) - tombstones
        says = f"{tombstones} tombstones beside {others} other rows, threshold {threshold:g}"
        if not tombstones or tombstones < threshold * others:
            return Chosen(reason=says)
        paths = tuple(file.path for file in parameters.files)
        return Chosen(files=paths, reason=says, times_s=_times_s(parameters))


def _times_s(parameters: SelectorParameters) -> dict[str, float]:
    """Return when tombstones may be dropped for sure, so that merging once more is worth it.

    That is when their version was reached one retention ago. Marks of reached versions
    are made a sixth of a retention apart, and by scans: hence the slack.
    """
    retention_s = parameters.table.settings.tombstone_retention_s
    wait_s = retention_s + max(retention_s / 4, SLACK_MIN_S)
    return {
        file.path: file.tombstones_since_s + wait_s
        for file in parameters.files
        if file.tombstones and file.tombstones_since_s is not None
    }
