"""The selector `size`: files below or above a size."""

from collections.abc import Mapping

from common.spi.selector import Chosen, SelectorParameters
from common.units import format_bytes, parse_size_bytes
from coordinator.plugins.selectors.options import (
    FILES_MIN,
    check_given,
    check_names,
    chosen,
    files_min,
)

SMALLER, LARGER = "smaller_than", "larger_than"


class BySize:
    """Chooses files `smaller_than` and `larger_than` sizes such as `32MB`."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse wrong options.

        Raises:
            RequestError: No size, or an option is unknown or wrong.
        """
        check_names("size", options, {SMALLER, LARGER, FILES_MIN})
        check_given("size", options, {SMALLER, LARGER})
        files_min(options)
        _bounds(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files between the two sizes; neither is included."""
        larger, smaller = _bounds(parameters.options)
        found = [
            file
            for file in parameters.files
            if (larger is None or file.size_bytes > larger)
            and (smaller is None or file.size_bytes < smaller)
        ]
        says = [] if larger is None else [f"larger than {format_bytes(larger)}"]
        says += [] if smaller is None else [f"smaller than {format_bytes(smaller)}"]
        return chosen(found, parameters.options, " and ".join(says))


def _bounds(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    larger, smaller = (
        parse_size_bytes(options[name], f"option {name}") if name in options else None
        for name in (LARGER, SMALLER)
    )
    return larger, smaller
