"""JSON patch: examples of RFC 6902, appendix A, and what has to be refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kubernetes.json_patch import PatchError, apply


@pytest.mark.parametrize(
    ("document", "operation", "changed"),
    [
        ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"op": "add", "path": "/a", "value": 2}, {"a": 2}),
        ({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}),
        ({"a": [1]}, {"op": "add", "path": "/a/-", "value": [2]}, {"a": [1, [2]]}),
        ({"a": 1, "b": 2}, {"op": "remove", "path": "/b"}, {"a": 1}),
        ({"a": [1, 2, 3]}, {"op": "remove", "path": "/a/1"}, {"a": [1, 3]}),
        ({"a": [{"b": 1}]}, {"op": "replace", "path": "/a/0/b", "value": 2}, {"a": [{"b": 2}]}),
        ({"a": 1}, {"op": "replace", "path": "/a", "value": None}, {"a": None}),
        ({"a/b": {"~": 1}}, {"op": "replace", "path": "/a~1b/~0", "value": 2}, {"a/b": {"~": 2}}),
        ({"~1": 9}, {"op": "test", "path": "/~01", "value": 9}, {"~1": 9}),
    ],
)
def test_operations(document: Any, operation: dict[str, Any], changed: Any) -> None:
    assert apply(document, [operation]) == changed


@pytest.mark.parametrize(
    ("operation", "complaint"),
    [
        ({"op": "replace", "path": "/b", "value": 1}, "does not exist"),
        ({"op": "remove", "path": "/b"}, "does not exist"),
        ({"op": "replace", "path": "/list/2", "value": 1}, "does not exist"),
        ({"op": "replace", "path": "/list/-", "value": 1}, "does not exist"),
        ({"op": "add", "path": "/list/3", "value": 1}, "beyond"),
        ({"op": "add", "path": "/list/01", "value": 1}, "leads nowhere"),
        ({"op": "add", "path": "/list/-1", "value": 1}, "leads nowhere"),
        ({"op": "add", "path": "/b/c", "value": 1}, "does not exist"),
        ({"op": "add", "path": "/a/c", "value": 1}, "leads nowhere"),
        ({"op": "add", "path": "b", "value": 1}, "slash"),
        ({"op": "add", "path": "/b"}, "no value"),
        ({"op": "test", "path": "/a", "value": 2}, "test failed"),
        ({"op": "test", "path": "/b", "value": None}, "does not exist"),
        ({"op": "move", "from": "/a", "path": "/b"}, "'move'"),
    ],
)
def test_refusals(operation: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PatchError, match=complaint):
        apply({"a": 1, "list": [1, 2]}, [operation])


def test_a_patch_is_applied_as_a_whole_or_not_at_all() -> None:
    document = {"a": {"b": 1}}
    good = {"op": "replace", "path": "/a/b", "value": 2}

    with pytest.raises(PatchError):
        apply(document, [good, {"op": "test", "path": "/a/b", "value": 1}])
    assert document == {"a": {"b": 1}}

    assert apply(document, [good, {"op": "test", "path": "/a/b", "value": 2}]) == {"a": {"b": 2}}
    assert document == {"a": {"b": 1}}


def test_a_value_is_not_shared_with_the_patch() -> None:
    operation = {"op": "add", "path": "/a", "value": [1]}
    apply({}, [operation])["a"].append(2)

    assert operation["value"] == [1]
