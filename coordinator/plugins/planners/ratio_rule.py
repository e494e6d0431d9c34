"""The settings of the ratio planner, checked once per plan."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import ConfigError
from common.model.table import TableSettings

NAMES = ("ratio", "max_files", "lowest_ratio", "file_limit")


@dataclass(frozen=True, slots=True)
class RatioRule:
    """Numbers that the planner goes by. Refuses what would make it run in circles."""

    ratio: float
    max_files: int
    lowest_ratio: float
    file_limit: int

    def __post_init__(self) -> None:
        """Refuse values that no plan can be made by.

        Raises:
            ConfigError: Names the setting, its value and what is expected.
        """
        # `not >=` rather than `<`: it also catches a ratio that is not a number.
        if not self.ratio >= 1:
            raise _refused("ratio", self.ratio, "at least 1")
        if self.max_files < 2:
            raise _refused("max_files", self.max_files, "at least 2 (one file is no merge)")
        if not self.lowest_ratio >= 1:
            raise _refused("lowest_ratio", self.lowest_ratio, "at least 1")
        if self.file_limit < 0:
            raise _refused("file_limit", self.file_limit, "at least 0 (0: no limit known)")


def rule_of(settings: TableSettings, options: Mapping[str, object]) -> RatioRule:
    """Return the rule for a table; a service's options win over the table's settings.

    Raises:
        ConfigError: An option is unknown or a value is refused.
    """
    if not options:
        return RatioRule(
            settings.ratio, settings.max_files, settings.lowest_ratio, settings.file_limit
        )
    if unknown := sorted(options.keys() - set(NAMES)):
        known = ", ".join(NAMES)
        raise ConfigError(f"planner ratio: unknown option {unknown[0]!r}; expected one of {known}")
    chosen = {name: options.get(name, getattr(settings, name)) for name in NAMES}
    return RatioRule(
        ratio=_number("ratio", chosen["ratio"]),
        max_files=_whole("max_files", chosen["max_files"]),
        lowest_ratio=_number("lowest_ratio", chosen["lowest_ratio"]),
        file_limit=_whole("file_limit", chosen["file_limit"]),
    )


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(name, value, "a number")
    return value


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refused(name, value, "a whole number")
    return value


def _refused(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"planner ratio: {name} is {value!r}, expected {expected}")
