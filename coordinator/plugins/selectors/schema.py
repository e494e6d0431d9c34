"""The selector `schema`: files that lack columns of the table, or have them in older forms."""

from collections.abc import Mapping

from common.spi.selector import Chosen, SelectorParameters
from coordinator.plugins.selectors.options import FILES_MIN, check_names, chosen, files_min


class SchemaDrift:
    """Chooses files whose schema is older than the table's."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse wrong options.

        Raises:
            RequestError: An option is unknown or wrong.
        """
        check_names("schema", options, {FILES_MIN})
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files of older schemas."""
        newest = parameters.table.schema_id
        found = [file for file in parameters.files if file.schema_id < newest]
        return chosen(found, parameters.options, f"of a schema older than {newest}")
