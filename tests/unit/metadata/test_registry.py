"""The registry of changes: each change has exactly one function, made for it."""

from inspect import signature
from typing import get_args, get_type_hints

from common.metadata import changes
from common.metadata.mutation.registry import BUILDERS


def test_every_change_has_a_builder() -> None:
    assert set(BUILDERS) == set(get_args(changes.Change))


def test_every_builder_takes_the_change_that_it_is_registered_for() -> None:
    for change, builder in BUILDERS.items():
        first = next(iter(signature(builder).parameters))
        assert get_type_hints(builder)[first] is change, builder.__name__


def test_no_builder_serves_two_changes() -> None:
    assert len(set(BUILDERS.values())) == len(BUILDERS)
