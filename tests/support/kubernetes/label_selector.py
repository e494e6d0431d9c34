"""Match labels against a selector as the API server does.

Grammar: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
"""

from __future__ import annotations

import re
from collections.abc import Mapping

KEY = r"[A-Za-z0-9][A-Za-z0-9._/-]*"
SET = re.compile(rf"({KEY})\s+(in|notin)\s+\(([^()]*)\)")
EQUALITY = re.compile(rf"({KEY})\s*(==|=|!=)\s*([A-Za-z0-9._-]*)")
EXISTENCE = re.compile(rf"(!?)\s*({KEY})")
COMMA_OUTSIDE_SET = re.compile(r",(?![^()]*\))")


class SelectorError(ValueError):
    """The text is not a label selector."""


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Return whether `labels` meet every requirement of `selector`; an empty one has none.

    Raises:
        SelectorError: A requirement cannot be read.
    """
    if not selector.strip():
        return True
    # Every requirement is read, so that a wrong one is refused whatever the labels are.
    met = [_meets(part.strip(), labels) for part in COMMA_OUTSIDE_SET.split(selector)]
    return all(met)


def _meets(requirement: str, labels: Mapping[str, str]) -> bool:
    if found := SET.fullmatch(requirement):
        key, operator, values = found.groups()
        among = labels.get(key) in {value.strip() for value in values.split(",")}
        return among == (operator == "in")
    if found := EQUALITY.fullmatch(requirement):
        key, operator, value = found.groups()
        return (labels.get(key) == value) == (operator != "!=")
    if found := EXISTENCE.fullmatch(requirement):
        return (found[2] in labels) == (found[1] == "")
    raise SelectorError(f"cannot read {requirement!r} as a requirement on labels")
