"""Options of a plug-in as a dataclass, with names, units, bounds and defaults.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        '''Options of the planner.'''

        min_threshold: int = option(4, at_least=2)
        min_file_bytes: int = option(50 * 1024**2)
        max_files: int = of_table("max_files", at_least=2)

Options come from a settings file with types, and from a table's settings as texts. A name that ends
with `_bytes` or `_s` is a size or a duration. Its value may have a unit (`50MB`, `7d`), and the
suffix may be left out of the name. The default of `of_table` is the table setting of that name.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar

from common.documents import INFINITY, UNITS, FieldRule, kind_of, unknown
from common.errors import ConfigError, RequestError
from common.model.table import TableSettings
from common.units import shown

_RULE, _SETTING = "neve.rule", "neve.setting"


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


OptionsType = TypeVar("OptionsType", bound=_Dataclass)


def option(
    default: Any,
    *,
    at_least: float = -INFINITY,
    above: float | None = None,
    at_most: float = INFINITY,
    below: float | None = None,
    one_of: tuple[str, ...] = (),
) -> Any:
    """Return the dataclass field of an option.

    Args:
        default: Default value; it also determines the type.
        at_least: Inclusive lower bound.
        above: Exclusive lower bound.
        at_most: Inclusive upper bound.
        below: Exclusive upper bound.
        one_of: All allowed texts.
    """
    rule = FieldRule(least=at_least, above=above, most=at_most, below=below, choices=one_of)
    return field(default=default, metadata={_RULE: rule})


def of_table(
    setting: str,
    *,
    at_least: float = -INFINITY,
    above: float | None = None,
    one_of: tuple[str, ...] = (),
) -> Any:
    """Return the dataclass field of an option whose default is a setting of the table.

    Args:
        setting: Its name in `TableSettings`.
        at_least: Inclusive lower bound.
        above: Exclusive lower bound.
        one_of: All allowed texts.
    """
    rule = FieldRule(least=at_least, above=above, choices=one_of)
    return field(
        default=getattr(TableSettings(), setting), metadata={_RULE: rule, _SETTING: setting}
    )


def option_names(kind: type[OptionsType]) -> frozenset[str]:
    """Return all names of the options, including names without their unit."""
    names = [field.name for field in fields(kind)]
    short = [name.removesuffix(unit) for name in names for unit in UNITS if name.endswith(unit)]
    return frozenset([*names, *short])


def settings_of(kind: type[OptionsType]) -> frozenset[str]:
    """Return the table settings that are defaults of options."""
    return frozenset(
        entry.metadata[_SETTING] for entry in fields(kind) if _SETTING in entry.metadata
    )


def read_options(
    kind: type[OptionsType],
    plugin: str,
    given: Mapping[str, object],
    settings: TableSettings | None = None,
) -> OptionsType:
    """Return options with their types, each within its bounds.

    Args:
        kind: The dataclass.
        plugin: Name for messages: `planner size-tiered`.
        given: Option → value, from a file or a table.
        settings: Settings of the table; None: `of_table` uses the defaults of tables.

    Raises:
        ConfigError: Names the option, its value and what is expected.
    """
    # Called for every tablet of a scan, nearly always with the options of the previous call. Types
    # are part of the cache key, because a number and a switch may be equal.
    given_items = tuple((name, type(value), value) for name, value in given.items())
    defaults = None
    if settings is not None:
        defaults = tuple([(name, getattr(settings, name)) for name in _table_settings(kind)])
    if not _is_frozen(kind):
        return _fresh_options(kind, plugin, given, defaults)
    try:
        options: OptionsType = _known_options(kind, plugin, given_items, defaults)
    except TypeError:  # A list or another unhashable value: not cached.
        return _fresh_options(kind, plugin, given, defaults)
    return options


def _is_frozen(kind: Any) -> bool:
    """Return whether options are immutable, so that callers may share them."""
    return bool(kind.__dataclass_params__.frozen)


@lru_cache(maxsize=64)
def _table_settings(kind: type[OptionsType]) -> tuple[str, ...]:
    return tuple(sorted(settings_of(kind)))


@lru_cache(maxsize=1024)
def _known_options(
    kind: type[OptionsType],
    plugin: str,
    given_items: tuple[tuple[str, type, object], ...],
    defaults: tuple[tuple[str, object], ...] | None,
) -> OptionsType:
    return _fresh_options(kind, plugin, {name: value for name, _, value in given_items}, defaults)


def _fresh_options(
    kind: type[OptionsType],
    plugin: str,
    given: Mapping[str, object],
    defaults: Sequence[tuple[str, object]] | None,
) -> OptionsType:
    entries = {field.name: field for field in fields(kind)}
    of_settings = dict(defaults or ())
    written: dict[str, object] = {}
    for name, value in given.items():
        full = _full_name(name, entries)
        if full is None:
            raise ConfigError(str(unknown(f"{plugin}: option {shown(name)}", name, entries)))
        if full in written:
            raise ConfigError(f"{plugin}: option {full} is given twice; give it once")
        written[full] = value
    return kind(**{
        name: _value(entry, f"{plugin}: option {name}", written[name])
        if name in written
        else _default(entry, f"{plugin}: option {name}", of_settings)
        for name, entry in entries.items()
    })  # fmt: skip


def _full_name(name: str, entries: Mapping[str, Field[Any]]) -> str | None:
    return next((full for full in (name, *(name + u for u in UNITS)) if full in entries), None)


def _default(entry: Field[Any], where: str, of_settings: Mapping[str, object]) -> Any:
    if (setting := entry.metadata.get(_SETTING, "")) not in of_settings:
        assert entry.default is not MISSING, entry.name
        return entry.default
    return _value(entry, where, of_settings[setting])


def _value(entry: Field[Any], where: str, written: object) -> Any:
    """Return a value in the type of the option's default, within its bounds."""
    # Values from a table's settings are texts.
    stripped = written.strip() if isinstance(written, str) else written
    rule: FieldRule = entry.metadata.get(_RULE, FieldRule())
    rule = replace(rule, kind=kind_of(entry.name, entry.default), optional=entry.default is None)
    try:
        return rule.read(stripped, where)
    except RequestError as error:
        raise ConfigError(str(error)) from error


