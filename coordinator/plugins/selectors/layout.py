"""The selector `layout`: files of which some readers miss rows."""

from collections.abc import Mapping

from common.spi.selector import Chosen, SelectorParameters
from coordinator.plugins.selectors.options import FILES_MIN, check_names, chosen, files_min


class FaultyLayout:
    """Chooses files with the tag `layout=faulty`; a rewrite puts their column chunks in order.

    A file is tagged when it is added, and by `neve fsck --repair` if it was added before.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse wrong options.

        Raises:
            RequestError: An option is unknown or wrong.
        """
        check_names("layout", options, {FILES_MIN})
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the tagged files."""
        found = [file for file in parameters.files if file.has_faulty_layout]
        return chosen(found, parameters.options, "laid out so that some readers miss rows")
