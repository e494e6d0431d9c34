"""How settings are declared, and the refusal of values that break their rules.

Pure. `setting` or `size_setting` declares every field of `common.settings` with its `FieldRule`.
Both the parser of texts and the constructors apply the rule, so a value that breaks its rule cannot
be created.
"""

from dataclasses import Field, field, fields
from typing import Any

from common.documents import FieldKind, FieldRule
from common.errors import RequestError, SettingError

_KINDS = {
    bool: FieldKind.FLAG,
    int: FieldKind.COUNT,
    float: FieldKind.DURATION,
    tuple: FieldKind.TEXTS,
    str: FieldKind.TEXT,
}
"""Type of a setting's default → kind of the setting."""


def setting(
    default: Any,
    doc: str,
    *,
    kind: FieldKind | None = None,
    least: float = 0,
    live: str = "",
    **more: Any,
) -> Any:
    """Declare a setting: its default, its purpose and its allowed values.

    Args:
        default: Value if no source gives one; its type determines the kind.
        doc: One or two sentences for the reference page.
        kind: The kind, where the default's type does not determine it.
        least: Smallest value.
        live: The verb that changes the setting in the running service, if there is one.
        more: Other fields of the `FieldRule`: `most`, `zero`, `choices`, `schemes`, `secret`.
    """
    kind = kind or next(
        kind for value_type, kind in _KINDS.items() if isinstance(default, value_type)
    )
    rule = FieldRule(kind=kind, least=least, **more)
    return field(default=default, metadata={"doc": doc, "rule": rule, "live": live})


def size_setting(default: int | str, doc: str, **more: Any) -> Any:
    """Declare a setting that is a size: a number of bytes, or a text that is kept unchanged.

    Args:
        default: Value if no source gives one.
        doc: One or two sentences for the reference page.
        more: As for `setting`.
    """
    kind = FieldKind.MEMORY if isinstance(default, str) else FieldKind.SIZE
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
    rule: FieldRule = entry.metadata["rule"]
    try:
        rule.check(value, f"setting {name}")
    except RequestError as error:
        raise SettingError(str(error), name) from error


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
