"""The selector `schema`: files written with an older schema than others of the tablet."""

from collections.abc import Mapping

from common.spi.selector import Chosen, SelectorParameters
from coordinator.plugins.selectors.options import FILES_MIN, check_names, chosen, files_min


class SchemaDrift:
    """Chooses files whose schema is not the newest one among the files shown."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse wrong options.

        Raises:
            RequestError: An option is unknown or wrong.
        """
        check_names("schema", options, {FILES_MIN})
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files of older schemas."""
        newest = max((file.schema_id for file in parameters.files), default=0)
        found = [file for file in parameters.files if file.schema_id < newest]
        return chosen(found, parameters.options, f"of a schema older than {newest}")
