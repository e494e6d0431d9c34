"""Remove secrets from texts. Logs and answers use this one function.

A URI may carry a password before its host, and keys in its query. Both are removed from every
text, whatever the source of the URI.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
DEPTH_MAX = 6
_BETWEEN = re.compile(r"([\s'\"<>]+)")
"""Characters that no URI has; a text without them may be a list of URIs."""
_OF_A_SENTENCE = "),;:."


def redacted(text: str) -> str:
    """Return a text without the user names, passwords and query options of its URIs."""
    if "://" not in text:
        return text
    return "".join(map(_redacted_word, _BETWEEN.split(text)))


def _redacted_word(word: str) -> str:
    scheme, colon, rest = word.partition("://")
    if not colon or not ("@" in rest or "?" in rest):
        return word
    before, at, after = rest.rpartition("@")
    if at and _is_user(before):
        rest = f"{HIDDEN}@{after}"
    shown, mark, hidden = rest.partition("?")
    if not mark:
        return f"{scheme}://{rest}"
    sentence = hidden[len(hidden.rstrip(_OF_A_SENTENCE)) :]
    return f"{scheme}://{shown}?{HIDDEN}{sentence}"


def _is_user(before: str) -> bool:
    """Return whether the text before an `@` is a user, not a host with part of a path."""
    host, slash, path = before.partition("/")
    _, colon, port = host.partition(":")
    return not slash or ":" in path or (bool(colon) and not port.isdigit())


def redacted_tree(value: Any, depth_max: int = DEPTH_MAX) -> Any:
    """Return texts, and lists and mappings of texts, redacted; other values as redacted text."""
    if isinstance(value, str):
        return redacted(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth_max and isinstance(value, Mapping):
        return {str(key): redacted_tree(item, depth_max - 1) for key, item in value.items()}
    if depth_max and isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [redacted_tree(item, depth_max - 1) for item in value]
    return redacted(str(value))
