"""Parser of column types in text form, for the service and the client.

Users write this form in `table create`, and the store contains it:

    bool  int8 … int64  uint8 … uint64  float16  float  double  decimal(10, 2)
    string  binary  binary[16]  date  time[us]  timestamp[us]  timestamp[us, UTC]
    duration[us]  null  list<int64>  map<string, int64>  struct<a: int64 not null, b: string>

Arrow's own spelling (`list<item: int64>`, `timestamp[us, tz=UTC]`, `decimal128(10, 2)`,
`large_string`, `date32[day]`) is accepted as well. Elements are nullable unless `not null`
follows. Names that are not plain words are quoted as in JSON.

The module `pyarrow` is an argument, because this layer imports the standard library only.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

_TOKEN = re.compile(r'\s+|("(?:[^"\\]|\\.)*+"|[\w/+-]++|[<>\[\](),:=])')
DEPTH_MAX = 32
"""Deepest nesting of types."""
ALIASES = {
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


@cache
def simple_types(arrow: Any) -> dict[str, Any]:
    """Return name → Arrow type for the types without options."""
    return {
        "bool": arrow.bool_(),
        **{
            f"{sign}int{bits}": getattr(arrow, f"{sign}int{bits}")()
            for sign in ("", "u")
            for bits in (8, 16, 32, 64)
        },
        "float16": arrow.float16(),
        "float": arrow.float32(),
        "double": arrow.float64(),
        "string": arrow.string(),
        "binary": arrow.binary(),
        "date": arrow.date32(),
        "null": arrow.null(),
    }


def read_type(text: str, arrow: Any) -> Any:
    """Parse the text form of an Arrow type.

    Args:
        text: A type in the form above.
        arrow: The module `pyarrow`.

    Raises:
        LookupError: The text is not a type; `ValueError`, `OverflowError` and `ArrowInvalid` are
            raised for the same reason.
    """
    reader = _TypeReader(list(_tokens(text)), arrow)
    parsed = reader.type()
    reader.end()
    return parsed


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

    def __init__(self, tokens: list[str], arrow: Any) -> None:
        self._tokens = tokens
        self._arrow = arrow
        self._at = 0
        self._depth = 0

    def end(self) -> None:
        """Raise an error if tokens remain."""
        if self._at != len(self._tokens):
            raise ValueError(self._tokens[self._at])

    def type(self) -> Any:
        """Parse one type."""
        name = self._next()
        name = ALIASES.get(name, name)
        if nested := {"list": self._list, "map": self._map, "struct": self._struct}.get(name):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise ValueError(f"types are nested more than {DEPTH_MAX} deep")
            parsed = nested()
            self._depth -= 1
            return parsed
        options = self._options()
        simple = simple_types(self._arrow)
        if name in simple and not (options and name == "binary"):
            return simple[name]
        return _parametric(name, options, self._arrow)

    def _list(self) -> Any:
        self._expect("<")
        element = self._element("element")
        self._expect(">")
        return self._arrow.list_(element)

    def _map(self) -> Any:
        self._expect("<")
        key = self.type()
        self._expect(",")
        item = self._element("value")
        self._expect(">")
        return self._arrow.map_(key, item)

    def _struct(self) -> Any:
        self._expect("<")
        fields: list[Any] = []
        while self._peek() != ">":
            if fields:
                self._expect(",")
            name = self._next()
            self._expect(":")
            fields.append(
                self._element(json.loads(name) if name.startswith('"') else name, named=True)
            )
        self._expect(">")
        return self._arrow.struct(fields)

    def _element(self, name: str, *, named: bool = False) -> Any:
        if not named and self._peek(1) == ":":  # Arrow's spelling is list<item: int64>.
            self._at += 2
        parsed = self.type()
        nullable = self._peek() != "not"
        if not nullable:
            self._expect("not")
            self._expect("null")
        return self._arrow.field(name, parsed, nullable)

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


def _decimal(precision: str, scale: str, arrow: Any) -> Any:
    wide = int(precision) > 38
    return (arrow.decimal256 if wide else arrow.decimal128)(int(precision), int(scale))


def _parametric(name: str, options: list[str], arrow: Any) -> Any:
    match name, options:
        case "decimal", [precision]:
            return _decimal(precision, "0", arrow)
        case "decimal", [precision, scale]:
            return _decimal(precision, scale, arrow)
        case "binary", [width]:
            return arrow.binary(int(width))
        case "timestamp", [unit, *zone]:
            # A zone such as +01:00 consists of several tokens.
            return arrow.timestamp(unit, tz="".join(zone) or None)
        case "time", [unit]:
            return (arrow.time32 if unit in ("s", "ms") else arrow.time64)(unit)
        case "duration", [unit]:
            return arrow.duration(unit)
        case _:
            raise ValueError(name)