# ----------------------------------------------------------------------------- Rules in one option


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
_CONDITION = re.compile(r"(\w+) ?(<=|>=|<|>|=) ?(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRule:
    """An outcome under conditions, such as `compact 0.9 if files >= 20 and bytes < 1GB`."""

    text: str
    outcome: str
    number: float | None
    """Number after the outcome; None: there is none."""
    conditions: tuple[tuple[str, str, Any], ...]
    """Measure, comparison and value of each condition."""

    def applies(self, measured: Mapping[str, Any]) -> bool:
        """Return whether all conditions hold for the values of the measures."""
        return all(
            _COMPARISONS[comparison](measured[measure], value)
            for measure, comparison, value in self.conditions
        )


def read_rules(
    where: str,
    written: str,
    outcomes: Mapping[str, FieldRule | None],
    measures: Mapping[str, FieldRule],
) -> tuple[OptionRule, ...]:
    """Parse rules such as `stable if files <= 3; compact 0.9 if bytes < 1GB and overlap = no`.

    Args:
        where: The option, for error messages.
        written: The rules, separated by semicolons.
        outcomes: The allowed number after each outcome; None: no number.
        measures: The allowed values of each measure.

    Raises:
        ConfigError: Names the rule and what is expected.
    """
    rules: list[OptionRule] = []
    for text in (" ".join(part.split()) for part in written.split(";")):
        if text:
            try:
                rules.append(_option_rule(f"{where}: {shown(text)}", text, outcomes, measures))
            except RequestError as error:
                raise ConfigError(str(error)) from error
    return tuple(rules)


def _option_rule(
    where: str,
    text: str,
    outcomes: Mapping[str, FieldRule | None],
    measures: Mapping[str, FieldRule],
) -> OptionRule:
    head, _, conditions = text.partition(" if ")
    outcome, _, number_text = head.partition(" ")
    if outcome not in outcomes:
        raise unknown(f"{where}: outcome {shown(outcome)}", outcome, outcomes)
    number_rule = outcomes[outcome]
    if number_text and number_rule is None:
        raise RequestError(f"{where} has {shown(number_text)}, expected `{outcome} if …`")
    return OptionRule(
        text=text,
        outcome=outcome,
        number=number_rule.read(number_text, where) if number_text and number_rule else None,
        conditions=tuple(_condition(where, part, measures) for part in conditions.split(" and ")),
    )


def _condition(where: str, text: str, measures: Mapping[str, FieldRule]) -> tuple[str, str, Any]:
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise RequestError(
            f"{where} has the condition {shown(text)}, expected a measure, a comparison (<, <=, =, "
            ">=, >) and a value: stable if files <= 3 and overlap = no"
        )
    measure, comparison, value = match.groups()
    if measure not in measures:
        raise unknown(f"{where}: measure {shown(measure)}", measure, measures)
    return (measure, comparison, measures[measure].read(value, f"{where}: {measure}"))
