"""The selector `all`: every file."""

from collections.abc import Mapping

from common.spi.selector import Chosen, SelectorParameters
from coordinator.plugins.selectors.options import FILES_MIN, check_names, chosen, files_min


class AllFiles:
    """Chooses every file of the tablet."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse wrong options.

        Raises:
            RequestError: An option is unknown or wrong.
        """
        check_names("all", options, {FILES_MIN})
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return every file."""
        return chosen(parameters.files, parameters.options, "there")
