"""Did you mean …?"""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from common.expressions.bounds import SUGGEST_CHARS_MAX, SUGGEST_COLUMNS_MAX
from common.expressions.source import visible


def suggestion(word: str, names: Iterable[str]) -> str:
    """Return `; did you mean amount?`, or nothing when no name is like the word."""
    if len(word) > SUGGEST_CHARS_MAX:
        return ""
    known: dict[str, str] = {}
    for name in islice(sorted(names), SUGGEST_COLUMNS_MAX):
        if len(name) <= SUGGEST_CHARS_MAX:
            known.setdefault(name.lower(), name)
    close = get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {visible(known[close[0]])}?" if close else ""
