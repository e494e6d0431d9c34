"""The selector `age`: files added before or after some time ago."""

from collections.abc import Mapping

from common.spi.selector import Chosen, SelectorParameters
from common.units import parse_duration_s
from coordinator.plugins.selectors.options import (
    EDGE_S,
    FILES_MIN,
    check_given,
    check_names,
    chosen,
    files_min,
)

OLDER, YOUNGER = "older_than", "younger_than"


class ByAge:
    """Chooses files `older_than` and `younger_than` durations such as `7d`."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse wrong options.

        Raises:
            RequestError: No duration, or an option is unknown or wrong.
        """
        check_names("age", options, {OLDER, YOUNGER, FILES_MIN})
        check_given("age", options, {OLDER, YOUNGER})
        files_min(options)
        _bounds(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files between the two ages; neither is included."""
        older_s, younger_s = _bounds(parameters.options)
        now_s = parameters.now_s
        found = [
            file
            for file in parameters.files
            if (older_s is None or now_s - file.added_at_s > older_s)
            and (younger_s is None or now_s - file.added_at_s < younger_s)
        ]
        names = {"older than": OLDER, "younger than": YOUNGER}
        given = parameters.options
        says = [f"{word} {given[name]}" for word, name in names.items() if name in given]
        return chosen(found, given, " and ".join(says), _times_s(parameters, older_s, younger_s))


def _times_s(
    parameters: SelectorParameters, older_s: float | None, younger_s: float | None
) -> dict[str, float]:
    """Return when each file is old enough; a file is never too old at first and young later."""
    if older_s is None or (younger_s is not None and younger_s <= older_s):
        return {}
    return {file.path: file.added_at_s + older_s + EDGE_S for file in parameters.files}


def _bounds(options: Mapping[str, str]) -> tuple[float | None, float | None]:
    older_s, younger_s = (
        parse_duration_s(options[name], f"option {name}") if name in options else None
        for name in (OLDER, YOUNGER)
    )
    return older_s, younger_s
