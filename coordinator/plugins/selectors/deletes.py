"""The selector `deletes`: all files of a tablet that has too many tombstones."""

from collections.abc import Mapping

from common.spi.selector import Chosen, SelectorParameters
from coordinator.plugins.selectors.options import check_names, share

THRESHOLD = "threshold"
THRESHOLD_DEFAULT = 0.25


class TooManyDeletes:
    """Chooses all or nothing: tombstones per other row must reach `threshold` (0.25).

    Accumulo's rule: tombstones / (rows - tombstones), of all files together.
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
        return Chosen(files=tuple(file.path for file in parameters.files), reason=says)
