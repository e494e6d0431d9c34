"""Requests whose lists, mappings and texts grow, one at a time, for each route of a description.

A growth makes the same request of any size. Items are such that a route looks at all of them:
distinct ones, distinct ones with one that comes twice, and ones of the wrong type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

METHODS = ("get", "put", "post", "delete", "patch")
ITEMS: Mapping[str, Callable[[int], Any]] = {
    "paths": lambda number: f"part-{number:07}.parquet",
    "splits": lambda number: f"{number}",
    "schema": lambda number: {"name": f"c{number}", "type": "int64"},
    "add_columns": lambda number: {"name": f"c{number}", "type": "int64"},
    "widen_columns": lambda number: {"name": f"c{number}", "type": "int64"},
    "tablets": lambda number: f"01{number:08x}",
}
"""By the name of a list or mapping."""
BASES: Mapping[str, Any] = {
    "location": "/nowhere/grown",
    "name": "grown",
    "schema": [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "v", "type": "int64"},
        {"name": "s", "type": "string"},
    ],
    "key": ["id"],
    "version_column": "v",
    "selector": {"name": "name", "options": {"pattern": "*"}},
    "dry_run": True,
}
"""Values without which a route would refuse a request at first sight."""
USED = {"NewTable": ("schema", "key", "version_column"), "NewRequest": ("selector", "dry_run")}
"""Fields that a body of a model has besides the required ones."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A request of any size."""

    method: str
    path: str
    where: str
    """What grows: `body.paths`, `query.column`, with a word for what its items are like."""
    body: Callable[[int], Any]
    query: Callable[[int], str]
    is_text: bool

    def request(self, count: int) -> tuple[str, bytes]:
        """Return target and body of the request of a size."""
        query, body = self.query(count), self.body(count)
        target = self.path + (f"?{query}" if query else "")
        return target, b"" if body is None else json.dumps(body).encode()


def growths(described: Any, values: Mapping[str, str]) -> Iterator[Growth]:
    """Yield the growths of all routes of an OpenAPI description.

    Args:
        described: The description.
        values: Of parameters of paths, by name.
    """
    for path, methods in described["paths"].items():
        whole = path
        for name, value in values.items():
            whole = whole.replace(f"{{{name}}}", value)
        for method, operation in methods.items():
            if method in METHODS:
                yield from _of_body(method.upper(), whole, operation, described)
                yield from _of_query(method.upper(), whole, operation, described)


def _of_body(method: str, path: str, operation: Any, described: Any) -> Iterator[Growth]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return
    schema = content["schema"]
    for where, is_text, make in _grown("body", schema, described, 0):
        yield Growth(method, path, where, make, lambda _: "", is_text)


def _of_query(method: str, path: str, operation: Any, described: Any) -> Iterator[Growth]:
    told = [each for each in operation.get("parameters", []) if each["in"] == "query"]
    required = {each["name"]: "1" for each in told if each.get("required")}
    for each in told:
        name, schema = each["name"], _resolved(each.get("schema", {}), described)
        kinds = {option.get("type") for option in _options(schema, described)}
        if "string" in kinds:
            yield Growth(method, path, f"query.{name}", lambda _: None, _text(required, name), True)
        if "array" in kinds:
            yield Growth(method, path, f"query.{name}", lambda _: None, _list(required, name), True)


def _text(required: Mapping[str, str], name: str) -> Callable[[int], str]:
    return lambda count: urlencode({**required, name: "a" * count})


def _list(required: Mapping[str, str], name: str) -> Callable[[int], str]:
    return lambda count: urlencode([*required.items(), *[(name, "a")] * (count // 10)])


def _grown(
    name: str, schema: Any, described: Any, depth: int
) -> Iterator[tuple[str, bool, Callable[[int], Any]]]:
    """Yield what grows in a schema: where, whether it is a text, and the value of a size."""
    for option in _options(schema, described):
        kind = option.get("type")
        if kind == "string":
            yield name, True, lambda count: "a" * count
        elif kind == "array" and depth < 3:
            yield from _lists(name, option, described, depth)
        elif kind == "object" and depth < 3:
            yield from _objects(name, option, described, depth)


def _lists(
    name: str, schema: Any, described: Any, depth: int
) -> Iterator[tuple[str, bool, Callable[[int], Any]]]:
    item = ITEMS.get(name.rpartition(".")[2], "x{}".format)
    yield f"{name} (distinct)", False, lambda count: [item(number) for number in range(count)]
    yield (
        f"{name} (the last one twice)",
        False,
        lambda count: [*map(item, range(count - 1)), item(count - 2)],
    )
    yield f"{name} (all wrong)", False, lambda count: [{"wrong": 1}] * count
    for where, is_text, make in _grown(f"{name}[]", schema.get("items", {}), described, depth + 1):
        yield where, is_text, _in_list(make)


def _in_list(make: Callable[[int], Any]) -> Callable[[int], Any]:
    return lambda count: [make(count)]


def _objects(
    name: str, schema: Any, described: Any, depth: int
) -> Iterator[tuple[str, bool, Callable[[int], Any]]]:
    model, properties = schema.get("title", ""), schema.get("properties", {})
    given = {*schema.get("required", ()), *USED.get(model, ())}
    base = {each: _base(each, properties.get(each, {}), described) for each in given}
    for field, told in properties.items():
        for where, is_text, make in _grown(f"{name}.{field}", told, described, depth + 1):
            yield where, is_text, _in_object(base, field, make)
    key = ITEMS.get(name.rpartition(".")[2], "x{}".format)
    items = schema.get("additionalProperties")
    value = _base("", items if isinstance(items, dict) else {}, described)
    yield (
        f"{name} (entries)",
        False,
        lambda count: {**base, **{key(number): value for number in range(count)}},
    )
    yield f"{name} (wrong entries)", False, lambda count: {key(n): [n] for n in range(count)}
    yield f"{name} (a long name)", True, lambda count: {**base, "a" * count: value}


def _in_object(
    base: Mapping[str, Any], field: str, make: Callable[[int], Any]
) -> Callable[[int], Any]:
    return lambda count: {**base, field: make(count)}


def _base(name: str, schema: Any, described: Any) -> Any:
    if name in BASES:
        return BASES[name]
    option = _options(schema, described)[0]
    if option.get("type") == "object":
        fields, required = option.get("properties", {}), option.get("required", ())
        return {each: _base(each, fields[each], described) for each in required}
    plain = {"integer": 1, "number": 1, "boolean": True, "array": []}
    return plain.get(option.get("type", ""), "x")


def _options(schema: Any, described: Any) -> list[Any]:
    schema = _resolved(schema, described)
    several = schema.get("anyOf") or [schema]
    return [_resolved(each, described) for each in several]


def _resolved(schema: Any, described: Any) -> Any:
    """Return what a schema refers to, if it does."""
    while "$ref" in schema:
        found = described
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        schema = found
    return schema
