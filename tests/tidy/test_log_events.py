"""Every event that the product logs is in the table of events, and the table has no others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from common.log_events import EVENTS_BY_PART
from common.telemetry import LINE_FIELDS
from scripts import twins
from tests.tidy.tree import PACKAGES, name_of, nodes_of, python_files

CALLS = {"log", "_log", "end_process", "WriteLog"}
"""Names of what logs an event, by its first argument or by `event=`."""
PASSED_ON = {"action.event", "event", "_NUMBERS[level_of(event)]"}
"""Arguments that are events from elsewhere, which are found where they are made."""
VALUES = {"{kind.value}": ("split", "merge")}
KNOWN = [event.name for events in EVENTS_BY_PART.values() for event in events]


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls that log, and where they are."""
    for path in python_files(*PACKAGES):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and twins.called_name(node) in CALLS:
                yield f"{name_of(path)}:{node.lineno}", node


def names_of(call: ast.Call) -> list[str]:
    """Return every name of an event that a call may log."""
    arguments = [word.value for word in call.keywords if word.arg == "event"] or call.args[:1]
    return [name for argument in arguments for name in texts_of(argument)]


def texts_of(argument: ast.expr) -> list[str]:
    match argument:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.IfExp():
            return texts_of(argument.body) + texts_of(argument.orelse)
        case ast.JoinedStr():
            text = ast.unparse(argument)[2:-1]
            field = next((field for field in VALUES if field in text), "")
            return [text.replace(field, value) for value in VALUES.get(field, (field,))]
    return [text] if (text := ast.unparse(argument)) not in PASSED_ON else []


def test_the_table_has_the_events_that_are_logged_and_no_others() -> None:
    logged = [(where, name) for where, call in calls() for name in names_of(call)]

    assert len(logged) > 60
    assert [(where, name) for where, name in logged if name not in KNOWN] == []
    assert {*KNOWN} - {name for _, name in logged} == set()


def test_no_event_has_a_field_that_every_line_has() -> None:
    taken = {*LINE_FIELDS} - {"event"}
    words = [(where, keyword.arg) for where, call in calls() for keyword in call.keywords]

    assert [(where, word) for where, word in words if word in taken] == []
