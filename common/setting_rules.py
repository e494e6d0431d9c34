"""The kinds and rules of settings, and the refusal of values that break them.

Pure. `setting` or `size_setting` declares every field of `common.settings`. Both the parser of
texts and the constructors apply the field's rule, so a value that breaks its rule cannot be
created.
"""

from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from typing import Any

from common.errors import ConfigError, RequestError
from common.units import CHARS_MAX, format_bytes, parse_size_bytes


class SettingKind(StrEnum):
    """The type of a setting's value; `common.config` parses texts accordingly."""

    TEXT = "text"
    TEXTS = "texts"
    """A list of texts; in a single text, commas separate them."""
    COUNT = "count"
    NUMBER = "number"
    SIZE = "size"
    """Bytes, as a whole number."""
    DURATION = "duration"
    """Seconds."""
    MEMORY = "memory"
    """A size that is kept as the text that the operator wrote."""
    FLAG = "flag"
    """True or false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The allowed values of a setting."""

    kind: SettingKind
    least: float = 0
    most: float = float("inf")
    off: bool = False
    """Whether 0 is allowed as well, with the meaning `none`."""
    choices: tuple[str, ...] = ()

    def problem(self, value: Any) -> str | None:
        """Return what is expected instead of a value, or None if the value is allowed."""
        if self.kind is SettingKind.TEXT:
            return self._text_problem(value)
        if self.kind in (SettingKind.TEXTS, SettingKind.FLAG):
            return None
        number = parse_size_bytes(value) if self.kind is SettingKind.MEMORY else value
        if self.least <= number <= self.most or (self.off and number == 0):
            return None
        return f"expected {self._range()}"

    def _text_problem(self, value: Any) -> str | None:
        if self.choices and value not in self.choices:
            return f"expected one of {', '.join(self.choices)}"
        return None

    def _range(self) -> str:
        range_text = f"at least {self._shown(self.least)}"
        if self.most < float("inf"):
            range_text = f"{self._shown(self.least)} to {self._shown(self.most)}"
        return f"0 (none) or {range_text}" if self.off else range_text

    def _shown(self, number: float) -> str:
        if self.kind in (SettingKind.SIZE, SettingKind.MEMORY):
            return format_bytes(number)
        return f"{number:g} s" if self.kind is SettingKind.DURATION else f"{number:g}"


class SettingError(ConfigError):
    """A setting, or a combination, that is not allowed; `names` has the full names."""

    def __init__(self, message: str, *names: str) -> None:
        super().__init__(message)
        self.names = names


def setting(
    default: Any,
    doc: str,
    *,
    kind: SettingKind | None = None,
    least: float = 0,
    most: float = float("inf"),
    off: bool = False,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    live: str = "",
) -> Any:
    """Declare a setting: its default, its purpose and its allowed values.

    Args:
        default: Value if no source gives one; its type determines the kind.
        doc: One or two sentences for the reference page.
        kind: The kind, where the default's type does not determine it.
        least: Smallest value.
        most: Largest value.
        off: Whether 0 is allowed although it is below the smallest value.
        choices: Allowed texts; empty: any text.
        secret: Whether the value is never shown.
        live: The verb that changes the setting in the running service, if there is one.
    """
    rule = Rule(kind=kind or _kind_of(default), least=least, most=most, off=off, choices=choices)
    return field(
        default=default, metadata={"doc": doc, "secret": secret, "rule": rule, "live": live}
    )


def _kind_of(default: object) -> SettingKind:
    if isinstance(default, float):
        return SettingKind.DURATION
    if isinstance(default, tuple):
        return SettingKind.TEXTS
    if isinstance(default, bool):
        return SettingKind.FLAG
    return SettingKind.COUNT if isinstance(default, int) else SettingKind.TEXT


def size_setting(default: int | str, doc: str, **more: Any) -> Any:
    """Declare a setting that is a size: a number of bytes, or a text that is kept unchanged.

    Args:
        default: Value if no source gives one.
        doc: One or two sentences for the reference page.
        more: As for `setting`.
    """
    kind = SettingKind.MEMORY if isinstance(default, str) else SettingKind.SIZE
    return setting(default, doc, kind=kind, **more)


def check_value(section: str, entry: "Field[Any]", value: object) -> None:
    """Refuse a value that breaks the rule of its setting.

    Args:
        section: Section of the setting.
        entry: The field that declares it.
        value: In the type of the setting; None: another setting applies.

    Raises:
        SettingError: Names the setting, the value and what is expected.
    """
    if value is None:
        return
    name = f"{section}.{entry.name}"
    rule: Rule = entry.metadata["rule"]
    try:
        problem = rule.problem(value)
    except RequestError as error:
        raise SettingError(f"setting {name}: {error}", name) from error
    if problem is not None:
        shown = "(a secret)" if entry.metadata["secret"] else shown_value(rule.kind, value)
        raise SettingError(f"setting {name} is {shown[:CHARS_MAX]}, {problem}", name)


def shown_value(kind: SettingKind, value: Any) -> str:
    """Return a value in readable form.

    Args:
        kind: Kind of the setting.
        value: In the setting's type.
    """
    if kind is SettingKind.SIZE:
        return format_bytes(value) if value % 1024 == 0 and value else f"{value} B"
    if kind is SettingKind.TEXTS:
        return ", ".join(value)
    if kind is SettingKind.FLAG:
        return "true" if value else "false"
    return f"{value:g} s" if kind is SettingKind.DURATION else str(value)


def check_section(section: str, values: Any) -> None:
    """Refuse the values of a section that break their rules.

    Args:
        section: Name of the section, for messages.
        values: The section.

    Raises:
        SettingError: Names the first such value.
    """
    for entry in fields(values):
        check_value(section, entry, getattr(values, entry.name))
