"""One field: what a user may write for it, and the sentence that refuses the rest."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from common.documents import TEXTS_MAX, FieldKind, FieldRule, unknown
from common.errors import RequestError
from common.units import shown

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("text", "a", "a"),
        ("texts", "a, b,,a", ("a", "b")),
        ("texts", ["a", "b"], ("a", "b")),
        ("options", "a=1, b = x=y,", {"a": "1", "b": "x=y"}),
        ("options", {"a": 1, "b": True}, {"a": "1", "b": "True"}),
        ("count", 5, 5),
        ("count", " 5", 5),
        ("count", 5.0, 5),
        ("count", "5e3", 5000),
        ("count", "9007199254740993", 9007199254740993),
        ("number", "-0.5", -0.5),
        ("size", "32MB", 32 * 1024**2),
        ("size", "9007199254740993", 9007199254740993),
        ("memory", "4g", "4g"),
        ("duration", "5m", 300.0),
        ("flag", "Yes", True),
        ("flag", False, False),
    ],
)
def test_a_value_is_read_as_its_field_says(kind: str, written: object, value: object) -> None:
    read = FieldRule(kind=FieldKind(kind)).read(written, "x")

    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("rule", "written", "sentence"),
    [
        ({"kind": "text"}, 5, "x is 5, expected a text"),
        ({"kind": "text", "secret": True}, 5, "x is (a secret), expected a text"),
        ({"kind": "text", "choices": ("a", "b")}, "c", "x is 'c', expected one of a, b"),
        ({"kind": "text", "least": 1}, "", "x is '', expected at least 1 character"),
        ({"kind": "texts"}, ["a", 1], "x is ['a', 1], expected a list of texts such as name,name"),
        ({"kind": "texts", "choices": ("a",)}, "a,b", "x is a, b, expected some of a"),
        ({"kind": "texts", "most": 1}, "a,b", "x is a, b, expected at most 1 entry"),
        ({"kind": "options"}, "a", "x is 'a', expected options such as name=value,name=value"),
        ({"kind": "options"}, {"a": []}, "x is {'a': []}, expected options such as name=value,"),
        ({"kind": "count", "least": 0}, 2.5, "x is 2.5, expected a whole number of at least 0"),
        ({"kind": "count"}, True, "x is True, expected a whole number"),
        ({"kind": "count"}, "²", "x is '²', expected a whole number"),
        ({"kind": "count", "least": 1, "most": 2000}, 0, "x is 0, expected 1 to 2000"),
        ({"kind": "number"}, None, "x is missing, expected a number"),
        ({"kind": "number"}, "nan", "x is 'nan', expected a number"),
        ({"kind": "number"}, float("inf"), "x is inf, expected a number"),
        ({"kind": "number", "above": 0, "most": 1}, 0, "x is 0, expected above 0 and at most 1"),
        ({"kind": "size"}, None, "x is missing, expected bytes or a size such as 32MB"),
        ({"kind": "size"}, "much", "x 'much' is not a size; write bytes or a binary size"),
        ({"kind": "size", "least": 1024, "zero": True}, "7", "x is 7 B, expected 0 (none) or at"),
        ({"kind": "memory", "least": 1024}, "7", "x is 7, expected at least 1.0 KiB"),
        ({"kind": "duration", "below": 60}, "5m", "x is 300 s, expected below 60 s"),
        ({"kind": "flag"}, 1, "x is 1, expected true or false"),
    ],
)
def test_a_refusal_names_field_value_and_expectation(
    rule: dict[str, Any], written: object, sentence: str
) -> None:
    rule["kind"] = FieldKind(rule["kind"])
    with pytest.raises(RequestError) as raised:
        FieldRule(**rule).read(written, "x")

    assert str(raised.value).startswith(sentence)


def test_zero_and_no_value_are_allowed_where_the_rule_says_so() -> None:
    assert FieldRule(kind=FieldKind.COUNT, least=5, zero=True).read(0, "x") == 0
    for written in (None, "", "none", "off"):
        assert FieldRule(kind=FieldKind.SIZE, optional=True, least=5).read(written, "x") is None
        assert FieldRule(kind=FieldKind.TEXTS, optional=True).read(written, "x") == ()


@pytest.mark.parametrize("kind", FieldKind)
@pytest.mark.parametrize(
    "huge",
    [
        "9" * 10_000_000,
        10**10_000,
        float("nan"),
        [1] * 1_000_000,
        ["a"] * 1_000_000,
        [["a"] * 1_000_000],
        dict.fromkeys(map(str, range(TEXTS_MAX + 1)), 1),
        "a,b" * 1_000_000,
    ],
    ids=["digits", "int", "nan", "numbers", "texts", "nested", "table", "commas"],
)
def test_a_huge_value_is_refused_by_its_beginning(kind: FieldKind, huge: object) -> None:
    """Neither the value nor a copy of it is shown, so little memory is used."""
    rule = FieldRule(kind=kind, least=0, most=10)
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as raised:
            rule.read(huge, "x")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(str(raised.value)) < 300
    assert peak_bytes < 500_000


def test_a_value_is_shown_by_its_beginning() -> None:
    assert shown(16**5000) == "a number of too many digits"
    assert shown([16**5000, 1]) == "[a number of too many digits, 1]"
    assert shown({"b": 1, "a": 2}) == "{'b': 1, 'a': 2}"
    assert len(shown({"name": ["value" * 100] * 100})) <= 80


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    assert str(unknown("key 'rats'", "rats", ["ratio", "rate"])) == (
        "key 'rats' is unknown; did you mean 'rate'?"
    )
    assert str(unknown("key 5", 5, ["b", "a"])) == "key 5 is unknown; known: a, b"
    assert str(unknown("key 5", 5, [])) == "key 5 is unknown; known: none"


STORES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")
PORT, HOST, DATABASE = "a port of 1 to 65535", "the name or address of a host", "for the database"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", ""),
        ("redis://127.0.0.1:6379/0", ""),
        ("redis://", ""),
        ("redis://:6379/0/", ""),
        ("redis://user:p%40ss@[::1]:6379/15?db=3", ""),
        ("unix:///run/redis.sock?db=1", ""),
        ("redis+sentinel://a:1,b/main/3?sentinel_username=u", ""),
        ("redis+cluster://:secret@a:1, b:65535", ""),
        ("http://h", "expected redis://"),
        ("redis:h", "expected redis://"),
        ("redis://h:99999999/0", PORT),
        ("redis://h:0", PORT),
        ("redis://h:port", PORT),
        ("redis://[::1:6379", PORT),
        ("redis+cluster://a:1,b:65536", PORT),
        ("redis://h h/0", HOST),
        ("redis+cluster://a,,b", HOST),
        ("redis+sentinel:///main", HOST),
        ("redis://h/first", DATABASE),
        ("redis://h/-1", DATABASE),
        ("redis://h/²", DATABASE),
        ("redis://h/4294967296", DATABASE),
        ("redis://h?db=x", DATABASE),
        ("unix:///run/redis.sock?db=x", DATABASE),
        ("redis+sentinel://a/main/x", DATABASE),
        ("redis+cluster://a/0/1", DATABASE),
    ],
)
def test_scheme_hosts_ports_and_database_of_a_url_are_checked(url: str, expected: str) -> None:
    rule = FieldRule(schemes=STORES, secret=True)
    if not expected:
        assert rule.read(url, "setting store.url") == url
        return
    with pytest.raises(RequestError, match=expected) as refused:
        rule.read(url, "setting store.url")
    assert url not in str(refused.value)
