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

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar

from common.errors import ConfigError, RequestError
from common.model.table import TableSettings
from common.units import parse_duration_s, parse_size_bytes, parse_switch

_BOUNDS = "neve.bounds"
_UNITS = ("_bytes", "_s")
_OFF = ("none", "off", "")


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


OptionsType = TypeVar("OptionsType", bound=_Dataclass)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """The bounds of an option."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    one_of: tuple[str, ...] = ()
    setting: str = ""
    """The table setting that is its default."""

    def expected(self) -> str:
        """Return the allowed values, for a message."""
        if self.one_of:
            return "one of " + ", ".join(self.one_of)
        limits = [
            f"{word} {bound:g}"
            for word, bound in (
                ("at least", self.at_least),
                ("above", self.above),
                ("at most", self.at_most),
                ("below", self.below),
            )
            if bound is not None
        ]
        return " and ".join(limits)

    def allow(self, value: Any) -> bool:
        """Return whether a value of the right type is within the bounds."""
        if self.one_of:
            return value in self.one_of
        if value is None or isinstance(value, bool | str):
            return True
        # Every comparison must hold, so that NaN is refused.
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


def option(
    default: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
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
    bounds = _Bounds(at_least=at_least, above=above, at_most=at_most, below=below, one_of=one_of)
    return field(default=default, metadata={_BOUNDS: bounds})


def of_table(setting: str, *, at_least: float | None = None, above: float | None = None) -> Any:
    """Return the dataclass field of an option whose default is a setting of the table.

    Args:
        setting: Its name in `TableSettings`.
        at_least: Inclusive lower bound.
        above: Exclusive lower bound.
    """
    bounds = _Bounds(at_least=at_least, above=above, setting=setting)
    return field(default=getattr(TableSettings(), setting), metadata={_BOUNDS: bounds})


def option_names(kind: type[OptionsType]) -> frozenset[str]:
    """Return all names of the options, including names without their unit."""
    names = [each.name for each in fields(kind)]
    short = [name.removesuffix(unit) for name in names for unit in _UNITS if name.endswith(unit)]
    return frozenset([*names, *short])


def settings_of(kind: type[OptionsType]) -> frozenset[str]:
    """Return the table settings that are defaults of options."""
    settings = (_bounds(each).setting for each in fields(kind))
    return frozenset(filter(None, settings))


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
    entries = {each.name: each for each in fields(kind)}
    of_settings = dict(defaults or ())
    written: dict[str, object] = {}
    for name, value in given.items():
        full = _full_name(name, entries)
        if full is None:
            listed = ", ".join(sorted(entries))
            raise ConfigError(f"{plugin}: unknown option {name!r}; expected one of {listed}")
        if full in written:
            raise ConfigError(f"{plugin}: option {full} is given twice; give it once")
        written[full] = value
    values = {
        name: _value(each, plugin, written[name])
        if name in written
        else _default(each, of_settings)
        for name, each in entries.items()
    }
    for name, value in values.items():
        bounds = _bounds(entries[name])
        if not bounds.allow(value):
            raise _refused(plugin, name, written.get(name, value), bounds.expected())
    return kind(**values)


def _full_name(name: str, entries: Mapping[str, Field[Any]]) -> str | None:
    return next((each for each in (name, *(name + u for u in _UNITS)) if each in entries), None)


def _bounds(each: Field[Any]) -> _Bounds:
    bounds = each.metadata.get(_BOUNDS)
    return bounds if isinstance(bounds, _Bounds) else _Bounds()


def _default(each: Field[Any], of_settings: Mapping[str, object]) -> Any:
    setting = _bounds(each).setting
    if setting in of_settings:
        return of_settings[setting]
    assert each.default is not MISSING, each.name
    return each.default


def _value(each: Field[Any], plugin: str, written: object) -> Any:
    """Return a value in the type of the option's default."""
    name, default = each.name, each.default
    if default is None and (written is None or written in _OFF):
        return None
    if name.endswith(_UNITS):
        return _with_unit(name, plugin, written)
    if isinstance(default, bool):
        return _switch(name, plugin, written)
    if isinstance(default, str):
        if not isinstance(written, str):
            raise _refused(plugin, name, written, "a text")
        return written
    return _number(name, plugin, written, whole=isinstance(default, int))


def _with_unit(name: str, plugin: str, written: object) -> int | float:
    # Values from a table's settings are texts.
    value: Any = written.strip() if isinstance(written, str) else written
    try:
        if name.endswith("_bytes"):
            return parse_size_bytes(value, f"{plugin}: option {name}")
        return parse_duration_s(value, f"{plugin}: option {name}")
    except RequestError as error:
        raise ConfigError(str(error)) from error


def _switch(name: str, plugin: str, written: object) -> bool:
    value = parse_switch(written)
    if value is None:
        raise _refused(plugin, name, written, "true or false")
    return value


def _number(name: str, plugin: str, written: object, *, whole: bool) -> int | float:
    wanted = "a whole number" if whole else "a number"
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        raise _refused(plugin, name, written, wanted)
    try:
        number = float(written)
    except (ValueError, OverflowError) as error:
        raise _refused(plugin, name, written, wanted) from error
    if not abs(number) < float("inf") or (whole and number != int(number)):
        raise _refused(plugin, name, written, wanted)
    return int(number) if whole else number


def _refused(plugin: str, name: str, value: object, expected: str) -> ConfigError:
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    return ConfigError(f"{plugin}: option {name} is {shown}, expected {expected}")
