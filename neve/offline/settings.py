"""Settings of a described table: those every planner reads, and options of one planner."""

from collections.abc import Mapping
from dataclasses import replace

from common.model.table import TableSettings
from neve.setting_values import known_name, setting_value, unknown_name


def read_settings(
    written: Mapping[str, object], option_names: frozenset[str] | None
) -> tuple[TableSettings, dict[str, object]]:
    """Return the table's settings and the planner's own options.

    Args:
        written: Name → value, as the user wrote them.
        option_names: Names that the planner knows besides; None: it does not tell, and
            gets every name that no table has.

    Raises:
        RequestError: A name is unknown, or a value is not what the setting takes.
    """
    values: dict[str, object] = {}
    options: dict[str, object] = {}
    for given, value in written.items():
        name = known_name(given)
        if name is not None:
            values[name] = setting_value(name, value)
        elif option_names is None or given in option_names:
            options[given] = _option(value)
        else:
            raise unknown_name(given, option_names)
    return replace(TableSettings(), **values), options  # type: ignore[arg-type]  # read by the type of each


def _option(value: object) -> object:
    """Return an option; a number that came as text is a number."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
