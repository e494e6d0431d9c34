"""The selector `expired`: files of which so large a part of the rows has expired."""

from collections.abc import Mapping

from common.model.file import DataFile
from common.spi.selector import Chosen, SelectorParameters
from coordinator.plugins.selectors.options import (
    EDGE_S,
    FILES_MIN,
    check_names,
    chosen,
    files_min,
    share,
)

RATIO = "ratio"
RATIO_DEFAULT = 0.5


class ExpiredRatio:
    """Chooses files whose expired part, estimated from their times, reaches `ratio` (0.5).

    Rows are taken to be spread evenly between the first and the last time of a file.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse wrong options.

        Raises:
            RequestError: An option is unknown or wrong.
        """
        check_names("expired", options, {RATIO, FILES_MIN})
        share(options, RATIO, RATIO_DEFAULT)
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files that reach the ratio; none without a TTL."""
        ttl_s = parameters.table.settings.ttl_s
        if ttl_s is None:
            return Chosen(reason=f"table {parameters.table.name} has no ttl, nothing expires")
        ratio = share(parameters.options, RATIO, RATIO_DEFAULT)
        before_s = parameters.now_s - ttl_s
        found = [file for file in parameters.files if expired_part(file, before_s) >= ratio]
        reaches = ((file.path, reaches_s(file, ttl_s, ratio)) for file in parameters.files)
        times_s = {path: time_s for path, time_s in reaches if time_s is not None}
        return chosen(found, parameters.options, f"expired by {ratio:.0%} or more", times_s)


def reaches_s(file: DataFile, ttl_s: float, ratio: float) -> float | None:
    """Return when so large a part of a file's rows will have expired; None: not known."""
    first_s, last_s = file.time_min_s, file.time_max_s
    if first_s is None or last_s is None:
        return None
    return ttl_s + first_s + ratio * (last_s - first_s) + EDGE_S


def expired_part(file: DataFile, before_s: float) -> float:
    """Return which part of a file's rows is older than a time: 0 where times are not known."""
    first_s, last_s = file.time_min_s, file.time_max_s
    if first_s is None or last_s is None or before_s <= first_s:
        return 0.0
    if before_s > last_s:
        return 1.0
    return (before_s - first_s) / (last_s - first_s)
