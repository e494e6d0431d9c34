"""A setting is shown as `neve table set` takes it back."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import RequestError
from neve.setting_values import NAMES, setting_text, setting_value


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("target_bytes", 64 * 1024**2, "64MB"),
        ("target_bytes", 1024**3, "1GB"),
        ("target_bytes", 1024**2 + 1, "1048577"),
        ("split_bytes", 0, "0"),
        ("ttl_s", 7 * 86400.0, "7d"),
        ("ttl_s", 90.0, "90s"),
        ("ttl_s", 12_345_679.0, "12345679s"),
        ("ttl_s", 1.5, "1.5"),
        ("ttl_s", None, "none"),
        ("ratio", 2.5, "2.5"),
        ("codec", "zstd", "zstd"),
    ],
)
def test_a_setting_is_shown_as_it_may_be_written(name: str, value: Any, text: str) -> None:
    assert setting_text(name, value) == text
    assert setting_value(name, text) == value


@pytest.mark.parametrize("name", NAMES)
def test_any_value_is_read_or_refused_in_words(name: str) -> None:
    for written in (
        "9" * 10_000, " " + "9" * 5_000, 10**4_000, -(10**4_000), "²", "1e999", "nan", "\ud800", [],
        [[]], {"a": []}, {}, True, None, "", "-1", "=", "a=b,=c", 1e308, float("inf"),
    ):  # fmt: skip
        assert len(refusal(name, written)) < 1_000


def refusal(name: str, written: object) -> str:
    """Return why a value is refused, or nothing."""
    try:
        setting_value(name, written)
    except RequestError as error:
        return str(error)
    return ""
