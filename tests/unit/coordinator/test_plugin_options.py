"""Options of a plug-in: types, units, bounds, defaults of the table."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from common.errors import ConfigError
from common.model.table import TableSettings
from common.spi.options import of_table, option, option_names, read_options, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Some of each type."""

    fewest: int = option(4, at_least=2)
    share: float = option(0.5, above=0, below=1)
    small_bytes: int = option(1024)
    window_s: float = option(3600.0, above=0)
    until_s: float | None = option(None)
    whole: bool = option(default=False)
    order: str = option("newest", one_of=("newest", "oldest"))
    max_files: int = of_table("max_files", at_least=2)


def read(**given: object) -> Options:
    return read_options(Options, "planner p", given)


def test_defaults_are_the_fields_or_the_settings_of_the_table() -> None:
    assert read() == Options()
    settings = TableSettings(max_files=33)
    assert read_options(Options, "planner p", {}, settings) == Options(max_files=33)
    assert read_options(Options, "planner p", {"max_files": 5}, settings).max_files == 5


def test_texts_and_values_mean_the_same() -> None:
    wanted = Options(
        fewest=3, share=0.25, small_bytes=2048, window_s=7200.0, until_s=60.0, whole=True,
        order="oldest",
    )  # fmt: skip
    assert wanted == read(
        fewest="3", share="0.25", small="2KB", window="2h", until="1m", whole="yes", order="oldest"
    )
    assert wanted == read(
        fewest=3, share=0.25, small_bytes=2048, window_s=7200, until_s=60, whole=True,
        order="oldest",
    )  # fmt: skip
    assert read(until="none").until_s is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"fewset": 3}, "planner p: option 'fewset' is unknown; did you mean 'fewest'"),
        ({"fewest": 1}, "option fewest is 1, expected at least 2"),
        ({"fewest": "two"}, "option fewest is 'two', expected a whole number"),
        ({"fewest": 2.5}, "option fewest is 2.5, expected a whole number"),
        ({"fewest": True}, "option fewest is True, expected a whole number"),
        ({"share": 1}, "option share is 1, expected above 0 and below 1"),
        ({"share": "nan"}, "option share is 'nan', expected a number"),
        ({"share": None}, "option share is missing, expected a number"),
        ({"small": "much"}, "option small_bytes 'much' is not a size"),
        ({"small": "1KB", "small_bytes": 1}, "option small_bytes is given twice"),
        ({"window": 0}, "option window_s is 0 s, expected above 0 s"),
        ({"window": -1}, "option window_s -1 is not a duration"),
        ({"whole": "perhaps"}, "option whole is 'perhaps', expected true or false"),
        ({"order": "any"}, "option order is 'any', expected one of newest, oldest"),
        ({"order": 7}, "option order is 7, expected one of newest, oldest"),
    ],
)
def test_what_is_not_allowed_is_named(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(**given)


def test_what_a_planner_declares_follows_from_its_options() -> None:
    assert {"small", "small_bytes", "window", "window_s", "fewest"} < option_names(Options)
    assert settings_of(Options) == {"max_files"}


def test_options_that_are_equal_are_read_once_and_types_still_count() -> None:
    assert read(small_bytes=1) is read(small_bytes=1)
    assert read(small_bytes=1) is not read(small_bytes=2)
    with pytest.raises(ConfigError, match="small_bytes True is not a size"):
        read(small_bytes=True)
    with pytest.raises(ConfigError, match="small_bytes"):
        read(small_bytes=[1])
    narrow = read_options(Options, "planner p", {}, TableSettings(max_files=2))
    wide = read_options(Options, "planner p", {}, TableSettings(max_files=3))
    assert (narrow.max_files, wide.max_files) == (2, 3)


def test_options_that_can_be_changed_are_nobody_elses() -> None:
    @dataclass(slots=True, kw_only=True)
    class Loose:
        count: int = option(1)

    first = read_options(Loose, "planner p", {})
    first.count = 7
    assert read_options(Loose, "planner p", {}).count == 1
