"""The selector `name`: files whose name or path fits a pattern (`*`, `?`, `[a-z]`)."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from common.model.file import DataFile
from common.spi.selector import Chosen, SelectorParameters
from coordinator.plugins.selectors.options import (
    FILES_MIN,
    check_given,
    check_names,
    chosen,
    files_min,
)

NAME, PATH = "pattern", "path"


class ByName:
    """Chooses by `pattern` (of the name behind the last slash), `path` (of all), or both."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse wrong options.

        Raises:
            RequestError: No pattern, or an option is unknown or wrong.
        """
        check_names("name", options, {NAME, PATH, FILES_MIN})
        check_given("name", options, {NAME, PATH})
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files that fit every pattern given."""
        name, path = parameters.options.get(NAME, "*"), parameters.options.get(PATH, "*")

        def fits(file: DataFile) -> bool:
            return fnmatchcase(file.path.rpartition("/")[2], name) and fnmatchcase(file.path, path)

        found = [file for file in parameters.files if fits(file)]
        return chosen(found, parameters.options, f"named {path if name == '*' else name}")
