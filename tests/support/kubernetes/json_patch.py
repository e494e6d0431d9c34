"""Change a JSON document by a list of operations: RFC 6902.

`add`, `remove`, `replace` and `test` are known, which is what KubeRay's autoscaler sends.
A patch is applied as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

CONTENT_TYPE = "application/json-patch+json"


class PatchError(ValueError):
    """The patch does not apply to this document, or a `test` in it failed."""


def apply(document: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """Return a changed copy of `document`.

    Raises:
        PatchError: The first operation that does not apply.
    """
    changed = deepcopy(document)
    for operation in operations:
        _apply_one(changed, operation)
    return changed


def _apply_one(document: Any, operation: Mapping[str, Any]) -> None:
    path = operation.get("path", "")
    parent, key = _resolve(document, path)
    match operation.get("op"):
        case "add":
            _add(parent, key, _value_of(operation))
        case "remove":
            _existing(parent, key, path)
            del parent[key]
        case "replace":
            _existing(parent, key, path)
            parent[key] = _value_of(operation)
        case "test":
            found, expected = _existing(parent, key, path), _value_of(operation)
            if found != expected:
                raise PatchError(f"test failed: {path} is {found!r}, not {expected!r}")
        case other:
            raise PatchError(f"operation {other!r} is not one of add, remove, replace, test")


def _value_of(operation: Mapping[str, Any]) -> Any:
    if "value" not in operation:
        raise PatchError(f"{operation.get('op')} of {operation.get('path')} has no value")
    return deepcopy(operation["value"])


def _resolve(document: Any, path: str) -> tuple[Any, Any]:
    """Return the container that holds the last part of `path`, and that part as its key."""
    if not path.startswith("/"):
        raise PatchError(f"path {path!r} does not start with a slash")
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    for part in parts[:-1]:
        document = _existing(document, _key_in(document, part, path), path)
    return document, _key_in(document, parts[-1], path)


def _key_in(container: Any, part: str, path: str) -> Any:
    """Return `part` as a key of an object or as an index of a list; `-` is a list's end."""
    if isinstance(container, dict):
        return part
    if isinstance(container, list):
        if part == "-":
            return len(container)
        # RFC 6901 has no signs and no leading zeros.
        if part.isascii() and part.isdigit() and str(int(part)) == part:
            return int(part)
    raise PatchError(f"path {path} leads nowhere at {part!r}")


def _existing(container: Any, key: Any, path: str) -> Any:
    if isinstance(container, list):
        if key < len(container):
            return container[key]
    elif key in container:
        return container[key]
    raise PatchError(f"path {path} does not exist")


def _add(container: Any, key: Any, value: Any) -> None:
    if isinstance(container, list):
        if key > len(container):
            raise PatchError(f"index {key} is beyond a list of {len(container)}")
        container.insert(key, value)
    else:
        container[key] = value
