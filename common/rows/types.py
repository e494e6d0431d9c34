"""Column types: the normal form of each type that Parquet can store, and types as text.

Files have large, view and dictionary types with the same values. Types are compared only in normal
form.
"""

import json
import re
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import types as is_type

from common.errors import RequestError

_Test = Callable[[pa.DataType], bool]


def normal_type(arrow: pa.DataType) -> pa.DataType:
    """Return the normal form of all types that Parquet stores alike.

    Large and view types become plain ones, dictionaries their values, extensions their
    storage, dates days; fixed-size lists become lists; Parquet keeps times and timestamps in
    seconds as milliseconds.

    Raises:
        RequestError: Parquet cannot store the type.
    """
    if is_type.is_dictionary(arrow) or is_type.is_run_end_encoded(arrow):
        return normal_type(arrow.value_type)
    if isinstance(arrow, pa.BaseExtensionType):
        return normal_type(arrow.storage_type)
    for belongs, normal in _NORMAL:
        if belongs(arrow):
            return normal(arrow)
    if any(belongs(arrow) for belongs in _KEPT):
        return arrow
    message = f"column type {arrow} cannot be stored in Parquet"
    raise RequestError(message)


def normal_field(field: pa.Field) -> pa.Field:
    """Return the field with its normal type and without metadata."""
    return pa.field(field.name, normal_type(field.type), field.nullable)


def _normal_decimal(arrow: pa.DataType) -> pa.DataType:
    wide = arrow.precision > 38
    return (pa.decimal256 if wide else pa.decimal128)(arrow.precision, arrow.scale)


def _normal_list(arrow: pa.DataType) -> pa.DataType:
    element = arrow.value_field
    return pa.list_(pa.field("element", normal_type(element.type), element.nullable))


def _normal_map(arrow: pa.DataType) -> pa.DataType:
    item = pa.field("value", normal_type(arrow.item_type), arrow.item_field.nullable)
    return pa.map_(normal_type(arrow.key_type), item)


def _is_list(arrow: pa.DataType) -> bool:
    plain = (
        is_type.is_list(arrow) or is_type.is_large_list(arrow) or is_type.is_fixed_size_list(arrow)
    )
    return bool(plain or is_type.is_list_view(arrow) or is_type.is_large_list_view(arrow))


def _is_timestamp_in_seconds(arrow: pa.DataType) -> bool:
    return bool(is_type.is_timestamp(arrow) and arrow.unit == "s")


_Rule = tuple[_Test, Callable[[pa.DataType], pa.DataType]]
_NORMAL: tuple[_Rule, ...] = (
    (is_type.is_large_string, lambda _: pa.string()),
    (is_type.is_string_view, lambda _: pa.string()),
    (is_type.is_large_binary, lambda _: pa.binary()),
    (is_type.is_binary_view, lambda _: pa.binary()),
    (is_type.is_date, lambda _: pa.date32()),
    (is_type.is_time32, lambda _: pa.time32("ms")),
    (_is_timestamp_in_seconds, lambda arrow: pa.timestamp("ms", arrow.tz)),
    (is_type.is_decimal, _normal_decimal),
    (_is_list, _normal_list),
    (is_type.is_map, _normal_map),
    (is_type.is_struct, lambda arrow: pa.struct([normal_field(field) for field in arrow])),
)
_KEPT: tuple[_Test, ...] = (
    is_type.is_boolean,
    is_type.is_integer,
    is_type.is_floating,
    is_type.is_string,
    is_type.is_binary,
    is_type.is_fixed_size_binary,
    is_type.is_timestamp,
    is_type.is_time,
    is_type.is_duration,
    is_type.is_null,
)


# ---- Types as text
#
# The text form is used in `table create` and in the store:
#
#     bool  int8 … int64  uint8 … uint64  float16  float  double  decimal(10, 2)
#     string  binary  binary[16]  date  time[us]  timestamp[us]  timestamp[us, UTC]
#     duration[us]  null  list<int64>  map<string, int64>  struct<a: int64 not null, b: string>
#
# Arrow's own spelling (`list<item: int64>`, `timestamp[us, tz=UTC]`, `decimal128(10, 2)`,
# `large_string`, `date32[day]`) is accepted as well. Elements are nullable unless `not null`
# follows. Names that are not plain words are quoted as in JSON.


