"""The one reader of untrusted values: settings, settings of tables, options of plug-ins, documents.

A `FieldRule` states which values one field accepts. `read` turns a value as the user wrote it, in
TOML, JSON or as a text, into the type of the field. Any other value is refused with a sentence that
names the field, the value, and what was expected:

    setting compactor.slots is 0, expected at least 1
    files[3].rows is 'many', expected a whole number of at least 0

A huge value is refused in constant time: its length is checked first, and the sentence shows only
its beginning.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeGuard
from urllib.parse import parse_qsl, urlsplit

from common.errors import RequestError, SettingError
from common.units import (
    CHARS_MAX,
    SIZE_MAX_BYTES,
    format_bytes,
    format_count,
    parse_duration_s,
    parse_size_bytes,
    shown,
)

TEXTS_MAX = 10_000
"""Most entries of a list of texts, or of a table of options."""
TEXTS_CHARS_MAX = 1_000_000
"""Longest text that stands for a list or a table."""
OFF = (None, "", "none", "off")
"""What a user may write for an optional value."""
INFINITY = float("inf")
DATABASE_MAX = (1 << 31) - 1
_SWITCHES = {
    "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False,
}  # fmt: skip


class FieldKind(StrEnum):
    """The type of a field, and with it the texts that stand for a value."""

    TEXT = "text"
    TEXTS = "texts"
    """A list of texts; in a single text, commas separate them."""
    OPTIONS = "options"
    """Name → text; as a single text: `threshold=1GB,codec=zstd`."""
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


UNITS = {"_bytes": FieldKind.SIZE, "_s": FieldKind.DURATION}
"""Ends of names that stand for a unit. A user may leave them out, and give the value a unit."""
_KINDS = {
    bool: FieldKind.FLAG,
    int: FieldKind.COUNT,
    str: FieldKind.TEXT,
    tuple: FieldKind.TEXTS,
    dict: FieldKind.OPTIONS,
}


def kind_of(name: str, default: object) -> FieldKind:
    """Return the kind of a field by the unit of its name, else by the type of its default."""
    for unit, kind in UNITS.items():
        if name.endswith(unit):
            return kind
    kinds = (kind for value_type, kind in _KINDS.items() if isinstance(default, value_type))
    return next(kinds, FieldKind.NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRule:
    """The allowed values of a field. Bounds of texts are lengths; those of lists are entries."""

    kind: FieldKind = FieldKind.TEXT
    least: float = -INFINITY
    most: float = INFINITY
    above: float | None = None
    below: float | None = None
    zero: bool = False
    """Whether 0 is allowed as well, with the meaning `none`."""
    optional: bool = False
    """Whether there may be no value: null, `none`, `off` or an empty text."""
    choices: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    """Schemes of a text that is a URL, or empty; none: the text is not a URL."""
    secret: bool = False
    """Whether the value is never shown."""
    word: str = ""
    """A word that is allowed in place of a size; empty: none."""

    def read(self, written: object, where: str) -> Any:
        """Return a value in the type of the field.

        Args:
            written: The value, as the user wrote it.
            where: The field, for the message: `setting store.url`, `files[3].rows`.

        Raises:
            RequestError: The value has another type, or is not allowed.
        """
        value = self.parse(written, where)
        if value is not None:
            self.check(value, where)
        return value

    def parse(self, written: object, where: str) -> Any:
        """Return a value in the type of the field, which need not be allowed.

        Args:
            written: The value, as the user wrote it.
            where: The field, for the message.

        Raises:
            RequestError: The value has another type.
        """
        if self.optional and written in OFF:
            return () if self.kind is FieldKind.TEXTS else None
        if written is None:
            raise self._refusal(where, "missing", self._type_text())
        if self.word and written == self.word:
            return self.word
        if self.kind in (FieldKind.SIZE, FieldKind.MEMORY):
            size_bytes = parse_size_bytes(written, where)  # type: ignore[arg-type]  # checks the type
            return str(written) if self.kind is FieldKind.MEMORY else size_bytes
        if self.kind is FieldKind.DURATION:
            return parse_duration_s(written, where)  # type: ignore[arg-type]  # checks the type
        value = _PARSERS[self.kind](written)
        if value is None:
            raise self._refusal(where, shown(written), self._type_text())
        return value

    def check(self, value: Any, where: str) -> None:
        """Refuse a value of the right type that is not allowed.

        Args:
            value: In the type of the field.
            where: The field, for the message.

        Raises:
            RequestError: Names the field, the value and what is expected.
        """
        if not self._allows(value, where):
            is_text = self.kind is FieldKind.TEXT
            text = shown(value) if is_text else value_text(self.kind, value)
            short = text if len(text) <= CHARS_MAX else f"{text[:CHARS_MAX]}…"
            raise self._refusal(where, short, self.expected())
        if self.schemes and value and (expected := _expected_in_url(value, self.schemes)):
            raise self._refusal(where, shown(value), expected)

    def _allows(self, value: Any, where: str) -> bool:
        if self.word and value == self.word:
            return True
        if self.choices:
            entries = value if self.kind is FieldKind.TEXTS else (value,)
            return all(entry in self.choices for entry in entries)
        if self.kind in (FieldKind.TEXT, FieldKind.TEXTS, FieldKind.OPTIONS):
            return self.least <= len(value) <= self.most
        number = parse_size_bytes(value, where) if self.kind is FieldKind.MEMORY else value
        # NaN is refused, because no comparison with it holds.
        within = (
            self.least <= number <= self.most
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )
        return within or (self.zero and number == 0)

    def _refusal(self, where: str, value: str, expected: str) -> RequestError:
        value = "(a secret)" if self.secret else value
        return RequestError(f"{where} is {value}, expected {expected}")

    def _type_text(self) -> str:
        """Return the kind, for a message."""
        text, limits = self._choices() or _EXPECTED[self.kind], self.expected()
        if self.kind not in (FieldKind.COUNT, FieldKind.NUMBER) or not limits:
            return text
        return (
            f"{text} {limits}" if limits.startswith(("above", "below")) else f"{text} of {limits}"
        )

    def _choices(self) -> str:
        word = "some" if self.kind is FieldKind.TEXTS else "one"
        return f"{word} of {', '.join(self.choices)}" if self.choices else ""

    def expected(self) -> str:
        """Return the allowed values, for a message: `at least 2 and below 10`."""
        if self.choices:
            return self._choices()
        bounds = {
            "at least": self.least if self.above is None else None,
            "above": self.above,
            "at most": self.most,
            "below": self.below,
        }
        given = {word: self._amount(bound) for word, bound in bounds.items() if _is_bound(bound)}
        limits = " and ".join(f"{word} {amount}" for word, amount in given.items())
        if [*given] == ["at least", "at most"]:
            limits = f"{given['at least']} to {given['at most']}"
        word = f"{self.word} or " if self.word else ""
        return word + "0 (none) or " * self.zero + limits + ", or none" * self.optional

    def _amount(self, bound: float) -> str:
        match self.kind:
            case FieldKind.TEXT:
                return format_count(int(bound), "character")
            case FieldKind.TEXTS | FieldKind.OPTIONS:
                return format_count(int(bound), "entry", "entries")
            case FieldKind.SIZE | FieldKind.MEMORY:
                return format_bytes(bound)
            case _:
                return value_text(self.kind, bound)


def _is_bound(bound: float | None) -> TypeGuard[float]:
    return bound is not None and abs(bound) < INFINITY


# ------------------------------------------------------------------------- Parsers of single values


def _number(written: object) -> float | None:
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        return None
    if isinstance(written, str) and len(written) > CHARS_MAX:
        return None
    try:
        number = float(written)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < INFINITY else None


def _count(written: Any) -> int | None:
    number = _number(written)
    if number is None or number != int(number) or abs(number) > SIZE_MAX_BYTES:
        return None
    try:
        return int(written)  # A float would lose digits of a large number.
    except ValueError:
        return int(number)


def _flag(written: object) -> bool | None:
    if isinstance(written, str) and len(written) <= CHARS_MAX:
        return _SWITCHES.get(written.strip().lower())
    return written if isinstance(written, bool) else None


def _text(written: object) -> str | None:
    return written if isinstance(written, str) else None


def _texts(written: object) -> tuple[str, ...] | None:
    parts = written
    if isinstance(written, str):
        parts = written.split(",", TEXTS_MAX) if len(written) <= TEXTS_CHARS_MAX else None
    if not isinstance(parts, list | tuple) or len(parts) > TEXTS_MAX:
        return None
    if not all(isinstance(part, str) for part in parts):
        return None
    return tuple(dict.fromkeys(filter(None, map(str.strip, parts))))


def _options(written: object) -> dict[str, str] | None:
    if isinstance(written, str):
        parts = _texts(written)
        pairs = [part.partition("=") for part in parts or ()]
        if parts is None or not all(equals and name.strip() for name, equals, _ in pairs):
            return None
        return {name.strip(): value.strip() for name, _, value in pairs}
    if not isinstance(written, Mapping) or len(written) > TEXTS_MAX:
        return None
    if not all(isinstance(value, str | int | float) for value in written.values()):
        return None
    return {str(name): str(value) for name, value in written.items()}


_PARSERS: dict[FieldKind, Callable[[Any], Any]] = {
    FieldKind.TEXT: _text,
    FieldKind.TEXTS: _texts,
    FieldKind.OPTIONS: _options,
    FieldKind.COUNT: _count,
    FieldKind.NUMBER: _number,
    FieldKind.FLAG: _flag,
}
"""Parser of each kind, which returns None for another type; `common.units` has the others."""
_EXPECTED = {
    FieldKind.TEXT: "a text",
    FieldKind.TEXTS: "a list of texts such as name,name",
    FieldKind.OPTIONS: "options such as name=value,name=value",
    FieldKind.COUNT: "a whole number",
    FieldKind.NUMBER: "a number",
    FieldKind.SIZE: "bytes or a size such as 32MB",
    FieldKind.DURATION: "seconds or a duration such as 5m",
    FieldKind.MEMORY: "bytes or a size such as 4g",
    FieldKind.FLAG: "true or false",
}


# --------------------------------------------------------------------------------------------- URLs


def _expected_in_url(url: str, schemes: Collection[str]) -> str:
    """Return what a URL should have instead of its first fault; empty: it has no fault.

    Commas separate several servers. A URL of Redis ends with the number of its database; with
    Sentinels, the name of the service comes first. redis-py takes database 0 for a faulty number.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in schemes:
        return " or ".join(f"{allowed}://…" for allowed in schemes)
    rest, _, query = rest.partition("?")
    servers, _, path = rest.partition("/")
    for server in () if scheme == "unix" else servers.rpartition("@")[2].split(","):
        # The host of a single Redis may be left out; it is this machine then.
        if expected := _expected_of_server(server.strip(), scheme in {"redis", "rediss"}):
            return expected
    if scheme.startswith(("redis", "unix")):
        database = path.partition("/")[2] if scheme.endswith("+sentinel") else path
        numbers = ["" if scheme == "unix" else database.strip("/")]
        numbers += [value for name, value in parse_qsl(query) if name == "db"]
        if not all(map(_is_database, filter(None, numbers))):
            return f"a number of 0 to {DATABASE_MAX} for the database"
    return ""


