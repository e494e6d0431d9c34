"""Settings of a described table: those every planner reads, and options of one planner."""

from collections.abc import Mapping
from dataclasses import fields, replace

from common.model.table import TableSettings
from common.units import parse_duration_s, parse_size_bytes
from neve.offline.checks import a_count, a_number, a_switch, a_text, unknown

_DEFAULTS = TableSettings()
NAMES = tuple(entry.name for entry in fields(TableSettings))
_SHORT = {
    name.removesuffix(unit): name
    for name in NAMES
    for unit in ("_bytes", "_s")
    if name.endswith(unit)
}
"""`ttl` for `ttl_s`: the unit in the name is ours, a value may bring its own."""


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
        name = _SHORT.get(given, given)
        if name in NAMES:
            values[name] = _setting(name, value)
        elif option_names is None or name in option_names:
            options[name] = _option(value)
        else:
            raise unknown(f"setting {given!r}", given, {*NAMES, *option_names})
    return replace(_DEFAULTS, **values), options  # type: ignore[arg-type]  # read by the type of each


def _setting(name: str, value: object) -> object:
    """Return the value in the type of the setting's default."""
    where = f"setting {name}"
    default = getattr(_DEFAULTS, name)
    if name == "ttl_s" and value in {None, "none"}:
        return None
    if name.endswith("_bytes"):
        return parse_size_bytes(_as_number(value), where)
    if name.endswith("_s"):
        return parse_duration_s(_as_number(value), where)
    if isinstance(default, bool):
        return a_switch({"true": True, "false": False}.get(str(value).lower()), where)
    if isinstance(default, str):
        return a_text(value, where)
    return a_count(value, where) if isinstance(default, int) else a_number(value, where)


def _as_number(value: object) -> str | int:
    # What is neither is refused by the parser, in its own words.
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    return value  # type: ignore[return-value]  # see above


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
