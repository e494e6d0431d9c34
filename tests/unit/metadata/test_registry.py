"""Each change has exactly one function, which has its name."""

from inspect import isclass, signature
from typing import get_type_hints

import pytest

from common.metadata import changes
from common.metadata.changes import Change, Guarded, transaction_for
from common.metadata.changes.protocol import transaction_of

BUILDERS = {kind: made for kind, made in transaction_of.registry.items() if kind is not object}


def test_every_change_has_a_function_and_is_exported() -> None:
    exported = {
        each for each in vars(changes).values() if isclass(each) and issubclass(each, Change)
    }

    assert set(BUILDERS) == exported - {Change, Guarded}


def test_the_function_of_a_change_has_its_name_and_stands_in_its_file() -> None:
    for change, function in BUILDERS.items():
        first = next(iter(signature(function).parameters))
        assert get_type_hints(function)[first] is change, function.__name__
        assert function.__name__.replace("_", "") == change.__name__.lower()
        assert function.__module__ == change.__module__


def test_a_value_that_no_file_registers_is_no_change() -> None:
    with pytest.raises(AssertionError, match="no function is registered"):
        transaction_for(Change())