def _expected_of_server(server: str, may_be_local: bool) -> str:
    try:
        parts = urlsplit(f"//{server}")
        host, port = parts.hostname or "localhost" * may_be_local, parts.port
    except ValueError:
        host, port = "", 0
    if port == 0:
        return "a port of 1 to 65535 after the host"
    if not host or any(letter.isspace() for letter in host):
        return "the name or address of a host"
    return ""


def _is_database(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= DATABASE_MAX


# ------------------------------------------------------------------------------ Parts of sentences


def value_text(kind: FieldKind, value: Any) -> str:
    """Return a value in readable form.

    Args:
        kind: Kind of the field.
        value: In the type of the field.
    """
    match kind:
        case FieldKind.SIZE:
            return format_bytes(value) if value % 1024 == 0 and value else f"{value} B"
        case FieldKind.TEXTS:
            return ", ".join(value)
        case FieldKind.FLAG:
            return "true" if value else "false"
        case FieldKind.DURATION:
            return f"{value:.12g} s"
        case FieldKind.NUMBER:
            return f"{value:.12g}"
        case _:
            return str(value)


def read_object(written: object, where: str, allowed: Collection[str] = ()) -> dict[str, Any]:
    """Return a table of a document.

    Args:
        written: The value, as the user wrote it.
        where: Its path, for the message.
        allowed: All names that it may have; empty: any.

    Raises:
        RequestError: The value is no table, or a name is unknown.
    """
    if not isinstance(written, Mapping):
        text = "missing" if written is None else shown(written)
        raise RequestError(f"{where} is {text}, expected an object")
    for name in written if allowed else ():
        if name not in allowed:
            raise unknown(f"{where}: field {shown(name)}", name, allowed)
    return dict(written)


def read_list(written: object, where: str) -> list[Any]:
    """Return a list of a document.

    Args:
        written: The value, as the user wrote it.
        where: Its path, for the message.

    Raises:
        RequestError: The value is no list.
    """
    if not isinstance(written, list | tuple):
        text = "missing" if written is None else shown(written)
        raise RequestError(f"{where} is {text}, expected a list")
    return list(written)


def unknown(what: str, name: object, names: Collection[str]) -> RequestError:
    """Return the error for an unknown name, with a suggestion.

    Args:
        what: Subject of the sentence: `files[3]: field 'sise'`.
        name: The name that the user wrote.
        names: The names that exist.
    """
    close = get_close_matches(str(name)[:CHARS_MAX], names, n=1)
    listed = ", ".join(sorted(names)) or "none"
    hint = f"did you mean {close[0]!r}?" if close else f"known: {listed}"
    return RequestError(f"{what} is unknown; {hint}")


# -------------------------------------------------------------------------- Settings of the service
# `setting` or `size_setting` declares every field of `common.settings` with its `FieldRule`. The
# parser of texts and the constructors apply the rule, so no value can break its rule.


_SETTING_KINDS = {**_KINDS, float: FieldKind.DURATION}
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
        kind for value_type, kind in _SETTING_KINDS.items() if isinstance(default, value_type)
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