_PLAIN_NAME = re.compile(r"\w+")
_TOKEN = re.compile(r'\s+|("(?:[^"\\]|\\.)*+"|[\w/+-]++|[<>\[\](),:=])')
CHARS_MAX = 64 * 1024
DEPTH_MAX = 32
"""Deepest nesting of types."""
SHOWN_CHARS = 200
_SIMPLE = {
    "bool": pa.bool_(),
    **{
        f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")()
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float16": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "null": pa.null(),
}
_ALIASES = {
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "bigint": "int64",
    "halffloat": "float16",
    "float32": "float",
    "float64": "double",
    "decimal128": "decimal",
    "decimal256": "decimal",
    "str": "string",
    "utf8": "string",
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
    "fixed_size_binary": "binary",
    "date32": "date",
    "date64": "date",
    "time32": "time",
    "time64": "time",
    "large_list": "list",
}
_NAMES = {arrow: name for name, arrow in _SIMPLE.items()}


def type_to_text(arrow: pa.DataType) -> str:
    """Return the text form of a type after normalising it."""
    arrow = normal_type(arrow)
    if arrow in _NAMES:
        return _NAMES[arrow]
    if is_type.is_decimal(arrow):
        return f"decimal({arrow.precision}, {arrow.scale})"
    if is_type.is_fixed_size_binary(arrow):
        return f"binary[{arrow.byte_width}]"
    if is_type.is_timestamp(arrow):
        return f"timestamp[{arrow.unit}, {arrow.tz}]" if arrow.tz else f"timestamp[{arrow.unit}]"
    if is_type.is_time(arrow) or is_type.is_duration(arrow):
        return f"{'time' if is_type.is_time(arrow) else 'duration'}[{arrow.unit}]"
    if is_type.is_list(arrow):
        return f"list<{_element_text(arrow.value_field)}>"
    if is_type.is_map(arrow):
        return f"map<{type_to_text(arrow.key_type)}, {_element_text(arrow.item_field)}>"
    fields = (f"{_name_text(field.name)}: {_element_text(field)}" for field in arrow)
    return f"struct<{', '.join(fields)}>"


def _element_text(field: pa.Field) -> str:
    return type_to_text(field.type) + ("" if field.nullable else " not null")


def _name_text(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def type_from_text(text: str) -> pa.DataType:
    """Return the type of a text form.

    Raises:
        RequestError: The text is not a type.
    """
    if len(text) > CHARS_MAX:
        raise RequestError(
            f"column type {text[:SHOWN_CHARS]!r}… has {len(text)} characters, more than the"
            f" limit of {CHARS_MAX}"
        )
    try:
        reader = _TypeReader(list(_tokens(text)))
        arrow = reader.type()
        reader.end()
    except (IndexError, ValueError, KeyError, OverflowError, pa.ArrowInvalid) as error:
        shown = text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
        message = (
            f"column type {shown!r} is unknown; write for example int64, string, decimal(10, 2)"
        )
        raise RequestError(message) from error
    return arrow


def _tokens(text: str) -> Iterator[str]:
    """Yield the tokens of a text; an invalid character raises an error."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(text[at])
        at = match.end()
        if match[1]:
            yield match[1]


class _TypeReader:
    """Parses tokens of a type from left to right; `_at` is the index of the next token."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def end(self) -> None:
        """Refuse remaining tokens."""
        if self._at != len(self._tokens):
            raise ValueError(self._tokens[self._at])

    def type(self) -> pa.DataType:
        """Parse one type."""
        name = self._next()
        name = _ALIASES.get(name, name)
        if nested := {"list": self._list, "map": self._map, "struct": self._struct}.get(name):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise ValueError(f"types are nested more than {DEPTH_MAX} deep")
            arrow = nested()
            self._depth -= 1
            return arrow
        options = self._options()
        if name in _SIMPLE and not (options and name == "binary"):
            return _SIMPLE[name]
        return _parametric(name, options)

    def _list(self) -> pa.DataType:
        self._expect("<")
        element = self._element("element")
        self._expect(">")
        return pa.list_(element)

    def _map(self) -> pa.DataType:
        self._expect("<")
        key = self.type()
        self._expect(",")
        item = self._element("value")
        self._expect(">")
        return pa.map_(key, item)

    def _struct(self) -> pa.DataType:
        self._expect("<")
        fields: list[pa.Field] = []
        while self._peek() != ">":
            if fields:
                self._expect(",")
            name = self._next()
            self._expect(":")
            fields.append(
                self._element(json.loads(name) if name.startswith('"') else name, named=True)
            )
        self._expect(">")
        return pa.struct(fields)

    def _element(self, name: str, *, named: bool = False) -> pa.Field:
        if not named and self._peek(1) == ":":  # Arrow's spelling is list<item: int64>.
            self._at += 2
        arrow = self.type()
        nullable = self._peek() != "not"
        if not nullable:
            self._expect("not")
            self._expect("null")
        return pa.field(name, arrow, nullable)

    def _options(self) -> list[str]:
        if self._peek() not in ("[", "("):
            return []
        close = {"[": "]", "(": ")"}[self._next()]
        options = []
        while (token := self._next()) != close:
            if token not in (",", "=", "tz"):
                options.append(token)
        return options

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise ValueError(token)


def _decimal(precision: str, scale: str) -> pa.DataType:
    wide = int(precision) > 38
    return (pa.decimal256 if wide else pa.decimal128)(int(precision), int(scale))


def _parametric(name: str, options: list[str]) -> pa.DataType:
    match name, options:
        case "decimal", [precision]:
            return _decimal(precision, "0")
        case "decimal", [precision, scale]:
            return _decimal(precision, scale)
        case "binary", [width]:
            return pa.binary(int(width))
        case "timestamp", [unit, *zone]:
            # A zone such as +01:00 consists of several tokens.
            return pa.timestamp(unit, tz="".join(zone) or None)
        case "time", [unit]:
            return (pa.time32 if unit in ("s", "ms") else pa.time64)(unit)
        case "duration", [unit]:
            return pa.duration(unit)
        case _:
            raise ValueError(name)
