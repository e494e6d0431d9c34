"""Every event that the product logs is in the table of events, and the table has no others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from common.log_events import EVENTS_BY_PART
from common.telemetry import LINE_FIELDS
from tests.tidy.tree import ROOT, nodes_of

PRODUCT = ("common", "coordinator", "compactor", "neve")
CALLS = {"log", "_log", "end_process", "Tell"}
"""Names of what logs an event, by its first argument or by `event=`."""
PASSED_ON = {"action.event", "event", "_NUMBERS[level_of(event)]"}
"""Arguments that are events from elsewhere, which are found where they are made."""
VALUES = {"{kind.value}": ("split", "merge")}

EVENT_NAME = "event"
"""The keyword by which an action names its event; the fields stand in another."""

Event = tuple[str, str]
"""Where, and the event's name."""


def _logged() -> Iterator[Event]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in nodes_of(path):
                if isinstance(node, ast.Call) and _name(node.func) in CALLS:
                    argument = next(
                        (keyword.value for keyword in node.keywords if keyword.arg == "event"),
                        node.args[0] if node.args else None,
                    )
                    if argument is not None:
                        where = f"{path.relative_to(ROOT)}:{node.lineno}"
                        yield from ((where, name) for name in _names(argument))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _names(argument: ast.expr) -> Iterator[str]:
    """Yield every text that an argument may be."""
    match argument:
        case ast.Constant(value=str() as text):
            yield text
        case ast.IfExp():
            yield from _names(argument.body)
            yield from _names(argument.orelse)
        case ast.JoinedStr():
            text = ast.unparse(argument)[2:-1]
            for place, values in VALUES.items():
                if place in text:
                    yield from (text.replace(place, value) for value in values)
                    return
            yield text
        case _:
            if (text := ast.unparse(argument)) not in PASSED_ON:
                yield text


@pytest.fixture(scope="module")
def logged() -> list[Event]:
    return list(_logged())


def test_every_event_that_is_logged_is_in_the_table(logged: list[Event]) -> None:
    known = {event.name for events in EVENTS_BY_PART.values() for event in events}
    assert len(logged) > 60
    assert [(where, name) for where, name in logged if name not in known] == []


def test_every_event_of_the_table_is_logged_somewhere(logged: list[Event]) -> None:
    names = {name for _, name in logged}
    known = [event.name for events in EVENTS_BY_PART.values() for event in events]
    assert [name for name in known if name not in names] == []


def test_no_event_has_a_field_that_every_line_has() -> None:
    taken = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {keyword.arg}"
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and _name(node.func) in CALLS
        for keyword in node.keywords
        if keyword.arg in {*LINE_FIELDS} - {EVENT_NAME}
    ]
    assert taken == []
