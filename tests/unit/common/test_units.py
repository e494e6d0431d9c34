"""Sizes and durations: what people write, what they read, what is refused."""

import pytest

from common.errors import RequestError
from common.units import format_bytes, format_duration, parse_duration_s, parse_size_bytes

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        (0, 0),
        ("32M", 32 * 1024**2),
        ("32MB", 32 * 1024**2),
        ("32MiB", 32 * 1024**2),
        ("1.5 g", 3 * 1024**3 // 2),
        ("2k", 2048),
        ("1T", 1024**4),
        ("7B", 7),
    ],
)
def test_size_units_are_powers_of_1024(text: str | int, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-1", -1, "1X", "1 2", "1e3", True, "0x10", "nan"])
def test_a_wrong_size_is_refused_by_name_and_value(text: str | int) -> None:
    with pytest.raises(RequestError, match="max_size") as raised:
        parse_size_bytes(text, "max_size")
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2m", 120.0), ("500ms", 0.5), (3, 3.0), ("7d", 604800.0), ("1.5h", 5400.0), ("0.01", 0.01)],
)
def test_durations_are_parsed_to_seconds(text: str | float, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "-2m", -1, float("inf"), "2 months", True])
def test_a_wrong_duration_is_refused(text: str | float) -> None:
    with pytest.raises(RequestError, match="ttl"):
        parse_duration_s(text, "ttl")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**5, "5.0 PiB")],
)
def test_bytes_are_formatted_with_units(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.34, "340 ms"), (12.34, "12.3 s"), (245, "4 m 05 s"), (7800, "2 h 10 m")],
)
def test_durations_are_formatted_with_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
